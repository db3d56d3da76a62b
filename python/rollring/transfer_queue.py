"""The former name of ``rollring.integrations.transfer_queue``."""

import sys

from .integrations import transfer_queue

sys.modules[__name__] = transfer_queue
