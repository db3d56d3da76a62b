"""Which part of the tree may see which: core, extras, integrations. tests/tidy.py reports breaches.

In Python, a part sees another one through public modules: no module, class or attribute whose name
begins with an underscore crosses a wall, and core and extras take each their own bindings of the
compiled module `_core`. Each integration has walls of its own. In C++, the core includes nothing of
an extra or of an integration, and an extra only public headers and those of the kit.

The tables name today's exceptions. A row that nothing needs any more is a breach, too, so that they
only shrink. docs/design.md, "What is core, and what stands beside it?", gives the reason of the
walls.
"""
import ast
from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatch
from typing import NamedTuple

PACKAGE = "python/rollring/"
FRONT = PACKAGE + "__init__.py"  # collects the public names of core and extras

# The package's files of each part; files that no row names are core.
PARTS = {
    "extras": ("extras/*", "top/*", "view/*"),
    "integrations": ("integrations/*",),
}
# Code outside of the package, which sees public names alone. Tests may look anywhere.
OUTSIDE = ("bench/*", "cli/*", "docs/*", "examples/*", "tools/*")
SEES = {
    "core": ("core",),
    "extras": ("core", "extras"),
    "integrations": ("core", "extras", "integrations"),
    "outside": ("core", "extras", "integrations"),
}
# The compiled module `_core` has the bindings of core and extras: these names are the extras', and
# all others the core's.
BINDINGS = {
    "extras": ("Consumer", "Ledger", "LedgerRestore", "Memory", "MemoryDomain", "OwnedRing",
               "RecordedBatch", "Recording", "RecordingWriter", "RequestBoard", "RequestWorker",
               "Store", "Taken", "decode_plain", "encode_plain", "ledger_stat", "parked_list",
               "remove_store", "set_array_helpers"),
}
# The private names that a file takes from beyond its walls; a module stands for its names.
REACHES: dict[str, tuple[str, ...]] = {}

# C++: folders by their part; all others are core. Tests may look anywhere.
EXTRA_FOLDERS = ("extras/", "include/rollring/extras")
INTEGRATION_FOLDERS = ("integrations/",)
# C++ that puts core and extras together, by their public headers.
ABOVE = ("bench", "examples", "python")
PUBLIC = "include/rollring"
PUBLIC_EXTRAS = "include/rollring/extras"
# The kit: private headers of the core for an extra that has memory beside a ring, or reads lanes by
# itself; each with the extras that include it. docs/design.md says why it is not public.
KIT = {
    "lib/base/fault_point.hpp": ("requests", "store"),
    "lib/base/fd.hpp": ("ledger", "recording"),
    "lib/base/human.hpp": ("ledger", "requests", "store"),
    "lib/base/quiet_thread.hpp": ("ledger", "store"),
    "lib/base/round_up.hpp": ("memory", "requests"),
    "lib/base/xxh3.hpp": ("ledger", "recording"),
    "lib/shm/companion.hpp": ("requests",),
    "lib/shm/doorbell.hpp": ("store",),
    "lib/shm/layout.hpp": ("requests",),
    "lib/shm/liveness.hpp": ("ledger", "memory", "recording", "requests", "server_seat", "store"),
    "lib/shm/segment.hpp": ("server_seat",),
    "lib/record/wire.hpp": ("store",),
    "lib/ring/checked_frame.hpp": ("store",),
    "lib/ring/frames_by_read.hpp": ("store",),
    "lib/ring/ring_map.hpp": ("requests", "store"),
    "stash/stash_ledger.hpp": ("ledger",),
    "lib/device/gpus.hpp": ("memory",),
    "lib/device/physical_memory.hpp": ("memory",),
}
# The other includes that a file or a folder has beyond its walls: headers, or whole folders.
REQUESTS = "include/rollring/extras/requests.hpp"
INCLUDES = {
    "include/rollring/requests.hpp": (REQUESTS,),  # a former name
    "include/rollring/requests_stat.hpp": (REQUESTS,),  # a former name
    "include/rollring/store.hpp": ("include/rollring/extras/store.hpp",),  # a former name
    # The programs put their parts together.
    "cli": ("integrations/atropos/commands",),
    "cli/records": ("integrations/atropos/atropos_json.hpp",),
    "cli/commands/inspect.cpp": (REQUESTS,),
    "cli/commands/ledger.cpp": ("include/rollring/extras/ledger.hpp",),
    "cli/commands/record.cpp": ("include/rollring/extras/recording.hpp",),
    "cli/commands/replay.cpp": ("include/rollring/extras/recording.hpp",),
    "cli/formats/stat_metrics.hpp": (REQUESTS,),
    "cli/formats/look_report.cpp": (REQUESTS,),
    # A server and commands are written with the parts of the program.
    "integrations/atropos": ("cli/formats", "cli/http", "cli/terminal"),
    "integrations/atropos/commands": ("cli/commands", "cli/formats", "cli/http"),
    # The relay is a library for the package alone: librollring does without.
    "python/src": ("extras/relay",),
}


