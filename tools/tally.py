#!/usr/bin/env python3
"""The count of a run of tests: failed tests, skipped ones with their reasons, and a last line, `N
passed, N failed`.

usage: tally.py [--problem TEXT ...] -- LOG ...     results as Meson's testlog.json has them
       tally.py --sum FILE                          of several runs

With ROLLRING_TALLY=FILE the count is added to FILE, and no last line is printed: a run of several
commands has one count, at its end.
"""
import json
import os
from pathlib import Path

from console import interruptible


def results_of(path: str) -> list[dict]:
    return list(map(json.loads, Path(path).read_text(encoding="utf-8").splitlines()))


def reason_of(test: dict) -> str:
    """The reason for which a test skipped itself: its last line."""
    said = f"{test.get('stderr') or ''}\n{test.get('stdout') or ''}".split("\n")
    lines = [line.strip() for line in said if line.strip()]
    return lines[-1].removeprefix("skipped: ") if lines else "it does not say why"


def count(problems: list[str], logs: list[str]) -> dict:
    passed, skips, failures = 0, [], list(problems)
    for path in logs:
        place = os.path.dirname(path).removesuffix("/meson-logs")
        for test in results_of(path):
            name, result = test["name"], test["result"]
            if result in ("OK", "EXPECTEDFAIL"):
                passed += 1
            elif result in ("SKIP", "IGNORED"):
                skips.append(f"{place}: {name}: {reason_of(test)}")
            else:
                failures.append(f"{place}: {name} ({result})")
    if passed == 0 and not failures:
        failures.append("no test ran")
    return {"passed": passed, "failures": failures, "skipped": len(skips), "skips": skips}


def total(counts: list[dict]) -> dict:
    return {"passed": sum(each["passed"] for each in counts),
            "failures": [failure for each in counts for failure in each["failures"]],
            "skipped": sum(each["skipped"] for each in counts),
            "skips": [skip for each in counts for skip in each.get("skips", [])]}


def last_line(counted: dict) -> str:
    line = f"{counted['passed']} passed, {len(counted['failures'])} failed"
    return line + (f", {counted['skipped']} skipped" if counted["skipped"] else "")


def conclude(counted: dict, whole: bool = False) -> int:
    """Prints the count, or adds it to that of a run of several commands. Returns the exit
    status."""
    for skip in counted.get("skips", []):  # a run of whole commands gives only their number
        print(f"SKIPPED {skip}")
    for failure in counted["failures"]:
        print(f"FAILED {failure}")
    kept = os.environ.get("ROLLRING_TALLY")
    if kept and not whole:
        with open(kept, "a", encoding="utf-8") as file:
            print(json.dumps(counted), file=file)
    else:
        print(last_line(counted))
    return 1 if counted["failures"] or counted["passed"] + counted["skipped"] == 0 else 0


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--sum"]:
        lines = Path(arguments[1]).read_text(encoding="utf-8").splitlines()
        return conclude(total([json.loads(line) for line in lines]), whole=True)
    at = arguments.index("--")
    problems = [each.removeprefix("--problem=") for each in arguments[:at]]
    return conclude(count(problems, arguments[at + 1:]))


if __name__ == "__main__":
    interruptible(main)
