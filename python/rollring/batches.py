"""A batch of the stash, its parts, and a rank's share of it, read in another process."""

from __future__ import annotations

from ._batch import Batch
from ._gather import GatherColumn
from ._reader import Reader, Share
from ._sequence import Group, Member, Sequence

__all__ = ["Batch", "GatherColumn", "Group", "Member", "Reader", "Sequence", "Share"]
