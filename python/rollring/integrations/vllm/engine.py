"""The engine's end of the weight channel in vLLM: `--weight-transfer-config '{"backend": ...}'`.

start     nothing is touched
update    the version is loaded beside the model, or into it, and staged
(the trainer commits it, once all engines of the channel have staged it)
finish    the version is adopted, and the weights beside it are copied into the model
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from vllm.config import set_current_vllm_config
from vllm.distributed.weight_transfer.base import WeightTransferEngine

from ... import WeightSubscriber
from ...adapters import (
    HeldVersion,
    next_announced,
    published_shards,
    published_tensors,
    report_partial,
    report_refusal,
    torch_dtype,
    warn_if_poisoned,
)
from ...errors import (
    InvalidArgumentError,
    PeerGoneError,
    UnsupportedError,
    VersionAbortedError,
)
from . import _generation as _generation  # refuses a vLLM that is too old
from ._beside import Beside, refuse_asleep
from ._infos import RollringInitInfo, RollringUpdateInfo
from ._model import LoadedModel
from ._peers import Peers
from ._shards import Taken, described
from ._staging import check_engine, has_room_beside
from ._witness import Witness

if TYPE_CHECKING:
    from ...weights import WeightLayout, WeightUpdate

_log = logging.getLogger("vllm.rollring")  # vLLM shows what its own loggers say


class RollringEngine(WeightTransferEngine[RollringInitInfo, RollringUpdateInfo]):
    """Made by vLLM, one for each worker; called by its main thread."""

    init_info_cls = RollringInitInfo
    update_info_cls = RollringUpdateInfo
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: torch.device, model: Any) -> None:
        super().__init__(config, vllm_config, device, model)
        self._info: RollringInitInfo | None = None
        self._model: LoadedModel | None = None
        self._channel: WeightSubscriber | None = None
        self._shards: WeightLayout | None = None  # of all ranks of a trainer that publishes them
        self._update: WeightUpdate | None = None
        self._served = -1
        self._before = -1  # the version that was served before
        self._held = HeldVersion()
        self._peers = Peers(self.parallel_config)
        self._is_open = False  # vLLM's update: vLLM refuses another one meanwhile
        self._witness = Witness(model, device, lambda: self._by_difference)
        self._sleeps = device.type == "cuda" and bool(
            getattr(self.model_config, "enable_sleep_mode", False)
        )
        self._beside = Beside(self._sleeps, lambda: self._update is not None)

    # --- vLLM's calls -----------------------------------------------------------------------------

    def init_transfer_engine(self, init_info: RollringInitInfo) -> None:
        """Attach to the trainer's channel, also a restarted trainer's, and plan the copies.

        Of several workers, the last one raises if the trainer before has left an update open: see
        `calls.attach`.
        """
        with self._peers.quietly():
            if not init_info.ends_update:
                self._info = init_info
                self._leave()
                self._attach_jointly(init_info)
            else:  # the call before has attached this engine, or it has failed
                self._peers.jointly(lambda: int(self._attached().closed))
            left_open = self._peers.one_has(self._is_open, but_the_last=True)
            if left_open != init_info.ends_update:
                raise InvalidArgumentError(
                    f"{'an' if left_open else 'no'} update was left open", "invalid_argument"
                )

    def _attach_jointly(self, init_info: RollringInitInfo) -> None:
        def look() -> int:
            with self._refusals_told():
                check_engine(init_info.staging, self.device, self.parallel_config)
                self._shards = published_shards(
                    init_info.ring, name=self._name, timeout=init_info.deadline_s
                )
            return int(self._shards is not None)

        def attach() -> int:
            with self._refusals_told():
                self._plan_and_attach(init_info, not in_place)
            return 0

        try:
            # One that loads in place can leave a mixture: the others load in place as well then.
            sharded = self._peers.jointly(look)
            in_place = not sharded and self._peers.one_has(not self._out_of_place())
            self._peers.jointly(attach)
        except BaseException:
            self._leave()
            raise

    def _plan_and_attach(self, init_info: RollringInitInfo, out_of_place: bool) -> None:
        self._awake()
        shards = None
        if self._shards is not None:
            published = described(self._shards)
            shards = Taken(self._shards, self.parallel_config.rank)
        else:
            found = published_tensors(
                init_info.ring, device=self.device, name=self._name, timeout=init_info.deadline_s
            )
            published = [(name, torch_dtype(dtype), shape) for name, dtype, shape in found]
        with set_current_vllm_config(self.vllm_config):
            if self._model is None:
                self._model = LoadedModel(
                    self.model, self.model_config, out_of_place, self._beside.region
                )
            self._model.out_of_place = out_of_place
            self._model.plan(published, shards)
        self._beside.forget()  # memory of another plan
        if self.device.type == "cuda":
            torch.cuda.empty_cache()  # memory of the trial copies
        self._attach()

    def start_weight_update(self) -> None:
        if not self._peers.several:  # of several, all refuse the update, or none does
            with self._refusals_told():
                self._awake()
                self._attached()
        if self._update is not None:
            self._drop("another one has started")
        self._is_open = True

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # The base class waits for the whole device afterwards; staging has waited for ours.
        with self._updating():
            self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: RollringUpdateInfo) -> None:
        """Load the version and stage it: the engine serves the one before meanwhile."""
        with self._updating():
            self._update = self._staged_by_all(update_info.version)

    @contextlib.contextmanager
    def _updating(self) -> Iterator[None]:
        self._update = None
        try:
            with self._peers.quietly():
                yield
        except BaseException:
            self._is_open = False  # vLLM ends it
            raise

    def _staged_by_all(self, version: int) -> WeightUpdate:
        staged: list[WeightUpdate] = []

        def stage() -> int:
            staged.append(self._staged(version))
            return version

        try:
            self._peers.jointly(stage)
        except BaseException as error:
            for update in staged:
                update.reject(f"{error}")
                self._say_if_poisoned(self._attached(), version)
            raise
        return staged[0]

    def _staged(self, version: int) -> WeightUpdate:
        try:
            self._awake()
            channel = self._attached()
            channel.check_memory(dict(self.model.named_parameters()))
        except Exception as error:
            self._tell_refusal(error)  # other workers take the version in meanwhile: it is rejected
            raise
        assert self._info is not None and self._model is not None
        deadline = self._info.deadline_s
        update = next_announced(channel, version, deadline)
        try:
            if update.version != version:
                raise InvalidArgumentError(
                    f"the trainer announced version {version}, but version {update.version} "
                    f"arrived: do two trainers use ring {self._info.ring}?",
                    "invalid_argument",
                )
            update.load(deadline)
            self._witness.take()
            update.stage(deadline)
        except BaseException as error:
            update.reject(f"{type(error).__name__}: {error}")
            self._say_if_poisoned(channel, update.version)
            raise
        return update

    def finish_weight_update(self) -> None:
        """Serve the version that was staged. Nothing, if none was: a session that was given up."""
        update, self._update = self._update, None
        if update is not None:
            with self._peers.quietly():
                self._serve(update)
        self._is_open = False

    def _serve(self, update: WeightUpdate) -> None:
        assert self._info is not None and self._model is not None
        model, adopted = self._model, []

        def adopt() -> int:
            self._adopt(update)
            adopted.append(update)
            return update.version

        try:
            self._peers.jointly(adopt)
        except BaseException as error:
            if adopted:  # and another worker has not
                self._part(update.version, error, model.out_of_place and not self._writes_late)
            elif self._writes_late and self._peers.are_apart:
                self._part(update.version, error, False)
            elif not model.out_of_place and not self._writes_late:
                self._say_mixed(update.version, error)  # it lies in the model
            raise
        self._install(update.version)
        self._witness.take()
        self._before, self._served = self._served, update.version
        self._held.take(self._info.ring, update.version)

    def _install(self, version: int) -> None:
        def install() -> int:
            assert self._model is not None
            self._model.install()
            return version

        try:
            self._peers.jointly(install)
        except BaseException as error:
            self._part(version, error, False)
            raise

    def _adopt(self, update: WeightUpdate) -> None:
        with self._refusals_told():
            self._refuse_asleep()
            channel = self._attached()
        assert self._info is not None
        try:
            update.wait_committed(self._info.deadline_s)  # adopt() then only writes
            self._witness.refuse_others(update.version)
            if self._writes_late and self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # no forward pass reads the weights any more
            update.adopt(self._info.deadline_s)
        except (VersionAbortedError, PeerGoneError) as error:
            # vLLM keeps the session open now; the next finish, which has nothing to do, ends it.
            self._say_if_poisoned(channel, update.version)
            raise type(error)(
                f"version {update.version} was not committed; version {self._served} is still "
                f"served: {error}",
                error.code,
            ) from error

    def _part(self, version: int, error: BaseException, whole: bool) -> None:
        """Leave the channel, which counts this worker. `whole`: the version before is intact."""
        self._leave()
        self._tell_refusal(error) if whole else self._say_mixed(version, error)

    def _say_mixed(self, version: int, error: BaseException) -> None:
        self._served = -1
        if self._info is not None:
            report_partial(_log, self._info.ring, self._name, version, error)

    # --- ours, by the worker extension ------------------------------------------------------------

    def rollback(self) -> int:
        """Serve the version before the last one again; returns its number.

        Raises:
            InvalidArgumentError: There is none to go back to: the engine was not attached with
                staging "delta", or has served no version before, or has gone back already.
            BusyError: A version is being taken in.
        """
        with self._peers.quietly():
            self._go_back()
        return self._served

    def _go_back(self) -> None:
        before = self._before

        def check() -> int:
            self._refuse_asleep()
            self._attached()
            if self._by_difference and before < 0:
                raise InvalidArgumentError(
                    f"there is no version to go back to: {self._name} served none of this channel "
                    f"before version {self._served}",
                    "invalid_argument",
                )
            self._witness.refuse_others(self._served)
            return before + 1

        def go_back() -> int:
            self._attached().rollback()
            return 0

        self._peers.jointly(check)
        try:
            self._peers.jointly(go_back)
        except BaseException as error:
            if self._peers.are_apart:
                self._part(before, error, False)
            raise
        self._install(before)
        assert self._info is not None
        self._served, self._before = before, -1
        self._held.take(self._info.ring, before)

    def shutdown(self) -> None:
        self._leave()

    @staticmethod
    def trainer_send_weights(iterator: Iterator[Any], trainer_args: Any) -> None:
        """vLLM 0.26 wants it of every engine's class, for backends without a trainer's end."""
        raise UnsupportedError(
            "the backend 'rollring' has a trainer's end: use rollring.integrations.vllm.trainer",
            "unsupported",
        )

    # --- the channel ------------------------------------------------------------------------------

    @property
    def _name(self) -> str:
        return f"vllm.{os.getpid()}.{self.parallel_config.rank}"

    def _attach(self) -> None:
        assert self._info is not None and self._model is not None
        self._leave()
        if self._held.of(self._info.ring) != self._served:
            self._served = -1
        self._channel = WeightSubscriber(
            self._info.ring,
            self._model.into,
            name=self._name,
            in_place=not self._model.out_of_place,
            held_version=self._served,
            staging="delta" if self._by_difference else "copy",
            delta_fallback="beside",  # a model that serves is not written to before the commit
            layout=self._model.layout,
            stage_remote=not self._sleeps,  # it would stay on the GPU of an engine that sleeps
            timeout=self._info.deadline_s,
        )
        _log.info(
            "vLLM engine %s: %d modules of ring %s are written directly, %d by their loaders, from "
            "%s; %.1f MB beside the model",
            self._name,
            len(self._model.direct),
            self._info.ring,
            len(self._model.reasons),
            "whole tensors" if self._shards is None else "the trainer's shards",
            (self._model.bytes_beside + self._channel.staging_bytes) / 1e6,
        )

    def _attached(self) -> WeightSubscriber:
        if self._channel is None or self._channel.closed:
            raise PeerGoneError(
                "this engine is not attached to a trainer: call init_weight_transfer_engine with "
                'the name of the ring ({"ring": ...})',
                "peer_gone",
            )
        return self._channel

    def _leave(self) -> None:
        self._update = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _tell_refusal(self, error: BaseException) -> None:
        if self._info is not None:
            report_refusal(self._channel, self._info.ring, self._name, error)

    @contextlib.contextmanager
    def _refusals_told(self) -> Iterator[None]:
        """The trainer hears of them from vLLM as an HTTP status alone."""
        try:
            yield
        except Exception as error:
            self._tell_refusal(error)
            raise

    def _drop(self, why: str) -> None:
        update, self._update = self._update, None
        if update is not None:
            update.reject(why)

    def _say_if_poisoned(self, channel: WeightSubscriber, version: int) -> None:
        if warn_if_poisoned(_log, channel, version):
            self._served = -1

    # --- the engine -------------------------------------------------------------------------------

    @property
    def _by_difference(self) -> bool:
        return self._info is not None and self._info.staging == "delta"

    @property
    def _writes_late(self) -> bool:
        """Whether the model is written where it is served from, behind the commit."""
        return self._by_difference or self._shards is not None

    def _out_of_place(self) -> bool:
        assert self._info is not None
        if self._info.staging != "auto":
            return self._info.staging == "out_of_place"
        if self._model is not None:  # its memory beside the model counts as taken now
            return self._model.out_of_place
        return has_room_beside(self.model, self.device)

    def _awake(self) -> None:
        """Have the memory that a version is written to."""
        self._refuse_asleep()
        if self._beside.take_back() and self._model is not None:
            self._model.refill()

    def _refuse_asleep(self) -> None:
        if self.device.type == "cuda":
            refuse_asleep()
