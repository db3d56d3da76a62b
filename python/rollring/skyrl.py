"""The former name of ``rollring.integrations.skyrl``."""

import sys

from .integrations import skyrl

sys.modules[__name__] = skyrl
