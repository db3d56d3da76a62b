#!/usr/bin/env python3
"""Each call below compiles when its result is looked at, and draws a warning when it is not."""

import pathlib
import re
import subprocess
import sys
import tempfile

include, *compiler = sys.argv[1:]
CALLS = """\
batch.ack(0)
stash.settle("", 0)
stash.next(batch, now)
stash.rest(batch)
Stash::open("ring", {})
Consumer::open("ring")
consumer.release_all({}, 0)
consumer.poll(record)
Producer::open("ring")
producer.push(draft, now)
producer.reserve(draft, now, room)
producer.open_group("", 0, now)
room.commit()
room.commit_later()
create_ring("ring", {})
publisher.begin(0)
publisher.wait_subscribers(0, now)
transaction.put_all(now)
transaction.publish()
transaction.commit(now)
subscriber.next(now)
update.load(now)
update.stage(now)
update.adopt(now)
Schema::standard_with({})
""".splitlines()
BEFORE = """#include <rollring/stash.hpp>
#include <rollring/producer.hpp>
#include <rollring/ring.hpp>
#include <rollring/weights.hpp>
using namespace rollring;
void calls(Batch& batch, Stash& stash, Consumer& consumer, Producer& producer, Reservation& room,
           Publisher& publisher, Transaction& transaction, Subscriber& subscriber, Update& update,
           const Draft& draft, Record& record, Deadline now) {
""".splitlines()


def errors(form):
    """The calls that the compiler refuses, by number, and all that it says."""
    lines = [form.format(call) + ";" for call in CALLS]
    with tempfile.TemporaryDirectory() as scratch:
        source = pathlib.Path(scratch) / "calls.cpp"
        source.write_text("\n".join(BEFORE + lines + ["}", ""]))
        command = [*compiler, "-std=c++23", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
                   f"-I{include}", source]
        if "clang" in compiler[0]:
            command.append("-ferror-limit=0")
        said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    found = re.findall(r"calls\.cpp:(\d+):\d+: error: ", said)
    return {int(line) - len(BEFORE) - 1 for line in found}, said


def main():
    wrong, said = errors("static_cast<void>({})")
    if wrong or "error" in said:
        sys.exit(f"these calls do not compile at all:\n{said}")
    refused, said = errors("{}")
    silent = [call for number, call in enumerate(CALLS) if number not in refused]
    if silent:
        sys.exit("dropped without a warning: " + ", ".join(silent) + "\n" + said)
    print(f"calls={len(CALLS)} silent=0")


main()
