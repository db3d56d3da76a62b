"""The commands of the pages on a bare Debian 12, pasted as they stand: ./dev fresh [--quick].

Each step is a block of a page that its mark names `run by ./dev fresh (NAME)`, in the order in
which a newcomer comes to them. All steps work in one copy of the bare system, in a clone of HEAD.
"""
import argparse
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tools"))

import pages  # noqa: E402
from bare_root import BareRoot, Unavailable  # noqa: E402
from tally import conclude  # noqa: E402

RUNNER = "./dev fresh"
FOLDER = pages.ROOT / ".cache/fresh"
LOGS = FOLDER / "logs"
BEAT_S = 30  # between signs of life of a long step
TOLD_LINES = 120  # of the log of a step that failed: the log is gone with a machine of CI


@dataclass(frozen=True)
class Step:
    title: str
    script: str
    given: str | None = None  # the folder that another bare machine has instead of a clone


def as_script(block):
    """The block as a shell takes it; Python code is a file's, as processes import it."""
    if block.language == "sh":
        return block.text
    if block.language == "python":
        return f"cat >~/pasted.py <<'PASTED'\n{block.text}PASTED\npython ~/pasted.py\n"
    raise ValueError(f"{block}: no step knows how to run '{block.language}'")


def commands(quick):
    """The README's two commands, a step each."""
    for block in pages.named(RUNNER, "commands"):
        for line in filter(None, block.text.splitlines()):
            if quick:
                line = re.sub(r"^(\./dev test)\b(?! --)", r"\1 --quick", line)
            yield Step(line.split("#")[0].strip(), line)
    readme = (pages.ROOT / "README.md").read_text(encoding="utf-8")
    for line in re.findall(r"`(\./dev demo --\w+)`", readme):  # complete as it is in the text
        yield Step(line, line)


QUICK = ("python", "install", "quickstart")
LATER = ("cmake", "meson", "prefix", "docs", "wheel", "sdist",
         "wheel without a compiler")
OTHER_MACHINE = {"wheel without a compiler": "dist"}  # the folder that it gets from the first one


def steps(quick):
    yield from commands(quick)
    for name in QUICK if quick else QUICK + LATER:
        found = pages.named(RUNNER, name)
        places = ", ".join(str(block) for block in found)
        yield Step(f"{name} ({places})", "\n".join(map(as_script, found)), OTHER_MACHINE.get(name))


def last_line(log):
    lines = log.read_bytes()[-4000:].decode(errors="replace").split("\n")
    return next((line.strip()[:100] for line in reversed(lines) if line.strip()), "nothing said")


def end_of(log):
    """The last lines of a step's log without those of tests that passed: a failed test's output
    lies among them.
    """
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    told = [line[:200] for line in lines if not re.search(r"\sOK\s+[\d.]+s$", line)]
    return "\n".join(f"     {line}" for line in told[-TOLD_LINES:])


def run_step(root, step, log):
    """Whether it ended well; says now and then where it is."""
    begun = time.monotonic()
    with open(log, "w", encoding="utf-8") as file:
        process = root.start(step.script, file)
        try:
            while True:
                try:
                    return process.wait(timeout=BEAT_S) == 0, time.monotonic() - begun
                except subprocess.TimeoutExpired:
                    seconds = time.monotonic() - begun
                    print(f"     {seconds:4.0f} s: {last_line(log)}", flush=True)
        finally:
            process.kill()  # with it all that it started
            process.wait()


def run_steps(root, wanted):
    failed = []
    for number, step in enumerate(wanted, 1):
        print(f"== {number}/{len(wanted)} {step.title}", flush=True)
        name = re.sub(r"\W+", "-", step.title.split(" (")[0]).strip("-")
        log = LOGS / f"{number:02}-{name}.log"
        if step.given:
            root.start_again_with(step.given)
        good, seconds = run_step(root, step, log)
        failed += [] if good else [step.title]
        print(f"{'OK' if good else 'FAILED'} {step.title}: {seconds:.0f} s, {log}", flush=True)
        if not good:
            print(end_of(log), flush=True)
    return failed


def objects():
    """The folder in which this machine's ccache has compiled objects."""
    if shutil.which("ccache") is None:
        return None
    asked = subprocess.run(["ccache", "--get-config", "cache_dir"], check=True,
                           capture_output=True, text=True)
    return Path(asked.stdout.strip())


def main():
    parser = argparse.ArgumentParser(prog="./dev fresh", description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true",
                        help="both commands of the README (the test as --quick), its Python, the "
                             "installation for C++ and the quickstart")
    parser.add_argument("--ccache", action="store_true",
                        help="with the objects of this machine's ccache, for a run whose times do "
                             "not matter")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    LOGS.mkdir(parents=True, exist_ok=True)
    wanted = list(steps(options.quick))
    for old in LOGS.glob("*.log"):
        old.unlink()
    log = LOGS / "00-root.log"
    changed = subprocess.run(["git", "-c", "safe.directory=*", "status", "--porcelain"], check=True,
                             cwd=pages.ROOT, capture_output=True, text=True).stdout
    if changed:
        print("     this tree has changes that are not committed: they are not tried")
    try:
        print("== a bare Debian 12", flush=True)
        with BareRoot(FOLDER, pages.ROOT, log, objects() if options.ccache else None) as root:
            failed = run_steps(root, wanted)
    except Unavailable as lacking:
        print(f"SKIPPED fresh: {lacking}")
        return conclude({"passed": 0, "failures": [], "skipped": len(wanted)})
    except subprocess.CalledProcessError as error:
        return conclude({"passed": 0, "failures": [f"a bare Debian 12: {error}, {log}"],
                         "skipped": 0})
    except KeyboardInterrupt:
        print("interrupted: the root is gone", file=sys.stderr)
        return 130
    return conclude({"passed": len(wanted) - len(failed), "failures": failed, "skipped": 0})


if __name__ == "__main__":
    sys.exit(main())
