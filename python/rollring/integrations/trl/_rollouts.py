"""The ``rollout_func`` of TRL's synchronous `GRPOTrainer`."""

from __future__ import annotations

import functools
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ...errors import InvalidArgumentError
from .. import record_fields
from ._ranks import of_all_ranks, on_first_rank, whole_tensors
from ._requests import RolloutRequests
from ._weights import RingWeightTransfer

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ... import Member
    from ...extras import Codec
    from ...options import RingOptions

    Columns = dict[str, list[Any] | None]

WEIGHTS_SECONDS = 3600.0  # for workers to take them


class RingRollouts:
    """The ``rollout_func`` of a `GRPOTrainer`: prompts go out as requests, whole groups come back.

        trainer = GRPOTrainer(..., rollout_func=RingRollouts("run42"))

    Workers answer with `answer_prompts`. Before the first request of a step the trainer's weights
    go to them over the ring's weight channel, so every completion is on policy.

    The first rank of the trainer makes the ring where there is none, and is the ring's only
    trainer: it asks for the prompts of all ranks, and each rank gets the completions of its own.
    The others wait for it, within the ``ddp_timeout`` of the trainer's arguments.

    Args:
        ring: Its name.
        weights: Whether the trainer's weights go to the workers.
        engines: So many workers have to be attached before the first weights are sent.
        timeout: Seconds that the rollouts of one call, or the weights, may take. By default the
            rollouts have no limit, and the weights `WEIGHTS_SECONDS`.
        attempts: Workers that may begin a request before it fails.
        codec: Of the requests. Default: `PlainCodec`, which carries JSON values and arrays.
        publish_as: The dtype in which float32 weights go out, such as "bfloat16".
        **ring_options: As of `create`.
    """

    def __init__(
        self,
        ring: str,
        *,
        weights: bool = True,
        engines: int = 1,
        timeout: float | None = None,
        attempts: int = 3,
        codec: Codec | None = None,
        publish_as: str | None = None,
        **ring_options: Unpack[RingOptions],
    ) -> None:
        self.ring = ring
        self._ask = functools.partial(
            RolloutRequests, ring, timeout=timeout, attempts=attempts, codec=codec, **ring_options
        )
        self._requests: RolloutRequests | None = None
        self._transfer: RingWeightTransfer | None = None
        if weights:
            self._transfer = RingWeightTransfer(
                ring,
                engines=engines,
                timeout=WEIGHTS_SECONDS if timeout is None else timeout,
                publish_as=publish_as,
            )
        self._sent_step = -1
        if os.environ.get("RANK", "0") == "0":  # torchrun and accelerate set it
            self._open()

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> Columns:
        """TRL's call. Rows come in the order of the prompts.

        Raises:
            TimedOutError: A group was not complete in time; the text names its prompt.
            RollringError: So many workers as ``attempts`` says failed at a prompt, or the first
                rank failed, and this is another one.
        """
        ranks = trainer.accelerator
        self._send_weights(trainer)
        training = trainer.model.training
        count = trainer.num_generations if training else trainer.num_generations_eval
        given = of_all_ranks(ranks, list(prompts))
        everything = [prompt for of_one in given for prompt in of_one]
        made = on_first_rank(ranks, lambda: _columns(self._open().members(everything, count)))
        before = sum(map(len, given[: ranks.process_index]))
        mine = slice(before, before + len(prompts))
        return {name: rows and rows[mine] for name, rows in made.items()}

    def close(self) -> None:
        """Withdraw open requests, and leave the ring. Idempotent."""
        if self._transfer is not None:
            self._transfer.destroy()
        if self._requests is not None:
            self._requests.close()

    def _open(self) -> RolloutRequests:
        if self._requests is None:
            self._requests = self._ask()
        return self._requests

    def _send_weights(self, trainer: Any) -> None:
        step = trainer.state.global_step
        if self._transfer is None or step == self._sent_step:
            return
        model = trainer.accelerator.unwrap_model(trainer.model)
        if hasattr(model, "peft_config"):
            raise InvalidArgumentError(
                "RingRollouts does not send LoRA adapters: train the whole model, or say "
                "weights=False and give the workers the weights in another way"
            )
        tensors = whole_tensors(model.named_parameters())
        # Each rank may have a part of each tensor.
        taken: Callable[[], object] = partial(deque, tensors, 0)
        on_first_rank(trainer.accelerator, partial(self._publish, tensors, taken), taken)
        self._sent_step = step

    def _publish(self, tensors: Iterator[tuple[str, Any]], rest: Callable[[], object]) -> None:
        assert self._transfer is not None
        self._open()
        try:
            self._transfer.publish(tensors)
        finally:
            rest()


def _columns(members: Iterable[Member]) -> Columns:
    """The columns that TRL expects of all rows. A column that no row needs is None or left out, as
    where TRL itself has generated them.
    """
    names = ("prompt_ids", "completion_ids", "logprobs", "env_mask", "reward")
    made: dict[str, list[Any]] = {name: [] for name in names}
    sampled = masked = False
    for member in members:
        record = member.sequences[0]
        response = record_fields.tokens(record).response
        known = record.logprobs is not None
        sampled |= known
        masked |= not response.loss_mask.all()
        made["prompt_ids"].append(response.prompt_ids.tolist())
        made["completion_ids"].append(response.token_ids.tolist())
        unknown = [math.nan] * len(response.token_ids)
        made["logprobs"].append(response.logprobs.tolist() if known else unknown)
        made["env_mask"].append(response.loss_mask.tolist())
        made["reward"].append(record_fields.reward(record))
    columns: Columns = {**made}
    if not sampled:
        columns["logprobs"] = None
    if not masked:
        del columns["env_mask"]
    return columns
