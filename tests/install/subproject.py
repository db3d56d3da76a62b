#!/usr/bin/env python3
"""Builds a program of another Meson project that has rollring as its subproject: the library alone
is configured and built, CLI11 and nlohmann-json are not asked for, warnings are not errors."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

source = pathlib.Path(sys.argv[1]).resolve()
os.environ.pop("LD_LIBRARY_PATH", None)  # Meson points it at the build tree

BUILD = """project('other', 'cpp')
rollring = dependency('rollring', fallback: 'rollring', default_options: ['cuda=disabled'])
executable('other', 'other.cpp', cpp_args: '-std=c++23', dependencies: rollring)
"""
PROGRAM = """#include <rollring/ring.hpp>
#include <iostream>
int main() {
    const auto stat = rollring::stat_ring("no-such-ring-of-anybody");
    std::cout << (stat ? "found" : rollring::name(stat.error().code)) << '\\n';
}
"""


def introspect(build, what):
    return json.loads(run("meson", "introspect", what, build))


def run(*command):
    return subprocess.run(command, check=True, text=True, capture_output=True).stdout


def main():
    with tempfile.TemporaryDirectory() as scratch_name:
        scratch = pathlib.Path(scratch_name)
        (scratch / "meson.build").write_text(BUILD)
        (scratch / "other.cpp").write_text(PROGRAM)
        (scratch / "subprojects").mkdir()
        (scratch / "subprojects" / "rollring").symlink_to(source)
        build = scratch / "build"
        run("meson", "setup", "-Doptimization=0", build, scratch)  # its speed does not count
        found = {name["name"] for name in introspect(build, "--dependencies")}
        for unwanted in ("CLI11", "nlohmann_json"):
            if unwanted in found:
                sys.exit(f"the subproject asks for {unwanted}")
        kinds = {"executable", "custom"}
        extra = [target["name"] for target in introspect(build, "--targets")
                 if target["subproject"] and target["type"] in kinds]
        if extra:
            sys.exit(f"the subproject builds {extra}")
        commands = json.loads((build / "compile_commands.json").read_text())
        strict = [entry["file"] for entry in commands if "subprojects" in entry["file"]
                  and "-Wno-error" not in entry["command"]]
        if strict or len(commands) < 4:
            sys.exit(f"warnings are errors in {strict}, of {len(commands)} files")
        run("meson", "compile", "-C", build, "-j", "1")  # other tests run beside it
        said = run(build / "other")
        if said != "not_found\n":
            sys.exit(f"unexpected output: {said}")
    print(f"{len(commands)} files, the library alone")


main()
