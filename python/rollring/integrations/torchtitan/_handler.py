"""The methods of torchtitan's data handler and trainer that go to the ring."""

from __future__ import annotations

import importlib
import logging
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

from ...errors import InvalidArgumentError, UnsupportedError
from ._rollouts import Rollouts, Shape
from ._settings import SETTING, Settings

_log = logging.getLogger("rollring")

DATA_HANDLING = "torchtitan.grpo.data_handling"
TRAIN_STATE = "train_state"
DIVIDES = "prepare_context_parallel_input"  # of torchtitan, for the ranks of context parallelism
STATE = "rollring"  # the key in a checkpoint's train_state
_rollouts: weakref.WeakKeyDictionary[Any, Rollouts] = weakref.WeakKeyDictionary()  # by handler


def rollouts_of(handler: Any, settings: Settings) -> Rollouts:
    """Of this rank's handler."""
    found = _rollouts.get(handler)
    if found is None:
        found = _rollouts[handler] = Rollouts(settings, handler.server_url, handler.metrics_rank)
    return found


def take_handler(theirs: Any, settings: Settings) -> None:
    """Replace the two methods of ``theirs.OnlineDataHandler`` that speak to the server."""
    handler_type = theirs.OnlineDataHandler
    register = handler_type.register_atropos

    def register_atropos(self: Any, job_config: Any, step: int, global_batch_size: int) -> None:
        requests = importlib.import_module("requests")
        if settings.server:
            self.server_url = settings.server.rstrip("/")
        try:
            register(self, job_config, step, global_batch_size)
        except requests.ConnectionError as error:
            if not settings.ring or settings.rollouts != "ring":
                raise
            _log.warning(
                "no server answers at %s: only workers that push into the ring %s are heard (%s)",
                self.server_url, settings.ring, error,
            )  # fmt: skip

    def data_handling(
        self: Any,
        sglang_nccl_group: Any,
        cp_degree: int,
        dp_degree: int,
        dp_replicate_rank: int,
        device: Any,
        job_config: Any,
        step: int,
    ) -> tuple[Any, ...]:
        def beat() -> None:
            # Engines that follow their group of NCCL wait in it, too.
            if sglang_nccl_group is not None and dp_replicate_rank == 0:
                theirs.send_wait(sglang_nccl_group, device)

        began = time.perf_counter()
        training, grpo = job_config.training, job_config.grpo
        accumulated = training.global_batch_size // (training.local_batch_size * dp_degree)
        accumulated = max(1, accumulated)
        shape = Shape(
            training.local_batch_size * accumulated * dp_degree,
            training.seq_len,
            cp_degree,
            dp_degree * grpo.num_microbatches,
            grpo.scale_adv_by_len,
        )
        rollouts = rollouts_of(self, settings)
        found = rollouts.next(shape, step, beat)
        rows, batches = theirs.get_dynamic_batch_gas(
            training.local_batch_size,
            accumulated,
            training.seq_len,
            found.plan.longest,
            grpo.num_microbatches,
        )
        return (
            rollouts.batches(found, rows, batches * dp_degree),
            found.plan.longest,
            rows,
            batches,
            found.plan.lengths,
            0.0,
            0.0,
            time.perf_counter() - began,
        )

    handler_type.register_atropos = register_atropos
    if settings.rollouts == "ring":
        handler_type.data_handling = data_handling


