"""The trainer's end of the weight channel, as vLLM's trainer factory makes it. A trainer's process
without vLLM has it, too, for servers.

rr.create("run42", exist_ok=True)
engine = make_trainer(
    RollringTrainerInitInfo("run42", rank=0),
    client=HTTPVLLMWeightSyncClient("http://localhost:8000"),
    source=ModuleSource(model),
)
engine.send_weights()          # once a step
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from ... import RollringError, WeightPublisher
from ...adapters import put_checked, refusals
from ...errors import InvalidArgumentError, PeerGoneError, RejectedError
from ...weights import WeightTransaction
from ._clients import (
    Calls,
    FleetClient,
    HTTPClient,
    InProcessClient,
    Pause,
    check_one_call,
    check_rollback,
    engines_of,
)
from ._generation import TrainerEngine, TrainerInitInfo, finish, labels_tokens, make_trainer
from ._sources import (
    ShardSource,
    Standing,
    described_tensors,
    has_layout,
    publisher_of_shards,
    publisher_of_whole,
    tensors_of,
)
from ._staging import check_staging
from .calls import start_update

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = [
    "FleetClient",
    "HTTPClient",
    "InProcessClient",
    "RollringTrainer",
    "RollringTrainerInitInfo",
    "ShardSource",
    "make_trainer",
]

_log = logging.getLogger("rollring")

PAUSES = (None, "keep", "wait", "abort")


@dataclass
class RollringTrainerInitInfo(TrainerInitInfo):
    """How a trainer sends its weights.

    Attributes:
        ring: Its weight channel is used; the ring must exist (`rollring.create`).
        rank: Of this process among the trainer's; rank 0 speaks to the engines.
        publishers: How many ranks publish, each to the engines on its own GPU. 1: rank 0 alone.
        staging: Of `rollring.integrations.vllm.engine.RollringInitInfo`.
        pause: Generation pauses while weights and labels change, so that every token has the label
            of its version. The mode is vLLM's and applies to running requests: "keep": they go on
            afterwards; "wait": they end before; "abort": they are cut off. With staging
            "out_of_place" or "delta" the pause lasts for the finish alone, otherwise for the whole
            update. The client needs `pause_generation`: `HTTPClient` has it.
        shards: Each rank publishes its parts of the source, without a gather: all ranks do, and
            ``publishers`` and ``standing`` have no effect. The source is the model, with
            ``DTensor``s (FSDP2, tensor parallelism), or its tensors by name, or a `ShardSource`.
            Engines take their parts from all ranks, and no model is written before the version is
            committed, whatever the ``staging``.
        standing: The source's tensors stay where they are: versions are sent from there, and the
            source is asked for them once. It saves the Python for each name, where no rank has to
            gather anything.
        one_call: A version is one call to each engine, which does not generate from its beginning
            until all engines have it. Engines need the worker extension of
            `rollring.integrations.vllm.worker`. A vLLM that labels tokens takes a second call for
            the label. ``pause`` lasts for the whole update then.
        publish_as: The dtype in which float32 goes out, such as "bfloat16".
        device: Where the source's tensors lie. "auto": on the current GPU if there is one.
        deadline_s: Seconds to wait for engines, at each step.
        memory: Of the channel: as that of `WeightPublisher`. With "direct", which needs
            ``standing`` or ``shards``, engines read the source's tensors where they lie, those of
            whole tensors on the trainer's GPU: it must not change them before `send_weights` has
            returned, on any rank.
        slot_bytes: Of the channel's memory; 0: chosen.
        checksums: Of every tensor, checked by engines.
    """

    backend: ClassVar[str] = "rollring"
    ring: str
    publishers: int = 1
    shards: bool = False
    staging: str = "auto"
    pause: str | None = None
    standing: bool = False
    one_call: bool = False
    publish_as: str | None = None
    device: str = "auto"
    deadline_s: float = 300.0
    memory: str = "automatic"
    slot_bytes: int = 0
    checksums: bool = False

    def __post_init__(self) -> None:
        check_staging(self.staging)
        if self.memory == "direct" and not (self.standing or self.shards):
            raise InvalidArgumentError(
                "memory 'direct' lends the source's own tensors to engines: set standing=True",
                "invalid_argument",
            )
        if self.pause not in PAUSES:
            raise InvalidArgumentError(
                f"pause is {self.pause!r}: use None, 'keep', 'wait' or 'abort'", "invalid_argument"
            )


class RollringTrainer(TrainerEngine):
    """Sends versions of a `WeightSource` to all engines of a channel: all of them, or none.

    Made by `trainer_init`, on every rank of the trainer. One thread at a time.

    Attributes:
        version: The last one that was sent; -1: none yet.
        report: The report of `WeightPublisher.publish` for it.
    """

    init_info_cls = RollringTrainerInitInfo

    def __init__(self, info: RollringTrainerInitInfo, *, client: Any, source: Any) -> None:
        super().__init__(client=client, source=source, is_sender=info.rank == 0)
        self._info = info
        self._publisher: WeightPublisher | None = None
        self._strides: dict[str, tuple[int, ...]] = {}
        self._standing: Standing | None = None
        self.report: dict[str, Any] | None = None
        self._lies_still = info.standing or (info.shards and not has_layout(source))
        if info.shards:
            self._publisher = publisher_of_shards(info, source)
        else:
            self._describe(source)
        self.version = -1
        self._before = -1  # the version that was sent before it
        self._calls = Calls(client, info.ring)
        self._checks = ThreadPoolExecutor(1, "rollring-checks")

    def _describe(self, source: Any) -> None:
        info, described = self._info, described_tensors(source)
        self._strides = {name: tensor.stride() for name, tensor in described.items()}
        self._standing = Standing(source) if info.standing else None
        if info.rank < info.publishers:
            standing = None if self._standing is None else self._standing.tensors
            self._publisher = publisher_of_whole(info, described, standing)

    @classmethod
    def trainer_init(
        cls,
        init_info: RollringTrainerInitInfo,
        *,
        client: Any,
        source: Any = None,
        config: Any = None,
    ) -> Self:
        """Open the channel, and tell the engines of it. On every rank.

        Args:
            init_info: How weights are sent.
            client: Of the engines.
            source: Of the weights.
            config: vLLM 0.26 passes one; nothing of it matters here.

        Raises:
            RingNotFoundError: The ring has to be created first.
            BusyError: Another trainer lives, and publishes on this ring.
            UnsupportedError: ``pause`` or ``one_call`` is given, and the client has no such call.
            RollringError: As `WeightPublisher`.
        """
        if source is None:
            raise InvalidArgumentError("the backend 'rollring' sends whole models: pass a source")
        if init_info.pause is not None and init_info.rank == 0:
            Pause.check(client)
        if init_info.one_call and init_info.rank == 0:
            check_one_call(client)
        made = cls(init_info, client=client, source=source)
        if made.is_sender:
            try:
                made._calls.attach(
                    {
                        "ring": init_info.ring,
                        "staging": init_info.staging,
                        "deadline_s": init_info.deadline_s,
                    }
                )
            except BaseException as error:
                told = _reason(init_info.ring, error)
                made.shutdown()
                if told is error:
                    raise
                raise told from error
        return made

    @property
    def next_version(self) -> int:
        """One above all that the ring has had, on a rank that publishes."""
        if self._publisher is None:
            raise InvalidArgumentError(
                f"rank {self._info.rank} publishes nothing: ask rank 0", "invalid_argument"
            )
        return self._publisher.next_version

    def send_weights(self, version: int | None = None) -> None:
        """Send the source's weights as they are now; engines serve them when this returns.

        On every rank. If it raises, the version is given up, and engines serve the one before
        (those that load in place may be POISONED, which their log and the error say, until the
        next version). Those that were paused go on then, but not where one is POISONED, nor where
        the finish has failed: the next version, or vLLM's own call, lets them. Where the finish has
        failed for some engines, the others serve the new version and label their tokens with it;
        of shards with memory "direct", those that had not copied them yet have to attach again.

        Args:
            version: Above all that the ring has had; None: one above. It is the label that vLLM
                gives tokens.

        Raises:
            RejectedError: An engine could not take it; the text says which, and why.
            InvalidArgumentError: Tensors of a standing source have moved.
            TimedOutError: An engine, named in the text, has not answered in ``deadline_s``.
            PeerGoneError: An engine, named in the text, has died, and its server does not answer.
            VersionAbortedError: Another rank gave it up.
            Exception: As the client.
        """
        publisher = self._publisher
        if publisher is None:
            if self._standing is None:
                for _ in tensors_of(self.source):  # gathers of other ranks need this one
                    pass
            return
        version = publisher.next_version if version is None else version
        if not self.is_sender:
            with publisher.begin(version) as transaction:
                checked = self._check_standing()
                self._put(transaction, lambda: None)
                checked.result()
                transaction.decide()
                # Engines may copy from here until rank 0 has told them to adopt.
                transaction.commit(self._info.deadline_s)
            self._sent(transaction)
            return
        pause = Pause(self._calls, self._info.pause, self._info.ring)
        late = self._info.shards or self._info.staging in ("out_of_place", "delta")
        beside = late and not self._info.one_call  # the model is not written before the commit
        with publisher.begin(version) as transaction:
            try:
                if not beside:
                    pause.begin()
                told = self._decide(transaction)
                if beside:
                    pause.begin()
            except BaseException:
                pause.give_up()
                raise
            # If this raises, engines stay paused: one of them may hold a mixture.
            try:
                self._calls.end(told)
                if not self._info.one_call or labels_tokens():
                    self._calls.end(
                        self._calls.begin(
                            lambda client: finish(client.finish_weight_update, str(version))
                        )
                    )
            except Exception as error:
                raise _reason(self._info.ring, error, version) from error
            try:
                transaction.commit(self._info.deadline_s)
            finally:  # all servers have it
                pause.end()

    def _decide(self, transaction: WeightTransaction) -> Future[None]:
        """Returns the calls to engines, which have ended unless they are one call: that contains
        the engines' work after the decision.
        """
        version, deadline_s = transaction.version, self._info.deadline_s
        # Engines are called while the first tensors are on their way already.
        told = self._calls.begin(partial(self._update, version))
        try:
            checked = self._check_standing()
            try:
                check = partial(self._calls.check, told)
                self._put(transaction, check)
                if self._info.shards:  # another rank may give it up before engines look
                    put_checked(transaction.wait_staged, check, deadline_s)
                if not self._info.one_call:
                    self._calls.follow(told)  # the others end once the version is given up
                checked.result()
                if self._info.one_call:  # which waits for the commit
                    put_checked(transaction.decide, check, deadline_s)
            except Exception as error:
                raise _reason(self._info.ring, error, version) from error
            if not self._info.one_call:
                transaction.decide(deadline_s)
        except BaseException as error:
            transaction.abort(f"{type(error).__name__}: {error}")
            self._calls.linger(told)
            raise
        self._sent(transaction)
        return told

    def rollback(self) -> int:
        """Let all engines serve the version before the last one again; returns its number.

        On rank 0, with staging "delta", once for a version. `version` is that one then; the next
        version's number is above all that were sent. Engines need the worker extension of
        `rollring.integrations.vllm.worker`. If it raises, some may have gone back and others not;
        those that were paused stay so. The next version puts all of them on one.

        Raises:
            InvalidArgumentError: This trainer has sent no version before the last one, or an engine
                has none to go back to.
            UnsupportedError: The client has no such call.
            Exception: As the client.
        """
        check_rollback(self._calls.client)
        if self._before < 0:
            raise InvalidArgumentError(
                "there is no version to go back to: a trainer can roll its last version back, "
                "once, if it has sent another one before",
                "invalid_argument",
            )
        before, self._before = self._before, -1
        pause = Pause(self._calls, self._info.pause, self._info.ring)
        pause.begin()
        self._calls.end(self._calls.begin(lambda client: client.rollback()))
        self.version = before
        if labels_tokens():
            self._calls.end(self._calls.begin(partial(_label, before)))
        pause.end()
        return before

    def shutdown(self) -> None:
        """Leave the channel. Engines continue with their current weights."""
        if self._publisher is not None:
            self._publisher.close()
        self._checks.shutdown()

    def _check_standing(self) -> Future[None]:
        """Beside the copies, which take longer."""
        standing = self._standing
        return self._checks.submit(lambda: None if standing is None else standing.check())

    def _sent(self, transaction: WeightTransaction) -> None:
        self._before, self.version = self.version, transaction.version
        self.report = transaction.report

    def _update(self, version: int, client: Any) -> None:
        if self._info.one_call:
            client.send_version(version)
            return
        start_update(client)
        client.update_weights({"version": version})

    def _put(self, transaction: WeightTransaction, check: Callable[[], None]) -> None:
        """All tensors, as engines make room for them. `check` raises when they will not."""
        deadline_s = self._info.deadline_s
        if self._lies_still:
            put_checked(transaction.put_all, check, deadline_s)
            return
        for name, tensor in tensors_of(self.source):
            laid = tensor.detach()
            if laid.stride() != self._strides.get(name):
                laid = laid.contiguous()
            put_checked(partial(transaction.put, name, laid), check, deadline_s)


def _label(version: int, client: Any) -> None:
    """Tokens get it from now on. The session brings no weights."""
    start_update(client)
    finish(client.finish_weight_update, str(version))


def _reason(ring: str, error: BaseException, version: int | None = None) -> BaseException:
    """The reason that the engines told the channel, which says more than an HTTP status does."""
    try:
        told = refusals(ring, version)
        attached = version is None or any(engine["alive"] for engine in engines_of(ring))
    except RollringError:
        return error
    if told:
        return RejectedError("; ".join(told), "rejected")
    if not attached:
        return PeerGoneError(
            f"no engine is attached to ring {ring}, so none took version {version} ({error}): "
            "create the trainer's end again, which asks the engines to attach",
            "peer_gone",
        )
    return error
