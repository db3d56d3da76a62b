#!/usr/bin/env python3
"""The count of a run of tests: names what failed; the last line is `N passed, N failed`.

usage: tally.py [--problem TEXT ...] -- LOG ...     results as Meson's testlog.json has them
       tally.py --sum FILE                          of several runs

With ROLLRING_TALLY=FILE the count is added to FILE in place of the last line: a run of several
commands has one count, at its end.
"""
import json
import os
from pathlib import Path

from console import interruptible


def results_of(path: str) -> list[tuple[str, str]]:
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return [(test["name"], test["result"]) for test in map(json.loads, lines)]


def count(problems: list[str], logs: list[str]) -> dict:
    passed, skipped, failures = 0, 0, list(problems)
    for path in logs:
        for name, result in results_of(path):
            if result in ("OK", "EXPECTEDFAIL"):
                passed += 1
            elif result in ("SKIP", "IGNORED"):
                skipped += 1
            else:
                place = os.path.dirname(path).removesuffix("/meson-logs")
                failures.append(f"{place}: {name} ({result})")
    if passed == 0 and not failures:
        failures.append("no test ran")
    return {"passed": passed, "failures": failures, "skipped": skipped}


def total(counts: list[dict]) -> dict:
    return {"passed": sum(each["passed"] for each in counts),
            "failures": [failure for each in counts for failure in each["failures"]],
            "skipped": sum(each["skipped"] for each in counts)}


def last_line(counted: dict) -> str:
    line = f"{counted['passed']} passed, {len(counted['failures'])} failed"
    return line + (f", {counted['skipped']} skipped" if counted["skipped"] else "")


def conclude(counted: dict, whole: bool = False) -> int:
    """Prints the count, or adds it to that of a run of several commands; the exit status."""
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
