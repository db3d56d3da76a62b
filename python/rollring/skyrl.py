"""The former name of ``rollring.integrations.skyrl.weights``."""

import sys

from .integrations.skyrl import weights

sys.modules[__name__] = weights
