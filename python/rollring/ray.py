"""The former name of ``rollring.integrations.ray``."""

import sys

from .integrations import ray

sys.modules[__name__] = ray
