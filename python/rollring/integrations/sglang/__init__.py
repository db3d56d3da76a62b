"""The weight channel in SGLang: its custom weight loader, and the trainer's end.

    versions    sglang 0.5.23
    proven      its own files with a toy model, on a CPU; no whole server
    called by   SGLang's schedulers (`load`); a trainer of your own (`Sender`)

    python -m sglang.launch_server ... --custom-weight-loader rollring.integrations.sglang.load

    with rr.WeightPublisher("run42", model.state_dict()) as publisher:
        sender = rollring.integrations.sglang.Sender(publisher, ["http://localhost:30000"])
        sender.update(version)

SGLang calls `load` in each of its schedulers, twice a version, within its own session: once to load
the version beside the model, and once, when the trainer has committed it, to put it in place. A
loader that raises ends the server, so failures are reported through the channel. docs/sglang.md
describes failures.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import time
import urllib.error
import urllib.request
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing  # teaches the pickler tensors  # noqa: F401

from ... import RollringError, WeightPublisher, WeightSubscriber
from ...adapters import (
    LOOK_S,
    Attachment,
    TimeLeft,
    engine_versions,
    in_background,
    next_announced,
    published_tensors,
    put_checked,
    raise_if_failed,
    refusals,
    report_partial,
    report_refusal,
    torch_dtype,
)
from ...errors import (
    InvalidArgumentError,
    LayoutMismatchError,
    PeerGoneError,
    RejectedError,
    TimedOutError,
)
from ...weights import WeightUpdate
from ._loads import load_watched

__all__ = ["Sender", "load"]

_log = logging.getLogger("sglang.rollring")  # SGLang shows what its own loggers say

LOADER = "rollring.integrations.sglang.load"
STAGINGS = ("out_of_place", "in_place")


# --- the engine -----------------------------------------------------------------------------------


def load(model: torch.nn.Module, named_tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """The function that SGLang calls. `Sender` passes its command in place of a tensor's name.

    Raises:
        InvalidArgumentError: It is not a command of `Sender`.
    """
    given = list(named_tensors)
    try:
        ((text, _),) = given
        order = json.loads(text)
        step = {"stage": _Engine.stage, "adopt": _Engine.adopt}[order["step"]]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgumentError(
            f"{LOADER} accepts only commands of rollring.integrations.sglang.Sender, but received "
            f"{len(given)} tensors",
            "invalid_argument",
        ) from error
    engine = _engines.setdefault(model, _Engine(weakref.ref(model)))
    step(engine, order)


class _Engine:
    """The subscriber end for one model."""

    def __init__(self, model: Callable[[], torch.nn.Module | None]) -> None:
        self._model = model
        self._attachment = Attachment()
        self._update: WeightUpdate | None = None
        self._beside: dict[str, torch.Tensor] = {}
        self._watched = False  # whether the model's loader takes the published tensors

    def stage(self, order: Mapping[str, Any]) -> None:
        """Load the version, beside the model unless it is told otherwise."""
        deadline = order["deadline_s"]
        update = self._update = None
        channel = None
        try:
            channel = self._attachment.to(order["sender"], lambda held: self._attach(order, held))
            update = next_announced(channel, order["version"], deadline)
            while update.version < order["version"]:
                update = next_announced(channel, order["version"], deadline)
            self._check_memory(channel)
            if order["staging"] == "in_place":
                self._load(update.tensors(deadline))
            else:
                update.load(deadline)
            update.stage(deadline)
        except Exception as error:
            _log.exception("%s: version %s was not loaded", order["name"], order["version"])
            if update is not None:
                update.reject(f"{type(error).__name__}: {error}")
            else:
                report_refusal(channel, order["ring"], order["name"], error)
            return
        self._update = update

    def adopt(self, order: Mapping[str, Any]) -> None:
        """Serve the version that was staged, which the trainer has committed."""
        update, self._update = self._update, None
        if update is None or update.version != order["version"]:
            _log.error("%s: version %s was not staged here", order["name"], order["version"])
            return
        channel = update.subscriber
        try:
            self._check_memory(channel)
            update.adopt(order["deadline_s"])
        except RollringError as error:
            report_refusal(channel, order["ring"], order["name"], error)
            _log.exception("%s: version %s was not committed", order["name"], order["version"])
            return
        if order["staging"] == "in_place":
            return
        try:
            self._load(self._beside.items())
        except LayoutMismatchError as error:
            self._attachment.leave()
            report_refusal(None, order["ring"], order["name"], error)
            _log.exception("%s: version %s was not installed", order["name"], order["version"])
        except Exception as error:
            self._attachment.leave()
            report_partial(_log, order["ring"], order["name"], order["version"], error)

    def _check_memory(self, channel: WeightSubscriber) -> None:
        """SGLang's memory saver may have released the model's memory."""
        model: Any = self._model()
        channel.check_memory({**dict(model.named_parameters()), **dict(model.named_buffers())})

    def _load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        model: Any = self._model()
        with torch.no_grad():
            if self._watched:
                model.load_weights(iter(tensors))
            else:
                load_watched(model, tensors)
                self._watched = True  # the same names come with each version of this publisher
        if torch.cuda.is_available():
            torch.cuda.current_stream().synchronize()  # SGLang's forward runs on another one

    def _attach(self, order: Mapping[str, Any], held: int) -> WeightSubscriber:
        model: Any = self._model()
        device = next(model.parameters()).device
        ring, place = order["ring"], {"name": order["name"], "timeout": order["deadline_s"]}
        self._watched = False
        if order["staging"] == "in_place":
            self._beside = {}
            return WeightSubscriber(ring, device=device, held_version=held, **place)
        published = published_tensors(ring, device=device, **place)
        known, self._beside = self._beside, {}
        for name, dtype, shape in published:
            tensor = known.get(name)
            if tensor is None or (tensor.dtype, tuple(tensor.shape)) != (torch_dtype(dtype), shape):
                tensor = torch.empty(shape, dtype=torch_dtype(dtype), device=device)
            self._beside[name] = tensor
        return WeightSubscriber(ring, self._beside, in_place=False, held_version=held, **place)


_engines: weakref.WeakKeyDictionary[torch.nn.Module, _Engine] = weakref.WeakKeyDictionary()


# --- the trainer ----------------------------------------------------------------------------------


class Sender:
    """Sends versions to SGLang servers. One thread at a time.

    Args:
        publisher: Other engines may be attached to it as well.
        urls: Of the servers.
        tp_size: How many schedulers each server has.
        staging: "out_of_place": a version is loaded beside the model, which needs the model's
            memory once more on each GPU. "in_place": into the model, which is POISONED if the
            version fails.
        headers: For each request, such as an API key.

    Raises:
        InvalidArgumentError: ``staging`` is something else.
    """

    def __init__(
        self,
        publisher: WeightPublisher,
        urls: Sequence[str],
        *,
        tp_size: int = 1,
        staging: str = "out_of_place",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        if staging not in STAGINGS:
            raise InvalidArgumentError(
                f"staging '{staging}' is unknown: use one of {', '.join(STAGINGS)}",
                "invalid_argument",
            )
        self._publisher = publisher
        self._urls = [url.rstrip("/") for url in urls]
        self._staging = staging
        self._headers = dict(headers or {})
        self._sender = uuid.uuid4().hex
        # With the sender's ID, so that an engine still attached for an earlier sender does not
        # count.
        self._names = [
            [f"sglang.{server}.{rank}.{self._sender[:6]}" for rank in range(tp_size)]
            for server in range(len(self._urls))
        ]

    def update(self, version: int, timeout: float = 300.0) -> dict[str, Any]:
        """Send the publisher's tensors as they are now; all servers serve them when this returns.

        Whether generation is paused meanwhile is the caller's choice (`/pause_generation`).

        Args:
            version: Larger than any before it in the ring. It is also SGLang's own label.
            timeout: Seconds for each step.

        Returns:
            The report of `WeightPublisher.publish`.

        Raises:
            RejectedError: A server or an engine of it refused; the text says which, and why.
            PeerGoneError: An engine is gone, or did not attach; its log says why.
            TimedOutError: An engine, named in the text, has not loaded it in time.
            OSError: A server does not answer.
        """
        left = TimeLeft(timeout)
        self._open(timeout)
        try:
            asked = in_background("rollring-sglang", lambda: self._order("stage", version, timeout))
            self._wait_attached(asked, left)
            with self._publisher.begin(version) as transaction:
                put_checked(transaction.put_all, lambda: raise_if_failed(asked), timeout)
                # The channel would commit without a server that died meanwhile.
                wait([asked], left())
                raise_if_failed(asked)
                report = transaction.commit(left())
            asked.result()
            self._order("adopt", version, timeout)
            self._check_served(version)
        finally:
            self._all("/end_weight_update", {}, timeout)
        label = {"new_version": str(version), "abort_all_requests": False}
        self._all("/update_weight_version", label, timeout)
        return report

    def _open(self, timeout: float) -> None:
        """Opens a session on each server; ends one that an earlier trainer left open."""
        try:
            self._all("/begin_weight_update", {"selector": "target"}, timeout)
        except RejectedError as error:
            _log.warning(
                "the servers accept no update and are asked to end the last one: %s", error
            )
            for url in self._urls:
                try:
                    self._post(url, "/end_weight_update", {}, timeout)
                except RejectedError as none_open:
                    _log.info("%s", none_open)
            self._all("/begin_weight_update", {"selector": "target"}, timeout)

    def _order(self, step: str, version: int, timeout: float) -> None:
        order = {
            "step": step,
            "ring": self._publisher.ring,
            "sender": self._sender,
            "version": version,
            "staging": self._staging,
            "deadline_s": timeout,
        }
        bodies = [
            {
                "serialized_named_tensors": [_payload({**order, "name": name}) for name in names],
                "load_format": LOADER,
                "selector": "target",
                "flush_cache": step == "adopt",
            }
            for names in self._names
        ]
        self._all("/update_weights_from_tensor", bodies, timeout)

    def _wait_attached(self, asked: Future[None], left: TimeLeft) -> None:
        wanted = {name for names in self._names for name in names}
        while missing := wanted - self._served().keys():
            raise_if_failed(asked)
            if asked.done():
                told = refusals(self._publisher.ring)
                if told:
                    raise RejectedError("; ".join(told), "rejected")
                raise PeerGoneError(
                    f"{', '.join(sorted(missing))} did not attach; see the server's log",
                    "peer_gone",
                )
            if left() == 0:
                raise TimedOutError(f"{', '.join(sorted(missing))} did not attach", "timed_out")
            time.sleep(LOOK_S / 4)

    def _check_served(self, version: int) -> None:
        served = self._served()
        wrong = [n for names in self._names for n in names if served.get(n) != version]
        if wrong:
            told = refusals(self._publisher.ring, version)
            raise PeerGoneError(
                f"{', '.join(wrong)} did not install version {version} completely"
                f"{': ' + '; '.join(told) if told else ''}; see the server's log. The next "
                "complete version repairs it",
                "peer_gone",
            )

    def _served(self) -> dict[str, int]:
        return engine_versions(self._publisher.ring, self._publisher.rank)

    def _all(self, path: str, body: Any, timeout: float) -> None:
        """One body for all servers, or a list with one for each."""
        bodies = body if isinstance(body, list) else [body] * len(self._urls)
        with ThreadPoolExecutor(len(self._urls), "rollring-sglang") as pool:
            calls = [
                pool.submit(self._post, url, path, one, timeout)
                for url, one in zip(self._urls, bodies, strict=True)
            ]
        for call in calls:
            call.result()

    def _post(self, url: str, path: str, body: Any, timeout: float) -> None:
        request = urllib.request.Request(
            url + path,
            json.dumps(body).encode(),
            {"Content-Type": "application/json", **self._headers},
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout + 30) as answer:
                answer.read()
        except urllib.error.HTTPError as error:
            text = error.read().decode(errors="replace")
            raise RejectedError(f"{url}{path}: {error.code}: {text}", "rejected") from None


def _payload(order: Mapping[str, Any]) -> str:
    """In the form of SGLang's serializer; an empty tensor needs no shared memory."""
    made = io.BytesIO()
    ForkingPickler(made).dump([(json.dumps(order), torch.empty(0, dtype=torch.uint8))])
    return base64.b64encode(made.getvalue()).decode()
