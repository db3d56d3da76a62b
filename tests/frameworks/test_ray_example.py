"""The program that docs/ray.md begins with, on several nodes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray.cluster_utils")

import ray_world  # noqa: E402
from test_examples import EXAMPLES, run  # noqa: E402


def test_ray_rollouts(ring: str, tmp_path: Path) -> None:
    with ray_world.cluster(2) as cluster:
        program = str(EXAMPLES / "ray_rollouts.py")
        text = run(ring, tmp_path, sys.executable, program, RAY_ADDRESS=cluster.address)
    even = [float(found) for found in re.findall(r"p\(even\) = ([\d.]+)", text)]
    assert len(even) == 40 and even[-1] > 0.8 > even[0], text
