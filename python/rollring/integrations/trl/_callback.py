"""How a trainer of TRL tells a `RingRolloutWorker` what its protocol does not."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._ranks import first_rank

if TYPE_CHECKING:
    from ._worker import RingRolloutWorker


def callback_of(worker: RingRolloutWorker) -> Any:
    """A `TrainerCallback`, whose state is a part of every checkpoint."""
    theirs: Any = importlib.import_module("transformers.trainer_callback")

    class RingRolloutCallback(theirs.TrainerCallback, theirs.ExportableState):  # type: ignore[misc]
        def state(self) -> dict[str, Any]:
            return {"args": {}, "attributes": {"trained": worker._state()}}

        def on_train_begin(self, args: Any, state: Any, *_: Any, **given: Any) -> None:
            # A checkpoint of a run without this callback has no place for its state.
            saved = state.stateful_callbacks.setdefault(type(self).__name__, {})
            worker._begin(args, saved.get("attributes", {}).get("trained"))
            _note_micro_batches(worker, args, given.get("train_dataloader"))

        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            first_rank.agree()  # before the first rank waits for samples

        def on_substep_end(self, *_: Any, **__: Any) -> None:
            worker._ledger.micro_batch_ended()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            worker._ledger.micro_batch_ended()
            full = False
            with first_rank.call():
                worker._step_ended(reads_ahead=_held_back(args))
                full = worker._wants_checkpoint()
            # Every rank has the callback, one has the ring, and a checkpoint is the work of all.
            if first_rank.agree(full):
                control.should_save = True

        def on_train_end(self, *_: Any, **__: Any) -> None:
            first_rank.agree()

        def on_save(self, *_: Any, **__: Any) -> None:
            with first_rank.call():
                worker._acknowledge_trained()

    made = RingRolloutCallback()
    first_rank.heard_by(made)
    return made


def _held_back(args: Any) -> int:
    """A trainer that packs by tokens has the first sample of the next micro-batch in its hands."""
    return 1 if getattr(args, "token_budget", None) else 0


def _note_micro_batches(worker: RingRolloutWorker, args: Any, loader: Any) -> None:
    """Only the loader knows where a micro-batch ends: it collates each as soon as it is whole."""
    loader = getattr(loader, "base_dataloader", loader)
    collate = getattr(loader, "collate_fn", None)
    if collate is None:
        return

    def noted(examples: Any) -> Any:
        worker._ledger.made_micro_batch(_held_back(args))
        return collate(examples)

    loader.collate_fn = noted
