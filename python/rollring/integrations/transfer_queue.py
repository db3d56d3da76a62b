"""TransferQueue's storage backend "Rollring": its rows in a `Store` of the machine.

    versions    transferqueue 0.1.11, verl 0.9.1, torch 2.13.0
    proven      its own suites and verl's replay buffer, on a CPU
    called by   TransferQueue's clients and controller

    transfer_queue.backend.storage_backend=Rollring
    +transfer_queue.backend.Rollring.capacity=16GiB

verl finds this module by its entry point, and the process that starts TransferQueue sends its name
with the configuration: every process that calls ``transfer_queue.init()`` then knows the backend.
Elsewhere, import it before that call in the process that is the first to make it.

    put      each row of each column is one value of the store, under TransferQueue's own index and
             the column; the controller keeps its location
    get      rows are read into the tensor that TransferQueue hands out, and nothing is copied twice
    clear    whole rows by their index, so that rows of a worker that died before it reported to the
             controller are cleared, too

docs/transfer_queue.md describes failures.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from transfer_queue.storage.bootstrap import StorageBootstrapProvider
from transfer_queue.storage.clients.base import StorageClientFactory, StorageKVClient
from transfer_queue.storage.managers.base import KVStorageManager, StorageManagerFactory

from ..errors import InvalidArgumentError, NotFoundError, NotStoredError
from ..extras import PickleCodec, PlainCodec, Store

__all__ = ["RollringClient", "RollringManager"]

NAME = "Rollring"


class _Rows:
    """Codec of rows that are not tensors: plain data by PlainCodec, everything else pickled, as
    TransferQueue does.
    """

    _PLAIN, _PICKLED = b"\0" * 8, b"\1" * 8

    def __init__(self) -> None:
        self._plain, self._pickle = PlainCodec(), PickleCodec()

    def encode(self, item: Any, /) -> bytes:
        # PlainCodec gives numpy's scalars and arrays back as they were, but for their subclasses.
        try:
            return bytes(self._plain.encode(item)) + self._PLAIN
        except (TypeError, ValueError, OverflowError):
            return bytes(self._pickle.encode(item)) + self._PICKLED

    def decode(self, data: memoryview, /) -> Any:
        codec = self._plain if data[-8:] == self._PLAIN else self._pickle
        return codec.decode(data[:-8])


class _Registrar:
    """Part of the configuration: unpickling it imports this module."""

    def __reduce__(self) -> Any:
        return _Registrar, ()


_made: dict[str, Store] = {}  # by this process


def _boot(conf: Any) -> dict[str, str]:
    """Makes the store, in the process that starts TransferQueue."""
    own = conf.backend[NAME]
    name = own.get("name") or f"tq-{uuid.uuid4().hex[:12]}"
    _made[name] = Store(
        name,
        capacity=own.get("capacity", "8GiB"),
        lanes=int(own.get("lanes", 64)),
        process="TransferQueue",
    )
    own.name, own.host = name, socket.gethostname()
    own._set_flag("allow_objects", True)
    own.registrar = _Registrar()
    return {"name": name}


StorageBootstrapProvider.register_provider(NAME)(_boot)


class Columns(dict[str, Any]):
    """The columns of a put, in the order of its keys."""


@StorageClientFactory.register("RollringClient")
class RollringClient(StorageKVClient):  # type: ignore[misc]
    """One in each process. Its configuration has name, host, and timeout, the seconds that a put
    waits for room (60).
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        if config["host"] != socket.gethostname():
            raise InvalidArgumentError(
                f"the rows of TransferQueue's backend {NAME} are in the memory of "
                f"{config['host']}, but this process runs on {socket.gethostname()}: it works "
                "on one machine"
            )
        self._timeout = float(config.get("timeout", 60.0))
        self.store = Store(config["name"], make=False, codec=_Rows(), process="TransferQueue")

    def put(self, keys: list[str], values: list[Any] | Columns) -> list[Any]:
        if isinstance(values, Columns):
            rows = [key.partition("@")[0] for key in keys[: len(keys) // len(values)]]
            made = self.store.put_columns(values, keys=rows, timeout=self._timeout)
            return list(itertools.chain.from_iterable(made.values()))
        cells = [(row, field) for row, _, field in (key.partition("@") for key in keys)]
        return list(self.store.put_all(values, keys=cells, timeout=self._timeout))

    def get(
        self,
        keys: list[str],
        shapes: Any = None,
        dtypes: Any = None,
        custom_backend_meta: Sequence[int | None] | None = None,
    ) -> list[Any]:
        at = places(keys, custom_backend_meta)
        with named(keys, at, self.store):
            return self.store.get_all(at)

    def clear(self, keys: list[str], custom_backend_meta: Any = None) -> None:
        at = [place for place in custom_backend_meta or () if place is not None]
        self.store.clear(at, timeout=self._timeout)

    def clear_rows(self, rows: Iterable[int]) -> None:
        self.store.clear_keys(map(str, rows), timeout=self._timeout)

    def close(self) -> None:
        self.store.close()


def places(keys: Sequence[str], meta: Sequence[int | None] | None) -> list[int]:
    """Where the values of keys lie.

    Raises:
        NotStoredError: One was never put; it is named.
    """
    at = list(meta) if meta is not None else [None] * len(keys)
    for key, place in zip(keys, at, strict=True):
        if place is None:
            raise NotStoredError(f"TransferQueue has no value for {key!r}", "not_stored")
    return [place for place in at if place is not None]


@contextlib.contextmanager
def named(keys: Sequence[str], at: Sequence[int], store: Store) -> Any:
    """Adds the missing keys to the error."""
    try:
        yield
    except NotStoredError as error:
        gone = [key for key, place in zip(keys, at, strict=True) if place not in store]
        text = f"{error}; of TransferQueue's keys {', '.join(gone[:8]) or 'none by now'}"
        raise NotStoredError(text, "not_stored") from None


@StorageManagerFactory.register(NAME)
class RollringManager(KVStorageManager):  # type: ignore[misc]
    """Puts whole columns, and reads columns of tensors straight into TransferQueue's results:
    nested tensors with the jagged layout, as its own manager makes of rows.
    """

    def __init__(self, controller_info: Any, config: Any, zmq_context: Any = None) -> None:
        own = {**config, "client_name": "RollringClient"}
        super().__init__(controller_info, own, zmq_context=zmq_context)

    @staticmethod
    def _generate_values(data: TensorDict) -> Any:
        # As they are, where its own manager takes each column apart.
        return Columns({str(field): data[field] for field in sorted(data.keys())})

    async def get_data(self, metadata: Any) -> TensorDict:
        if not metadata.field_names:
            return await super().get_data(metadata)
        fields = sorted(metadata.field_names)
        store: Store = self.storage_client.store
        made: dict[str, Any] = {}
        values: list[Any] = []
        for field in fields:
            keys = self._generate_keys([field], metadata.global_indexes)
            at = places(keys, [row.get(field) for row in metadata._custom_backend_meta])
            with named(keys, at, store):
                column = joined(store, at)
                if column is not None:
                    made[field] = column
                else:
                    values += store.get_all(at)
        if values:
            of_rest = metadata.select_fields([field for field in fields if field not in made])
            made |= dict(self._merge_tensors_to_tensordict(of_rest, values).items())
        rows = len(metadata.global_indexes)
        return TensorDict({field: made[field] for field in fields}, batch_size=rows)

    async def clear_data(self, metadata: Any) -> None:
        # `metadata` names only columns that all rows have, so whole rows are cleared by index.
        self.storage_client.clear_rows(metadata.global_indexes)

    def close(self) -> None:
        super().close()
        client = getattr(self, "storage_client", None)
        if client is None:
            return
        client.close()
        mine = _made.pop(client.store.name, None)
        if mine is not None:
            mine.close()
            with contextlib.suppress(NotFoundError):
                Store.remove(mine.name, force=True)


def joined(store: Store, at: Sequence[int]) -> Any:
    """A column joined into one tensor (nested unless scalar); None if that is impossible."""
    both = store.get_joined(at)
    if both is None or not isinstance(both[0], torch.Tensor):
        return None
    values, offsets = both
    if offsets is None:
        return values
    lengths = np.diff(offsets)
    return torch.nested.nested_tensor_from_jagged(
        values,
        torch.from_numpy(offsets),
        min_seqlen=int(lengths.min()),
        max_seqlen=int(lengths.max()),
    )
