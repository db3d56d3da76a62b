#!/usr/bin/env python3
"""Installs rollring into an empty prefix, builds the programs of examples/ outside the tree with
nothing but pkg-config, and runs them against each other. Also: README.md and the pages of docs/
show exactly them, the README's quickstart has its promised output when it is pasted, CMake finds
the package, man pages and completion know every option, and nvcc takes the headers."""

import contextlib
import fcntl
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import pages  # noqa: E402

os.environ.pop("LD_LIBRARY_PATH", None)  # Meson points it at the build tree
source, build, rollring = (pathlib.Path(arg).resolve() for arg in sys.argv[1:4])
PROGRAMS = ("producer", "consumer", "trainer", "gather", "share", "trainer_weights",
            "engine_weights", "requests")


def run(*command, **options):
    return subprocess.run(command, check=True, text=True, capture_output=True, **options).stdout


def check_shown():
    """Each program is shown once as a whole, and any other C++ that is shown is lines of one."""
    programs = {name: (source / "examples" / f"{name}.cpp").read_text() for name in PROGRAMS}
    whole = []
    for page in (source / "README.md", *sorted((source / "docs").glob("*.md"))):
        text = page.read_text()
        for code in re.findall(r"^```cpp\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE):
            if code in programs.values():
                whole += [name for name, program in programs.items() if program == code]
            elif not any(is_part(code, program) for program in programs.values()):
                sys.exit(f"{page.name} shows what no file of examples/ has:\n{code}")
    if sorted(whole) != sorted(PROGRAMS):
        sys.exit(f"README.md and docs/ together show as they are: {whole}")


def is_part(code, program):
    """Whether `code` is a run of whole lines of `program`, but for their indentation."""
    wanted = code.splitlines()
    lines = program.splitlines()
    return any(textwrap.dedent("\n".join(lines[at:at + len(wanted)])).splitlines() == wanted
               for at in range(len(lines) - len(wanted) + 1))


def check_pages(root):
    """Every option of every command is in its man page, and completed."""
    (top,) = root.rglob("rollring.1")
    (completion,) = root.rglob("rollring.bash")
    commands = re.findall(r"^  (\w+) {2,}", run(rollring, "--help").split("Subcommands:")[1]
                          .split("\n\n")[0], flags=re.MULTILINE)
    if len(commands) < 10:
        sys.exit(f"commands of --help: {commands}")
    for command in commands:
        flags = re.findall(r"^  (?:-\w,)?(--[a-z-]+)", run(rollring, command, "--help"),
                           flags=re.MULTILINE)
        page = top.with_name(f"rollring-{command}.1").read_text().replace("\\-", "-")
        missing = [flag for flag in flags if flag not in page]
        offered = complete(completion, "rollring", command, "--").split()
        missing += [flag for flag in flags if flag not in offered]
        if missing or len(flags) < 1:
            sys.exit(f"{command}: no man page or completion for {missing}")
    if complete(completion, "rollring", "consume", "--select", "f") != "first\n":
        sys.exit("the words of --select are not completed")
    if complete(completion, "rollring", "wei") != "weights\n":
        sys.exit("commands are not completed")


def check_other_shells(root):
    """zsh and fish find theirs, and the program's page says what it is in one line."""
    (zsh,), (fish,) = root.rglob("_rollring"), root.rglob("rollring.fish")
    if zsh.parent.name != "site-functions" or fish.parent.name != "vendor_completions.d":
        sys.exit(f"completions of zsh and fish: {zsh}, {fish}")
    shutil.copy(zsh, fish.parent)
    print(run(source / "tests/install/completions.py", fish.parent, rollring))
    (top,) = root.rglob("rollring.1")
    name = re.search(r"^\.SH NAME\n(.*)", top.read_text(), flags=re.MULTILINE)[1]
    if name != r"rollring \- Move RL rollouts from generators to a trainer through shared memory":
        sys.exit(f"NAME of rollring(1): {name}")


def complete(script, *words):
    quoted = " ".join(f"'{word}'" for word in words)
    return run("bash", "-c", f"source {script}; COMP_WORDS=({quoted}); "
               f"COMP_CWORD={len(words) - 1}; _rollring; echo ${{COMPREPLY[@]}}")


def check_installed(root):
    (config,) = root.rglob("rollring.pc")
    docs = config.parents[3] / "share" / "doc" / "rollring"
    if not docs.is_dir():
        (docs,) = root.rglob("doc/rollring")
    for name in ("LICENSE", "docs/using.md", *(f"examples/{name}.cpp" for name in PROGRAMS)):
        if not (docs / name).is_file():
            sys.exit(f"{name} is not installed")


def check_cmake(scratch, library, environment):
    if shutil.which("cmake") is None or shutil.which("make") is None:
        print("no cmake: its package file is not tried")
        return
    project = scratch / "cmake"
    project.mkdir()
    series = re.search(r"^  version: '(\d+\.\d+)\.", (source / "meson.build").read_text(),
                       flags=re.MULTILINE)[1]
    (project / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.20)\n"
        "project(other CXX)\n"
        f"find_package(rollring {series} REQUIRED)\n"
        f"add_executable(consumer {source}/examples/consumer.cpp)\n"
        "target_link_libraries(consumer rollring::rollring)\n")
    run("cmake", "-G", "Unix Makefiles", "-S", project, "-B", project / "build",
        f"-Drollring_DIR={library}/cmake/rollring", env=environment)
    run("cmake", "--build", project / "build", env=environment)
    done = subprocess.run([project / "build" / "consumer"], text=True, capture_output=True,
                          check=False)
    if "quickstart" not in done.stderr:  # there is no such ring: it says so
        sys.exit(f"built by cmake: {done}")


