"""The weight channel: its two ends, and a version on its way out of one and into the other."""

from __future__ import annotations

from ._weight_layout import WeightLayout, WeightPlan
from ._weight_publisher import WeightPublisher
from ._weight_subscriber import WeightSubscriber
from ._weight_transaction import WeightTransaction
from ._weight_update import WeightUpdate
from ._weights import WeightView

__all__ = [
    "WeightLayout",
    "WeightPlan",
    "WeightPublisher",
    "WeightSubscriber",
    "WeightTransaction",
    "WeightUpdate",
    "WeightView",
]
