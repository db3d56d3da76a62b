"""The former name of ``rollring.integrations.sglang``."""

import sys

from .integrations import sglang

sys.modules[__name__] = sglang
