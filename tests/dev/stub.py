"""A small project with the real ./dev in it, on a machine of which a test decides what it has.

Meson, ninja and the compiler are real, and so is their memory. The package manager is played: a
package is there once `apt-get install` has named it, and brings its header.
"""
import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

MESON = """project('stub', 'cpp', version: '1')
cpp = meson.get_compiler('cpp')
have_doctest = cpp.has_header('brought/by_doctest.h', required: get_option('tests'))
subdir('cli')
if get_option('bench')
  subdir('bench')
endif
if have_doctest
  subdir('tests')
endif
"""
FILES = {
    "meson.build": MESON,
    "cli/meson.build": "main = files('main.cpp')\nexecutable('rollring', main, install: true)\n",
    "cli/main.cpp": '#include <cstdio>\n#include <cstdlib>\n'
                    'int main() { std::puts("the program ran");\n'
                    '    return std::getenv("ROLLRING_TALLY") == nullptr ? 0 : 1; }\n',
    "bench/meson.build": "executable('rollring-bench', main)\n",
    "bench/short.py": "print('the benchmarks ran')\n",
    "tests/meson.build": "test('one', executable('one', main), suite: 'quick')\nsubdir('stress')\n",
    "tests/stress/meson.build": "executable('rollring-stress', main)\n",
    "tests/tidy.py": "",
}
PROGRAMS = {
    # `dpkg-query -W -f=FORMAT [NAME ...]`
    "dpkg-query": 'shift 2\n[ $# -gt 0 ] || exec cat "$STUB/packages"\n'
                  'for name in "$@"; do grep -qx "$name" "$STUB/packages" && '
                  'echo "installed $name"; done\ntrue\n',
    "apt-get": 'for name in "$@"; do case "$name" in\n'
               '    install | update | -*) continue ;;\n'
               '    doctest-dev) mkdir -p "$STUB/include/brought"\n'
               '        touch "$STUB/include/brought/by_doctest.h" ;;\n'
               'esac; echo "$name" >>"$STUB/packages"; done\n',
    "apt-cache": "echo 'clang-19 - a compiler'\n",
    "sudo": '[ "$1" != -n ] || shift\nexec "$@"\n',
    "clang-format-19": "",
    "run-clang-tidy-19": "",
}


class Stub:
    def __init__(self, place: Path):
        self.place, self.tree, self.machine = place, place / "tree", place / "machine"
        for name, text in FILES.items():
            file = self.tree / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        shutil.copy2(ROOT / "dev", self.tree)
        shutil.copy2(ROOT / "meson_options.txt", self.tree)
        shutil.copytree(ROOT / "tools", self.tree / "tools")
        subprocess.run(["git", "init", "-q", self.tree], check=True)
        self.install_python()
        (self.machine / "bin").mkdir(parents=True)
        (self.machine / "include").mkdir()
        (self.machine / "packages").touch()
        for name, text in PROGRAMS.items():
            program = self.machine / "bin" / name
            program.write_text("#!/bin/bash\n" + text)
            program.chmod(0o755)
        self.environment = {**os.environ, "STUB": str(self.machine),
                            "CPATH": str(self.machine / "include"),
                            "PATH": f"{self.machine / 'bin'}:{os.environ['PATH']}"}
        self.environment.pop("MESON_TESTTHREADS", None)

    def install_python(self) -> None:
        """The environment of the Python package as ./dev finds it once it has made it."""
        programs = self.tree / ".cache/python/bin"
        programs.mkdir(parents=True)
        (programs / "pip").write_text(f"#!{programs / 'python'}\n")
        (programs / "ruff").write_text("#!/bin/bash\n")
        (programs / "ruff").chmod(0o755)
        (programs.parent / "installed.txt").touch()
        (self.tree / "python").mkdir()
        for name in ("requirements-dev.txt", "requirements-alone.txt"):
            (self.tree / "python" / name).touch()

    def run(self, *command: str) -> subprocess.CompletedProcess:
        return subprocess.run(command, cwd=self.tree, env=self.environment, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)

    def dev(self, *arguments: str) -> subprocess.CompletedProcess:
        return self.run("./dev", *arguments)
