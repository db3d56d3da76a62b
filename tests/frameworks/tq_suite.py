"""pytest -p tq_suite: TransferQueue's own end-to-end suites know the backend "Rollring"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ray

import rollring.integrations.transfer_queue  # noqa: F401

CONFIG = {
    "controller": {"polling_mode": True},
    "backend": {
        "storage_backend": "Rollring",
        "Rollring": {"capacity": "64MiB", "lanes": 16},
    },
}


def pytest_collection_modifyitems(items: list[Any]) -> None:
    for module in {item.module for item in items}:
        module.BACKEND_CONFIGS["Rollring"] = CONFIG


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    """With more CPUs than there may be: the suites' own actors would wait for theirs for ever."""
    ray.init(
        num_cpus=8,
        include_dashboard=False,
        object_store_memory=100_000_000,
        log_to_driver=False,
        ignore_reinit_error=True,
    )
    yield
    ray.shutdown()
