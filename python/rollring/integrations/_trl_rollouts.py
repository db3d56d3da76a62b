"""The ``rollout_func`` of TRL's synchronous `GRPOTrainer`."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .._errors import RollringError, TimedOutError
from .._requests import RequestBoard
from .._ring import create
from .._stash import Stash
from . import _fields
from ._trl_weights import RingWeightTransfer

if TYPE_CHECKING:
    from .._batch import Batch
    from .._codecs import Codec

    Key = tuple[str, int]

_log = logging.getLogger("rollring")

LOOK_SECONDS = 1.0  # between looks at requests that failed
IDLE_SECONDS = 30.0  # after which a trainer without workers says so


class RingRollouts:
    """The ``rollout_func`` of a `GRPOTrainer`: prompts go out as requests, whole groups come back.

        trainer = GRPOTrainer(..., rollout_func=RingRollouts("run42"))

    Workers answer with `answer_prompts`. Before the first request of a step the trainer's weights
    go to them over the ring's weight channel, so every completion is on policy.

    It makes the ring where there is none, and is the ring's only trainer. It serves a trainer of
    one process: TRL calls a ``rollout_func`` on each rank, and a ring has one consumer.

    Args:
        ring: Its name.
        weights: Whether the trainer's weights go to the workers.
        engines: So many workers have to be attached before the first weights are sent.
        timeout: Seconds that the rollouts of one call, or the weights, may take.
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
        timeout: float = 3600.0,
        attempts: int = 3,
        codec: Codec | None = None,
        publish_as: str | None = None,
        **ring_options: Any,
    ) -> None:
        create(ring, exist_ok=True, **ring_options)
        self.ring = ring
        self._timeout = timeout
        self._stash = Stash(
            ring, batch_groups=1, order="freshest", advantages="none", deadline=timeout, min_size=1
        )
        self._board = RequestBoard(ring, "TRL's trainer", attempts=attempts, codec=codec)
        self._board.open()
        self._transfer: RingWeightTransfer | None = None
        if weights:
            self._transfer = RingWeightTransfer(
                ring, engines=engines, timeout=timeout, publish_as=publish_as
            )
        self._sent_step = -1
        self._visit = time.time_ns()  # the same prompt comes again, also in the next run

    def __call__(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """TRL's call. Rows come in the order of the prompts.

        Raises:
            TimedOutError: A group was not complete in time; the text names its prompt.
            RollringError: So many workers as ``attempts`` says failed at a prompt.
        """
        if trainer.accelerator.num_processes > 1:
            raise ValueError(
                f"RingRollouts serves a trainer of one process, and this one has "
                f"{trainer.accelerator.num_processes}: a ring has one consumer"
            )
        self._send_weights(trainer)
        training = trainer.model.training
        count = trainer.num_generations if training else trainer.num_generations_eval
        return self._columns(self._collect(self._ask(prompts, count)))

    def close(self) -> None:
        """Withdraw open requests, and leave the ring. Twice is fine."""
        self._board.close()
        if self._transfer is not None:
            self._transfer.destroy()
        self._stash.close()

    def _send_weights(self, trainer: Any) -> None:
        step = trainer.state.global_step
        if self._transfer is None or step == self._sent_step:
            return
        model = trainer.accelerator.unwrap_model(trainer.model)
        if hasattr(model, "peft_config"):
            raise ValueError(
                "RingRollouts does not send LoRA adapters: train the whole model, or say "
                "weights=False and give the workers the weights in another way"
            )
        self._transfer.send_weights(iter(model.named_parameters()))
        self._sent_step = step

    def _ask(self, prompts: Sequence[Any], count: int) -> dict[Key, dict[str, Any]]:
        """A request for each run of the same prompt, by the key of its group."""
        asked = {}
        for start in range(0, len(prompts), count):
            same = prompts[start : start + count]
            if any(each != same[0] for each in same):
                raise ValueError(
                    f"prompts {start} to {start + len(same) - 1} differ: TRL gives each prompt "
                    f"{count} times in a row"
                )
            self._visit += 1
            item = {"prompt": same[0], "count": len(same), "visit": self._visit}
            item["instance_id"] = f"trl/{start // count}"
            item["number"] = self._board.post(item, timeout=self._timeout)
            asked[item["instance_id"], self._visit] = item
        return asked

    def _collect(self, asked: dict[Key, dict[str, Any]]) -> Iterator[tuple[Batch, int]]:
        """The group of each request, in their order, and acknowledged once the next is taken."""
        ends = idle = time.monotonic()
        ends, idle = ends + self._timeout, idle + IDLE_SECONDS
        came: dict[Key, Batch] = {}
        try:
            while missing := [key for key in asked if key not in came]:
                self._raise_failed(asked)
                try:
                    batch = self._stash.next(LOOK_SECONDS)
                except TimedOutError:
                    if time.monotonic() >= ends:
                        raise self._timed_out(asked[missing[0]], len(missing)) from None
                    if time.monotonic() >= idle:
                        self._tell_idle()
                        idle += IDLE_SECONDS
                    continue
                key = batch.groups[0].key
                if key in asked:
                    came[key] = batch
                else:
                    batch.ack()  # of a call that failed, or of an earlier trainer
            for key, item in asked.items():
                yield came[key], item["count"]
                came.pop(key).ack()
        finally:
            for item in asked.values():
                if not self._board.closed:
                    self._board.withdraw(item["number"])

    def _columns(self, groups: Iterable[tuple[Batch, int]]) -> dict[str, list[Any]]:
        made: dict[str, list[Any]] = {
            name: [] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "reward")
        }
        for batch, count in groups:
            group = batch.groups[0]
            members = sorted(group.members, key=lambda member: member.repetition_id)
            if len(members) != count or any(len(m.sequences) != 1 for m in members):
                raise RollringError(
                    f"group {group.key[0]!r} of ring {self.ring} has {len(members)} members, or "
                    f"several sequences in one, where {count} completions were asked for",
                    "missing",
                )
            for member in members:
                record = member.sequences[0]
                prompt, tokens = record.n_prompt, _fields.tokens(record)
                made["prompt_ids"].append(tokens.token_ids[:prompt].tolist())
                made["completion_ids"].append(tokens.token_ids[prompt:].tolist())
                made["logprobs"].append(tokens.logprobs[prompt:].tolist())
                made["env_mask"].append(tokens.loss_mask[prompt:].tolist())
                made["reward"].append(_fields.reward(record))
        return made

    def _raise_failed(self, asked: dict[Key, dict[str, Any]]) -> None:
        failed = set(self._board.given_up())
        for item in asked.values():
            if item["number"] in failed:
                raise RollringError(
                    f"workers failed at the rollouts of prompt {item['prompt']!r}: their logs say "
                    "why",
                    "missing",
                )

    def _timed_out(self, item: dict[str, Any], missing: int) -> TimedOutError:
        return TimedOutError(
            f"{missing} groups were not complete within {self._timeout} s, the first for prompt "
            f"{item['prompt']!r}; `rollring groups {self.ring}` shows the missing members",
            "timed_out",
        )

    def _tell_idle(self) -> None:
        if not self._board.counts()["workers"]:
            _log.warning(
                "ring %s: rollouts are asked for, and no worker is there: start some with "
                "rollring.integrations.trl.answer_prompts(%r, ...)",
                self.ring,
                self.ring,
            )
