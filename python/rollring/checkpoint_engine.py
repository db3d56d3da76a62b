"""The former name of ``rollring.integrations.checkpoint_engine``."""

import sys

from .integrations import checkpoint_engine

sys.modules[__name__] = checkpoint_engine
