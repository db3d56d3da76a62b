"""The former name of ``rollring.integrations.verl``."""

import sys

from .integrations import verl

sys.modules[__name__] = verl