def check_nvcc(scratch, flags):
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        print("no nvcc: the headers are not tried with it")
        return
    (scratch / "kernel.cu").write_text(KERNEL)
    compile_flags = [flag for flag in flags if flag.startswith("-I")]
    run(nvcc, "-std=c++20", "-Xcompiler", "-std=c++23", *compile_flags, "-c",
        scratch / "kernel.cu", "-o", scratch / "kernel.o")


KERNEL = """#include <rollring/error.hpp>
#include <rollring/extras/memory_domain.hpp>
#include <rollring/time.hpp>
#include <rollring/weights.hpp>
__global__ void scale(float* values) { values[threadIdx.x] *= 2; }
rollring::Result<int> step(float* values, rollring::Publisher& publisher) {
    scale<<<1, 32>>>(values);
    auto version = publisher.begin(1);
    if (!version) return std::unexpected(version.error());
    return 1;
}
"""


def advantage(repetition):
    """Of the rewards 0, 1, 0, 1: half a reward, divided by their deviation, sqrt(1 / 3)."""
    return f"advantage {'' if repetition % 2 else '-'}0.865875"


def check_quickstart(scratch, root, library, environment):
    """Pastes the README's quickstart, behind the installation, line by line."""
    (block,) = pages.named("./dev fresh", "quickstart", source)
    place = scratch / "pasted"
    place.mkdir()
    shutil.copytree(source / "examples", place / "examples")
    (program,) = (path for path in root.rglob("bin/rollring"))
    environment = dict(environment, PATH=f"{program.parent}:{os.environ['PATH']}",
                       LD_LIBRARY_PATH=str(library))
    said = run("bash", "-euc", block.text, cwd=place, env=environment)
    tokens = "gsm8k/train/17 #{}: 5 tokens, {}\n"
    read = "".join(tokens.format(i, "last logprob -0.5") for i in range(4))
    trained = "".join(tokens.format(i, advantage(i)) for i in range(4))
    wanted = read + trained + trained  # a third producer sends the rest
    created = 2  # lines: the created objects, and the reason for their size
    if not said.endswith(wanted) or said.count("\n") != wanted.count("\n") + created:
        sys.exit(f"the quickstart says:\n{said}\nnot:\n{wanted}")


@contextlib.contextmanager
def alone_with_the_name():
    """The programs name their ring, so that runs on one machine come to it one after another."""
    place = pathlib.Path(tempfile.gettempdir()) / f"rollring-quickstart-{os.getuid()}"
    with place.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main():
    check_shown()
    with alone_with_the_name(), tempfile.TemporaryDirectory() as scratch_name:
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
        check_installed(scratch / "root")
        check_pages(scratch / "root")
        check_other_shells(scratch / "root")
        check_cmake(scratch, library, environment)
        check_nvcc(scratch, flags)
        check_quickstart(scratch, scratch / "root", library, environment)
        run(rollring, "create", "quickstart")
        try:
            for reader, said in (("consumer", lambda i: "last logprob -0.5"),
                                 ("trainer", advantage)):
                with subprocess.Popen([scratch / "producer"]) as producer:
                    output = run(scratch / reader)
                if producer.returncode != 0:
                    sys.exit(f"producer: exit {producer.returncode}")
                wanted = [f"gsm8k/train/17 #{i}: 5 tokens, {said(i)}" for i in range(4)]
                if output.splitlines() != wanted:
                    sys.exit(f"{reader}: unexpected output:\n{output}")
            for visit, (reader, wanted) in enumerate((
                    ("gather", "32 elements, the first row ends with 102\n"),
                    ("share", "rank 0: 10 tokens\nrank 1: 10 tokens\n")), start=1):
                run(scratch / "producer", str(visit))
                output = run(scratch / reader)
                if output != wanted:
                    sys.exit(f"{reader}: unexpected output:\n{output}")
            with subprocess.Popen([scratch / "trainer_weights"], text=True,
                                  stdout=subprocess.PIPE) as trainer:
                output = run(scratch / "engine_weights")
                said = trainer.stdout.read()
            if trainer.returncode != 0 or said != "committed version 1, 524544 bytes\n":
                sys.exit(f"trainer_weights: exit {trainer.returncode}: {said}")
            if output != "serves version 1, bias 42\n":
                sys.exit(f"engine_weights: unexpected output:\n{output}")
            output = run(scratch / "requests")
            if output != "attempt 0, 6 bytes\n":
                sys.exit(f"requests: unexpected output:\n{output}")
        finally:
            run(rollring, "rm", "--force", "quickstart")
    print("installed, built outside the tree, 4 records arrived, and as a group; so did weights")


main()