class Room(NamedTuple):
    part: str
    name: str  # within its walls, private names are common


def room_of(path: str) -> Room:
    if not path.startswith(PACKAGE):
        return Room("outside", path)
    inside = path.removeprefix(PACKAGE)
    for part, globs in PARTS.items():
        if any(fnmatch(inside, glob) for glob in globs):
            if part != "integrations":
                return Room(part, part)
            return Room(part, inside.split("/")[1].removesuffix(".py"))
    return Room("core", "core")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def dotted(path: str) -> str:
    inside = path.removeprefix("python/").removesuffix(".pyi").removesuffix(".py")
    return inside.removesuffix("/__init__").replace("/", ".")


def imported(tree: ast.AST, path: str) -> Iterator[tuple[int, str, str]]:
    """Line, module and name of each import of rollring; no name: the module itself."""
    package = dotted(path).split(".")
    if not path.endswith("/__init__.py"):
        package.pop()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [(one.name, "") for one in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[:len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            found = [(module, one.name) for one in node.names]
        else:
            continue
        yield from ((node.lineno, module, name) for module, name in found
                    if module.split(".")[0] == "rollring")


def functions(tree: ast.AST) -> set[str]:
    return {node.name for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}


def defined(tree: ast.AST) -> set[str]:
    """The private names that a module and its classes and objects have."""
    names = functions(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return set(filter(is_private, names))


def touched(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each private attribute of another object."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and \
                not (isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}):
            yield node.lineno, node.attr


def bindings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each use of the compiled module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and \
                node.value.id == "_core" and not node.attr.startswith("__"):
            yield node.lineno, node.attr


class Package:
    """All files of the package, and those outside of it: their text by path."""

    def __init__(self, texts: dict[str, str]) -> None:
        self._trees = {path: ast.parse(text, path) for path, text in texts.items()
                       if path.endswith((".py", ".pyi")) and
                       (path.startswith(PACKAGE) or any(fnmatch(path, one) for one in OUTSIDE))}
        self._files = {dotted(path): path for path in self._trees if path.startswith(PACKAGE)}
        self._behind = {name: self._files.get(module, FRONT) for _, module, name in
                        imported(self._trees.get(FRONT, ast.Module([], [])), FRONT)}
        self._owners: dict[str, set[Room]] = {}  # of each private name
        self._methods: dict[Room, set[str]] = defaultdict(set)
        for path in self._files.values():
            self._methods[room_of(path)] |= functions(self._trees[path])
            for name in defined(self._trees[path]) if room_of(path).part != "integrations" else ():
                self._owners.setdefault(name, set()).add(room_of(path))

    def _room_behind(self, module: str, name: str) -> Room:
        path = self._files.get(f"{module}.{name}") or self._files.get(module, FRONT)
        return room_of(self._behind.get(name, path) if path == FRONT else path)

    def breaches(self) -> Iterator[tuple[str, int, str]]:
        """File, line, rule."""
        for path, tree in self._trees.items():
            yield from self._breaches_of(path, tree)

    def _breaches_of(self, path: str, tree: ast.AST) -> Iterator[tuple[str, int, str]]:
        mine, excepted = room_of(path), REACHES.get(path, ())
        needed = set()
        for line, name, rule in (*self._import_breaches(path, mine, tree),
                                 *self._binding_breaches(mine, tree),
                                 *self._attribute_breaches(mine, tree)):
            allowed = {one for one in excepted if f"{name}.".startswith(f"{one}.")}
            needed |= allowed
            if not allowed:
                yield path, line, rule
        for name in excepted:
            if name not in needed:
                yield path, 1, f"REACHES in tests/walls.py excepts {name} needlessly"

    def _import_breaches(self, path: str, mine: Room, tree: ast.AST) -> Iterator[
            tuple[int, str, str]]:
        for line, module, name in imported(tree, path):
            behind = self._room_behind(module, name)
            whole = f"{module}.{name}".rstrip(".").removeprefix("rollring.")
            if behind.part not in SEES[mine.part] and path != FRONT:
                yield line, whole, f"{mine.part} may not see {whole}, which is of {behind.part}"
            elif whole == "_core" and mine.part == "extras":
                continue  # _binding_breaches looks at each use
            elif behind != mine and any(map(is_private, whole.split("."))) and path != FRONT:
                yield line, whole, f"{whole} is private to {behind.name}: see tests/walls.py"

    def _binding_breaches(self, mine: Room, tree: ast.AST) -> Iterator[tuple[int, str, str]]:
        for line, name in bindings(tree):
            owner = next((part for part, names in BINDINGS.items() if name in names), "core")
            if owner != mine.part and mine.part in ("core", "extras"):
                yield line, name, f"_core.{name} is a binding of {owner}: see tests/walls.py"

    def _attribute_breaches(self, mine: Room, tree: ast.AST) -> Iterator[tuple[int, str, str]]:
        own = defined(tree)
        for line, name in touched(tree):
            owners = self._owners.get(name, set()) - {mine}
            if name in self._methods[mine]:  # a common word: one of the core counts all the same
                owners &= {Room("core", "core")}
            if owners and name not in own:
                yield line, name, f"{name} is private to {min(owners).name}: see tests/walls.py"


def part_of(folder: str) -> str:
    if folder.startswith(EXTRA_FOLDERS):
        return "extras"
    if folder.startswith(INTEGRATION_FOLDERS):
        return "integrations"
    return "above" if folder.split("/")[0] in ABOVE else "core"


class Includes:
    """The includes across the walls of C++, of all files that `breaches` was told of."""

    def __init__(self) -> None:
        self._used: set[tuple[str, str]] = set()
        self._allowed = {(source, target) for source, row in INCLUDES.items() for target in row}
        self._allowed |= {(f"extras/{extra}", header) for header, row in KIT.items()
                          for extra in row}

    def breaches(self, path: str, name: str, folder: str) -> Iterator[str]:
        """The rule that an include breaks. `folder`: of the included header."""
        home = path.rpartition("/")[0]
        header = f"{folder}/{name.rpartition('/')[2]}"
        if home.split("/")[0] == "tests" or not self._crosses(home, folder):
            return
        rows = self._allowed & {(source, target) for source in (path, home)
                                for target in (header, folder)}
        self._used |= rows
        if not rows:
            yield f"{home} may not include {header}, beyond a wall of tests/walls.py"

    @staticmethod
    def _crosses(home: str, folder: str) -> bool:
        mine, other = part_of(home), part_of(folder)
        if folder in (home, PUBLIC):
            return False
        if folder == PUBLIC_EXTRAS:
            return mine == "core"
        return other != mine and (mine, other) != ("above", "core")

    def needless(self) -> Iterator[tuple[str, str]]:
        """File or folder, rule; once every include was judged."""
        for source, target in sorted(self._allowed - self._used):
            yield source, f"a table of tests/walls.py excepts {target} needlessly"
