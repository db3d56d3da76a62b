#!/usr/bin/env python3
"""Installs rollring into an empty prefix, builds the README's programs outside the tree with
nothing but pkg-config, and runs them against each other. Also: the README shows exactly them."""

import os
import pathlib
import subprocess
import sys
import tempfile

os.environ.pop("LD_LIBRARY_PATH", None)  # Meson points it at the build tree
source, build, rollring = (pathlib.Path(arg).resolve() for arg in sys.argv[1:4])
PROGRAMS = ("producer", "consumer", "trainer", "trainer_weights", "engine_weights")


def run(*command, **options):
    return subprocess.run(command, check=True, text=True, capture_output=True, **options).stdout


def check_readme():
    readme = (source / "README.md").read_text()
    for name in PROGRAMS:
        code = (source / "examples" / f"{name}.cpp").read_text()
        if f"```cpp\n{code}```" not in readme:
            sys.exit(f"README.md does not show examples/{name}.cpp as it is")


def main():
    check_readme()
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = pathlib.Path(scratch_name)
        run("meson", "install", "-C", build, "--no-rebuild", "--destdir", scratch / "root")
        (config,) = (scratch / "root").rglob("rollring.pc")
        library = config.parent.parent
        environment = dict(
            os.environ,
            PKG_CONFIG_PATH=str(config.parent),
            PKG_CONFIG_SYSROOT_DIR=str(scratch / "root"),
        )
        flags = run("pkg-config", "--cflags", "--libs", "rollring", env=environment).split()
        for name in PROGRAMS:
            run(
                "g++", "-std=c++23", "-Wall", "-Wextra", "-Werror",
                source / "examples" / f"{name}.cpp", "-o", scratch / name, *flags,
                f"-Wl,-rpath,{library}",
            )
        subprocess.run([rollring, "rm", "--force", "quickstart"], capture_output=True, check=False)
        run(rollring, "create", "quickstart")
        try:
            for reader, suffix in (("consumer", "last logprob -0.5"), ("trainer", "advantage 0")):
                with subprocess.Popen([scratch / "producer"]) as producer:
                    output = run(scratch / reader)
                if producer.returncode != 0:
                    sys.exit(f"producer: exit {producer.returncode}")
                wanted = [f"gsm8k/train/17 #{i}: 5 tokens, {suffix}" for i in range(4)]
                if output.splitlines() != wanted:
                    sys.exit(f"{reader}: unexpected output:\n{output}")
            with subprocess.Popen([scratch / "trainer_weights"], text=True,
                                  stdout=subprocess.PIPE) as trainer:
                output = run(scratch / "engine_weights")
                said = trainer.stdout.read()
            if trainer.returncode != 0 or said != "committed version 1, 524544 bytes\n":
                sys.exit(f"trainer_weights: exit {trainer.returncode}: {said}")
            if output != "serves version 1, bias 42\n":
                sys.exit(f"engine_weights: unexpected output:\n{output}")
        finally:
            run(rollring, "rm", "--force", "quickstart")
    print("installed, built outside the tree, 4 records arrived, and as a group; so did weights")


main()
