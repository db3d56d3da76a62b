"""docker/: the image's steps and the pod, as far as they can be tried without a Docker engine."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
INSTRUCTIONS = {"FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR", "CMD"}


def steps() -> list[tuple[str, str]]:
    """Instructions of the Dockerfile, with their lines joined."""
    text = (ROOT / "docker/Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.split("\n") if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").split("\n")
    parts = [line.partition(" ") for line in joined if line]
    return [(word, rest.strip()) for word, _, rest in parts]


def packages_of_dev(name: str) -> set[str]:
    text = (ROOT / "dev").read_text(encoding="utf-8")
    found = re.search(rf"^{name}=\((.*?)\)", text, re.M | re.S)
    assert found is not None
    return set(found.group(1).split())


def installed(step: str) -> set[str]:
    words = shlex.split(step.split("apt-get install", 1)[1].split("&&")[0])
    return {word for word in words if not word.startswith("-")}


def test_the_image_is_built_of_known_steps() -> None:
    found = steps()
    assert {word for word, _ in found} <= INSTRUCTIONS
    assert [word for word, _ in found].count("FROM") == 2
    for word, rest in found:
        if word == "COPY" and not rest.startswith("--from="):
            assert (ROOT / rest.split()[0]).exists()
        if word == "RUN":
            subprocess.run(["sh", "-n", "-c", rest], check=True)


def test_the_image_installs_what_a_build_needs() -> None:
    builds = [rest for word, rest in steps() if word == "RUN" and "apt-get install" in rest]
    needed = packages_of_dev("program_packages") | packages_of_dev("python_packages")
    assert installed(builds[0]) == needed


def test_the_images_program_has_a_rule_for_each_file(tmp_path: Path) -> None:
    for tool in ("meson", "ninja", "c++"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not here")
    (step,) = (rest for word, rest in steps() if word == "RUN" and "meson setup" in rest)
    setup = shlex.split(step.split("&&")[0])
    setup[setup.index("build-image")] = str(tmp_path / "image")
    subprocess.run(setup, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    plan = subprocess.run(
        ["ninja", "-n", "-C", str(tmp_path / "image")], stdout=subprocess.PIPE, text=True
    )
    assert plan.returncode == 0, plan.stdout[-2000:]


def container_user() -> str:
    return next(rest for word, rest in reversed(steps()) if word == "USER")


def pod() -> Any:
    return yaml.safe_load((ROOT / "docker/pod.yaml").read_text(encoding="utf-8"))["spec"]


def test_containers_of_the_pod_share_one_memory_volume() -> None:
    spec = pod()
    (volume,) = spec["volumes"]
    assert volume["emptyDir"]["medium"] == "Memory"
    assert len(spec["containers"]) == 2
    for container in spec["containers"]:
        assert container["volumeMounts"] == [{"name": volume["name"], "mountPath": "/dev/shm"}]
        assert "securityContext" not in container  # one user for all
    assert str(spec["securityContext"]["runAsUser"]) == container_user()