def take_trainer(trainer_type: Any, settings: Settings) -> None:
    """Have ``trainer_type`` keep receipts in its checkpoints, and acknowledge its last step."""
    state_dict, load, train = (
        trainer_type.state_dict, trainer_type.load_state_dict, trainer_type.train,
    )  # fmt: skip

    def kept_state(self: Any) -> dict[str, Any]:
        made: dict[str, Any] = state_dict(self)
        rollouts = rollouts_of(self.data_handler, settings)
        if not _loads_without_us:
            made[STATE] = rollouts.state()
            # torchtitan has waited for the checkpoint before this one.
            rollouts.saved = _saved(self, rollouts.newest, rollouts.saved())
        return made

    def load_state(self: Any, state: dict[str, Any]) -> None:
        given = dict(state)
        kept = given.pop(STATE, None)
        load(self, given)
        if kept is not None:
            rollouts_of(self.data_handler, settings).resume(kept)

    def train_to_the_end(self: Any) -> None:
        _refuse_undivided_rows(self)
        checkpoint = self.job_config.checkpoint
        if settings.acknowledge == "checkpoint" and (not checkpoint.enable or checkpoint.load_only):
            raise InvalidArgumentError(
                f'{SETTING} says {{"acknowledge": "checkpoint"}}, and this run writes none: say '
                '--checkpoint.enable without --checkpoint.load_only, or {"acknowledge": "step"}',
                "invalid_argument",
            )
        _finish_staging_before_steps(self)
        train(self)
        rollouts_of(self.data_handler, settings).finish()

    trainer_type.state_dict = kept_state
    trainer_type.load_state_dict = load_state
    trainer_type.train = train_to_the_end


def _finish_staging_before_steps(trainer: Any) -> None:
    """With `async_with_pinned_mem` the state of a checkpoint is copied beside the next step. The
    trainer waits for the copy behind its optimizer, which would put weights of that step into it,
    beside the receipts of the step before.
    """
    manager = trainer.checkpointer
    if not getattr(manager, "enable_staging", False):
        return
    step = trainer.optimizers.step

    def stepped(*given: Any, **named: Any) -> Any:
        manager.maybe_wait_for_staging()
        return step(*given, **named)

    trainer.optimizers.step = stepped


def _refuse_undivided_rows(trainer: Any) -> None:
    """
    Raises:
        UnsupportedError: Context parallel ranks would take each row whole for their part of it:
            attention would see the row several times, the later tokens among them.
    """
    degree = getattr(trainer, "cp_degree", 1)
    program = sys.modules[type(trainer).__module__]
    if degree > 1 and not hasattr(program, DIVIDES):
        raise UnsupportedError(
            f"context_parallel_degree is {degree}, and this GRPO trainer does not divide its rows "
            f"among context parallel ranks (torchtitan.grpo_train has no {DIVIDES}, as "
            "torchtitan.train does): each would train on whole rows as if they were its part; use "
            "--parallelism.context_parallel_degree 1",
            "unsupported",
        )


def _saved(trainer: Any, newest: int, before: int) -> Callable[[], int]:
    """Gives ``newest`` once the checkpoint that is being written is complete, and ``before`` until
    then.
    """
    manager = weakref.ref(trainer.checkpointer)

    def saved() -> int:
        future = getattr(manager(), "save_future", None)
        if future is None or (future.done() and future.exception() is None):
            return newest
        return before

    return saved


_loads_without_us: list[str] = []  # the checkpoint that is loaded, if it has no state of ours


def take_checkpoints(manager_type: Any) -> None:
    """Have checkpoints load that were written without rollring: they lack a key."""
    dcp_load = manager_type.dcp_load

    def load(self: Any, *given: Any, **named: Any) -> Any:
        place = named.get("checkpoint_id", given[2] if len(given) > 2 else "")
        there, asked = (
            _has_state(place),
            TRAIN_STATE in (given[0] if given else named["state_dict"]),
        )
        if there != asked:
            _log.warning(
                "no groups are settled by the checkpoint %s: %s; those that its weights were "
                "trained on and the ring still has are trained on again",
                place,
                "train_state is not loaded from it" if there else "rollring did not write it",
            )
        if not there:
            _loads_without_us.append(place)
        try:
            return dcp_load(self, *given, **named)
        finally:
            _loads_without_us.clear()

    manager_type.dcp_load = load


def _has_state(place: str) -> bool:
    checkpoint: Any = importlib.import_module("torch.distributed.checkpoint")
    try:
        metadata = checkpoint.FileSystemReader(place).read_metadata()
    except Exception:  # no checkpoint of torch's: nothing of train_state is loaded
        return False
    return any(name.endswith(f".{STATE}") for name in metadata.state_dict_metadata)
