"""The rules of the code, as tests: which package may import which, what the pure core may use, and what no module
may do. Each failure says what to do instead.

The code is read, not run (but for the public names), so a rule holds also for what no test
executes. Lengths are only shown at the end of the run: a figure is a place to look, not a verdict.
"""

import ast
import functools
import gc
import importlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = "holdfast"
SRC = Path(__file__).parent.parent / "src" / PACKAGE

# A module imports only from layers below its own; packages of one layer do not import each other.
# So control and views never import runtime: a person can approve and look on a machine that has
# none of the agent's code.
LAYERS = (
    {"lazy"},  # names that are loaded when they are used
    {"waiting"},  # what a run is waiting for, as data: errors carry it
    {"errors"},
    {"core"},
    {"store"},
    {"words"},  # sentences for people, for errors and for every interface
    {"runtime", "control", "views", "event_stream"},
    # operations on a store; one step of a run again, away from its store; run or resume
    {"bulk", "bundle", "check", "doctor", "gc", "dry_fork", "execution"},
    {"app"},  # the Holdfast object: the one entry point to runtime, control and views
    {"aio"},  # the same for event loops
    {"agents"},
    {""},  # holdfast/__init__.py: the public names
    {"lua"},  # a front end: files become agents, which the interfaces load
    {"api"},  # the HTTP API as data, for the server and its client
    {"web", "mcp", "client"},
    {"cli"},  # starts the other interfaces
)
# Inside runtime, a sub-package imports only from those before it, and from itself.
RUNTIME_LAYERS = ("declare", "lines", "log", "call", "api", "exec")
LAYER_OF = {package: number for number, packages in enumerate(LAYERS) for package in packages}
INTERFACES = {"lua", "api", "web", "mcp", "client", "cli"}
OUTSIDE = {"integrations", "testing"}  # these have rules of their own

# Whatever is not listed may do I/O, know the time or chance, or start threads.
PURE_MODULES = {
    "__future__",
    "abc",
    "base64",
    "binascii",
    "bisect",
    "builtins",
    "collections",
    "copy",
    "contextlib",
    "dataclasses",
    "datetime",
    "decimal",
    "difflib",
    "enum",
    "errno",
    "fractions",
    "functools",
    "hashlib",
    "heapq",
    "hmac",
    "inspect",
    "ipaddress",
    "itertools",
    "json",
    "keyword",
    "math",
    "msgspec",
    "numbers",
    "operator",
    "re",
    "string",
    "struct",
    "sys",
    "textwrap",
    "types",
    "typing",
    "unicodedata",
    "uuid",
}
IMPURE_METHODS = {"now", "utcnow", "today", "uuid1", "uuid4", "uuid6", "uuid7", "uuid8"}
IMPURE_CALLS = {"open", "input", "print", "breakpoint", "id"}

# Reading these formats can execute code that is in the data.
UNSAFE_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "marshal",
    "shelve",
    "yaml",
}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}

SQL_CALLS = {"execute", "executemany", "executescript", "copy", "stream", "SQL"}
MUTABLE_TYPES = {
    "list",
    "dict",
    "set",
    "bytearray",
    "defaultdict",
    "deque",
    "Counter",
    "OrderedDict",
    "ChainMap",
    "WeakKeyDictionary",
    "WeakValueDictionary",
    "WeakSet",
    "Queue",
    "SimpleQueue",
}

# A test that sleeps guesses how long something takes. Wait for an event, or with support.waiting.eventually.
TESTS = Path(__file__).parent
SLEEPS = re.compile(r"\b(?:time|asyncio)\.sleep\((?!0\))|\bimport [^\n]*\bsleep\b|\busleep\(")
MAY_SLEEP = {
    "support/waiting.py": "between two looks at what rings no bell",
    "support/ledger.py": "a server takes its time, by chance: in it a process can be killed",
    "fuzz/world.py": "the same, for the tools of random agents",
}

LONG_FILE_LINES = 600
LONG_FUNCTION_LINES = 70
WIDE_CALL_PARAMETERS = 8


# -- reading the modules ---------------------------------------------------------------------


@dataclass(frozen=True)
class Import:
    """One imported thing: its line, the module it comes from, and the name if any."""

    line: int
    module: str
    name: str | None

    @property
    def dotted(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module

    @property
    def is_own(self) -> bool:
        return self.module.split(".")[0] == PACKAGE


@dataclass(frozen=True)
class Module:
    """One file of the package, parsed."""

    name: str
    path: Path
    source: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """The package that decides its layer: `store` for holdfast.store.sqlite, `` for the root."""
        return package_of(self.name)

    def at(self, node: ast.AST) -> str:
        return f"{self.name}:{getattr(node, 'lineno', 1)}"

    @functools.cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All of its syntax: walked once for all rules."""
        return tuple(ast.walk(self.tree))

    @functools.cached_property
    def imports(self) -> tuple[Import, ...]:
        """Every import, also below TYPE_CHECKING and inside functions."""
        return tuple(self._imports())

    def _imports(self) -> Iterator[Import]:
        package = self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(node.lineno, alias.name, None)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    parts = package.split(".")
                    up = parts[: len(parts) - node.level + 1]
                    base = ".".join([*up, *([node.module] if node.module else [])])
                for alias in node.names:
                    yield Import(node.lineno, base, alias.name)


def package_of(name: str) -> str:
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else ""


def read_modules(src: Path) -> dict[str, Module]:
    modules = {}
    for path in sorted(src.rglob("*.py")):
        parts = list(path.relative_to(src.parent).with_suffix("").parts)
        if parts[-1] == "__init__":
            parts.pop()
        source = path.read_text(encoding="utf-8")
        modules[".".join(parts)] = Module(".".join(parts), path, source, ast.parse(source))
    return modules


@functools.cache
def modules() -> dict[str, Module]:
    """The package as it is. Read where it is needed: every worker collects this file."""
    found = read_modules(SRC)
    gc.freeze()  # half a million objects that every later collection (tests/support/leaks.py) would look at
    return found


def broken(rule: Callable[[Module], Iterable[object]], packages: Collection[str] = ()) -> list[str]:
    """Every place that breaks a rule, in all modules or in those of some packages.

    One test for each rule, not for each module: thousands of tests cost half a minute to collect and report."""
    return [
        f"{name}: {problem}"
        for name, module in modules().items()
        if not packages or package_of(name) in packages
        for problem in rule(module)
    ]


def target_of(imported: Import, modules: dict[str, Module]) -> str | None:
    """The module of this package that is imported, or None for another package's."""
    target = imported.dotted
    while target and target not in modules:
        target = target.rpartition(".")[0]
    return target or None


def imports_within(module: Module, modules: dict[str, Module]) -> Iterator[tuple[Import, str]]:
    """The imports of our own modules, each with the module it opens."""
    for imported in module.imports:
        target = target_of(imported, modules)
        if target and target != module.name:
            yield imported, target


def calls(module: Module) -> Iterator[tuple[ast.Call, str, bool]]:
    """Every call, the last part of the called name, and whether it is called on something."""
    for node in module.nodes:
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name):
                yield node, node.func.id, False
            elif isinstance(node.func, ast.Attribute):
                yield node, node.func.attr, True


def public_names(module: Module) -> set[str]:
    """The names in a module's `__all__`, read from its text."""
    for node in module.tree.body:
        if (
            isinstance(node, ast.Assign)
            and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
            and isinstance(node.value, ast.List | ast.Tuple)
        ):
            return {ast.literal_eval(item) for item in node.value.elts}
    return set()


# -- the rules: each yields what breaks it -----------------------------------------------------


def wrong_imports(module: Module, modules: dict[str, Module]) -> Iterator[str]:
    for imported, target in imports_within(module, modules):
        where = f"{module.name}:{imported.line} imports {target}"
        here, there = module.package, package_of(target)
        if here == "testing":
            if there in INTERFACES:
                yield f"{where}: testing may import anything but the interfaces"
        elif there == "testing":
            if here != "cli":  # `holdfast test` is the interface of testing
                yield f"{where}: nothing imports testing but the command line"
        elif here == "integrations":
            if imported.name not in public_names(modules[target]):
                yield f"{where} ({imported.name}): integrations use only names listed in an __all__"
        elif there == "integrations":
            yield f"{where}: integrations are imported by users, not by this package"
        elif here not in LAYER_OF or there not in LAYER_OF:
            continue  # test_every_package_has_a_layer says so
        elif here != there and LAYER_OF[there] >= LAYER_OF[here]:
            yield f"{where}: {there or PACKAGE} is not below {here or PACKAGE}"


def wrong_layers(module: Module, modules: dict[str, Module]) -> Iterator[str]:
    """Imports from a layer of runtime to one above it."""
    here = layer_of(module.name)
    for imported, target in imports_within(module, modules) if here is not None else ():
        there = layer_of(target)
        if there is not None and here is not None and there > here:
            yield f"{module.name}:{imported.line} imports {target}, which is in a higher layer"


def layer_of(name: str) -> int | None:
    """The layer of a module of runtime."""
    parts = name.split(".")
    return RUNTIME_LAYERS.index(parts[2]) if parts[1:2] == ["runtime"] and len(parts) > 2 else None


def import_cycles(modules: dict[str, Module]) -> list[list[str]]:
    """Groups of modules that import each other, however hidden: strongly connected components."""
    graph = {
        name: sorted({to for _, to in imports_within(module, modules)})
        for name, module in modules.items()
    }
    reach: dict[str, set[str]] = {}
    for start, targets in graph.items():
        seen: set[str] = set()
        todo = list(targets)
        while todo:
            name = todo.pop()
            if name not in seen:
                seen.add(name)
                todo += graph[name]
        reach[start] = seen
    groups = {tuple(sorted(b for b in reach[a] if a in reach[b])) for a in graph}
    return [list(group) for group in sorted(groups) if group]


def impurities(module: Module) -> Iterator[str]:
    for imported in module.imports:
        if (imported.module, imported.name) == ("threading", "Lock"):
            continue  # it starts nothing: it guards what is made once
        if not imported.is_own and imported.module.split(".")[0] not in PURE_MODULES:
            yield f"{module.name}:{imported.line} imports {imported.module}"
        if imported.name in IMPURE_METHODS:
            yield f"{module.name}:{imported.line} imports {imported.dotted}"
    for node, name, on_something in calls(module):
        if name in (IMPURE_METHODS if on_something else IMPURE_CALLS):
            yield f"{module.at(node)} calls {ast.unparse(node.func)}()"
    for part in module.nodes:
        if isinstance(part, ast.Attribute) and ast.unparse(part) in {"sys.stdout", "sys.stderr"}:
            yield f"{module.at(part)} uses {ast.unparse(part)}"


def unsafe_code(module: Module) -> Iterator[str]:
    for imported in module.imports:
        if imported.module.split(".")[0] in UNSAFE_MODULES:
            yield f"{module.name}:{imported.line} imports {imported.module}"
    for node, name, on_something in calls(module):
        if name in UNSAFE_CALLS and not on_something:
            yield f"{module.at(node)} calls {name}()"


def built_sql(module: Module) -> Iterator[str]:
    """SQL text put together from pieces where it is executed."""
    for node, name, _ in calls(module):
        if name not in SQL_CALLS or not node.args:
            continue
        text = node.args[0]
        built = (
            (
                isinstance(text, ast.JoinedStr)
                and any(not isinstance(v, ast.Constant) for v in text.values)
            )
            or (isinstance(text, ast.BinOp) and isinstance(text.op, ast.Add | ast.Mod))
            or (
                isinstance(text, ast.Call)
                and isinstance(text.func, ast.Attribute)
                and text.func.attr in {"format", "join", "replace"}
                and isinstance(text.func.value, ast.Constant)
            )
        )
        if built:
            yield f"{module.at(node)} {name}({ast.unparse(text)[:60]})"


def printing(module: Module) -> Iterator[str]:
    if module.package != "cli":
        for node, name, on_something in calls(module):
            if name == "print" and not on_something:
                yield module.at(node)


def unchecked_blobs(module: Module) -> Iterator[str]:
    """Reads of values outside the log that are not compared with their digest."""
    if module.name == "holdfast.store.artifacts" or module.package == "testing":
        return
    for node, name, on_something in calls(module):
        if name == "blob" and on_something:
            yield f"{module.at(node)} {ast.unparse(node)[:60]}"


def untyped_answers(module: Module) -> Iterator[str]:
    """What a flow yields is answered by its driver, so only the flow can say what type the answer has: by an annotation
    where it is assigned, or as the type of what it returns."""
    typed: set[ast.expr | None] = set()
    for node in module.nodes:
        match node:
            case ast.AnnAssign(annotation=annotation, value=value):
                typed |= {value} if ast.unparse(annotation) != "Any" else set()
            case ast.Expr(value=value) | ast.Return(value=value):
                typed.add(value)
            case _:
                pass
    for node in module.nodes:
        match node:
            case ast.Yield(value=ast.Call(func=ast.Name(id=name))) if name[0].isupper():
                if node not in typed:
                    yield f"{module.at(node)} {ast.unparse(node)[:60]}"
            case _:
                pass


def module_state(module: Module) -> Iterator[str]:
    """Names that look changeable: lower case and bound to a container, or declared global."""
    for node in module.nodes:
        if isinstance(node, ast.Global):
            yield f"{module.at(node)} global {', '.join(node.names)}"
    for node in top_level(module.tree.body):
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value:
            targets, value = [node.target], node.value
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name) and is_variable(target.id) and is_mutable(value):
                yield f"{module.at(node)} {target.id} = {ast.unparse(value)[:40]}"


def top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run at import, also inside if, try and with; not those of functions."""
    for node in body:
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for inner in ("body", "orelse", "finalbody"):
                yield from top_level(getattr(node, inner, []))
            for handler in getattr(node, "handlers", []):
                yield from top_level(handler.body)


def is_variable(name: str) -> bool:
    return not name.startswith("__") and name != name.upper()


def is_mutable(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        called = (
            value.func.attr if isinstance(value.func, ast.Attribute) else ast.unparse(value.func)
        )
        return called in MUTABLE_TYPES
    return isinstance(
        value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
    )


def figures(module: Module) -> Iterator[str]:
    """What is long or wide enough to deserve a look."""
    lines = module.source.splitlines()
    if len(lines) > LONG_FILE_LINES:
        yield f"long file: {module.name}, {len(lines)} lines"
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = code_lines(node, lines)
            if length > LONG_FUNCTION_LINES:
                yield f"long function: {module.at(node)} {node.name}, {length} lines of code"
            width = len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs)
            if width > WIDE_CALL_PARAMETERS:
                yield f"wide call: {module.at(node)} {node.name}, {width} parameters"


def code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> int:
    """Lines that hold code: no blanks, comments or docstring."""
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    if not body:
        return 0
    text = (line.strip() for line in lines[body[0].lineno - 1 : node.end_lineno])
    return sum(1 for line in text if line and not line.startswith("#"))


# -- the package as it is --------------------------------------------------------------------


def test_the_modules_are_found() -> None:
    """The rules below are about something: a moved folder would make them all pass."""
    assert f"{PACKAGE}.errors" in modules()


def test_every_package_has_a_layer() -> None:
    """A new top-level module is given its place in LAYERS, and in DESIGN's list, first."""
    packages = {module.package for module in modules().values()}

    assert set() == packages - LAYER_OF.keys() - OUTSIDE


def test_imports_go_down_the_layers() -> None:
    """errors → core → store → runtime | control | views → agents → public names → interfaces."""
    assert [] == broken(lambda module: wrong_imports(module, modules()))


def test_imports_inside_runtime_go_to_lower_layers() -> None:
    """declare → lines → log → call → api → exec."""
    assert [] == broken(lambda module: wrong_layers(module, modules()))


def test_a_module_of_runtime_that_imports_a_higher_layer_is_found() -> None:
    found = modules_of(
        runtime="",
        runtime__call="",
        runtime__call__gate="from holdfast.runtime.exec import engine",
        runtime__exec="",
        runtime__exec__engine="from holdfast.runtime.call.gate import gate",
    )

    wrong = [name for name, module in found.items() if list(wrong_layers(module, found))]
    assert ["holdfast.runtime.call.gate"] == wrong


def test_there_is_no_import_cycle() -> None:
    """Not even below TYPE_CHECKING or inside a function: move what both need one layer down."""
    assert [] == import_cycles(modules())


def test_the_core_is_pure() -> None:
    """Time, chance, files and threads come in from outside, as values, through runtime."""
    assert [] == broken(impurities, {"core", "errors"})


def test_every_module_has_a_docstring() -> None:
    """The first thing in a file is a docstring: what it is, and where useful what it is not."""
    assert [] == [name for name, module in modules().items() if not ast.get_docstring(module.tree)]


def test_nothing_stored_can_become_code() -> None:
    """No pickle, yaml, eval or exec: what is read from a store is data."""
    assert [] == broken(unsafe_code)


def test_sql_is_never_put_together_from_pieces() -> None:
    """Statements are constants from .sql files; values travel as parameters."""
    assert [] == broken(built_sql)


def test_only_the_command_line_prints() -> None:
    """A library returns, raises or logs."""
    assert [] == broken(printing)


def test_every_blob_is_compared_with_its_digest() -> None:
    """`store.artifacts` reads and checks: use its `read_artifact` or `read_value`."""
    assert [] == broken(unchecked_blobs)


def test_modules_hold_no_state() -> None:
    """State is kept in objects that a caller creates. A constant is spelled IN_CAPITALS."""
    assert [] == broken(module_state)


def test_what_a_flow_is_answered_has_a_type() -> None:
    """`batch: Batch = yield Write(…)`."""
    assert [] == broken(untyped_answers)


def test_the_public_names_are_a_sorted_list_and_all_there() -> None:
    """`__all__` is the promise; its order is ruff's: CONSTANTS, Classes, then functions."""
    holdfast = importlib.import_module(PACKAGE)
    names = list(holdfast.__all__)

    def order(name: str) -> tuple[int, str]:
        return (0 if name.isupper() else 1 if name[0].isupper() else 2), name

    assert sorted(names, key=order) == names
    assert len(set(names)) == len(names)
    assert [] == [name for name in names if not hasattr(holdfast, name)]


@pytest.mark.parametrize("name", ["", ".control", ".testing", ".views"])
def test_the_names_that_a_package_loads_on_first_use_are_all_there(name: str) -> None:
    """None is also a module of the package: importing that would bind its name."""
    package = importlib.import_module(f"{PACKAGE}{name}")
    below = {x.removeprefix(f"{package.__name__}.") for x in modules()}

    assert [] == [x for x in package.__all__ if not hasattr(package, x)]
    assert [] == [x for x in package.__all__ if x in below]


def test_only_the_places_that_wait_for_all_tests_sleep() -> None:
    """Not even in the text of a program that a test starts."""
    sleeping = {
        str(path.relative_to(TESTS))
        for path in TESTS.rglob("*.py")
        if path != Path(__file__) and SLEEPS.search(path.read_text("utf-8"))
    }

    assert set(MAY_SLEEP) == sleeping


def test_lengths_are_worth_a_look(record_property: Callable[[str, object], None]) -> None:
    """Long files and functions are listed at the end of the run and fail nothing."""
    for module in modules().values():
        for figure in figures(module):
            record_property("worth a look", figure)


# -- the rules themselves, on modules that break them ----------------------------------------


def modules_of(**files: str) -> dict[str, Module]:
    """Modules from texts: `core__events` is holdfast/core/events.py, `root` the package itself."""
    modules = {}
    for key, source in files.items():
        name = PACKAGE if key == "root" else f"{PACKAGE}.{key.replace('__', '.')}"
        modules[name] = Module(name, Path(f"{key}.py"), source, ast.parse(source))
    return modules


@pytest.mark.parametrize(
    ("importer", "statement"),
    [
        ("core__a", "from holdfast.store import base"),
        ("core__a", "from holdfast.store.base import Store"),
        ("core__a", "def f():\n    import holdfast.store.base"),
        ("core__a", "if TYPE_CHECKING:\n    from holdfast.store.base import Store"),
        ("control", "from holdfast.runtime.log import clock"),
        ("views", "from holdfast.runtime.log.clock import Clock"),
        ("views", "from holdfast import control"),
        ("store__x", "from holdfast import Holdfast"),
        ("web__app", "from holdfast.cli import main"),
        ("runtime__x", "from holdfast.testing import crashes"),
        ("testing__x", "from holdfast.cli import main"),
        ("integrations__x", "from holdfast.store.base import Store"),
        ("cli__x", "from holdfast.integrations import openai"),
    ],
)
def test_a_wrong_import_is_found(importer: str, statement: str) -> None:
    """In every form, anywhere in the file."""
    modules = modules_of(
        root="__all__ = ['Holdfast']",
        store="",
        store__base="",
        control="",
        runtime="",
        runtime__log="",
        runtime__log__clock="",
        cli="",
        testing="",
        testing__crashes="",
        integrations="",
        integrations__openai="",
    )
    modules |= modules_of(**{importer: statement})

    assert 1 == len(
        list(wrong_imports(modules[f"{PACKAGE}.{importer.replace('__', '.')}"], modules))
    )


@pytest.mark.parametrize(
    ("importer", "statement"),
    [
        ("store__x", "from holdfast.core import events\nfrom holdfast.store import base"),
        ("cli__x", "from holdfast import Holdfast\nfrom holdfast.views import timeline"),
        ("cli__x", "from holdfast.testing import crashes"),
        ("integrations__x", "from holdfast import Holdfast"),
        (
            "testing__x",
            "from holdfast.runtime.log.clock import Clock\nfrom holdfast import Holdfast",
        ),
    ],
)
def test_a_right_import_is_accepted(importer: str, statement: str) -> None:
    """Down the layers, within one package, and public names from outside."""
    modules = modules_of(
        root="__all__ = ['Holdfast']",
        core="",
        core__events="",
        store="",
        store__base="",
        views="",
        runtime="",
        runtime__log="",
        runtime__log__clock="",
        testing="",
        testing__crashes="",
    )
    modules |= modules_of(**{importer: statement})

    assert [] == list(wrong_imports(modules[f"{PACKAGE}.{importer.replace('__', '.')}"], modules))


def test_an_import_cycle_is_found_though_half_of_it_is_hidden() -> None:
    """One import at the top, one in a function; a third module stays out of it."""
    modules = modules_of(
        core="",
        core__a="from holdfast.core import b",
        core__b="def f():\n    from holdfast.core.a import x",
        core__c="from holdfast.core import a",
    )

    assert [["holdfast.core.a", "holdfast.core.b"]] == import_cycles(modules)


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (impurities, "import time"),
        (impurities, "import os.path"),
        (impurities, "def f():\n    from random import choice"),
        (impurities, "from datetime import datetime\nx = datetime.now()"),
        (impurities, "from uuid import uuid4"),
        (impurities, "def f(path):\n    return open(path)"),
        (impurities, "import sys\nsys.stderr.write('')"),
        (unsafe_code, "import pickle"),
        (unsafe_code, "from yaml import load"),
        (unsafe_code, "eval('1')"),
        (built_sql, "c.execute(f'SELECT {x}')"),
        (built_sql, "c.execute('SELECT ' + x)"),
        (built_sql, "c.execute('SELECT %s' % x)"),
        (built_sql, "c.execute('SELECT {}'.format(x))"),
        (printing, "print('hello')"),
        (unchecked_blobs, "def f(store):\n    return store.blob('run', 'hash')"),
        (untyped_answers, "def f():\n    row = yield Create(run)"),
        (untyped_answers, "def f():\n    row: Any = yield Create(run)"),
        (untyped_answers, "def f():\n    return (yield Create(run)).id"),
        (module_state, "registry = {}"),
        (module_state, "registry: dict[str, int] = dict()"),
        (module_state, "try:\n    import x\nexcept ImportError:\n    cache = []"),
        (module_state, "def f():\n    global x\n    x = 1"),
    ],
)
def test_a_broken_rule_is_found(rule: Callable[[Module], Iterator[str]], source: str) -> None:
    """Each rule fails for what it forbids."""
    assert 1 == len(list(rule(modules_of(core__x=source)["holdfast.core.x"])))


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        (impurities, "import uuid\nfrom datetime import datetime, UTC\nx = uuid.UUID(int=1)"),
        (impurities, "from holdfast.core import log\ndef f(path): ..."),
        (unsafe_code, "import re\nx = re.compile('a')\nconnection.exec('…')"),
        (built_sql, "c.execute('SELECT ?', [x])\nc.execute(QUERIES['claim'], f'{x}')\nd.copy()"),
        (
            untyped_answers,
            "def f():\n    row: Row = yield Create(run)\n    yield Execute(row)\n    return (yield Read(row))",
        ),
        (
            module_state,
            "KINDS = {}\n__all__ = ['x']\ndef f():\n    found = []\nPair = tuple[int, int]",
        ),
    ],
)
def test_a_kept_rule_is_left_alone(rule: Callable[[Module], Iterator[str]], source: str) -> None:
    """No rule cries at what looks alike and is fine."""
    assert [] == list(rule(modules_of(core__x=source)["holdfast.core.x"]))


@pytest.mark.parametrize(
    ("text", "sleeps"),
    [
        ("time.sleep(0.1)", True),
        ("await asyncio.sleep(seconds)", True),
        ("PROGRAM = 'import time; time.sleep(60)'", True),
        ("from time import monotonic, sleep", True),
        ("ctypes.PyDLL(None).usleep(5)", True),
        ("await asyncio.sleep(0)", False),
        ("run.sleep(3600)", False),
        ("assert time.sleep not in sent", False),
        ("def sleep(seconds: float) -> None: ...", False),
    ],
)
def test_a_test_that_sleeps_is_found(text: str, sleeps: bool) -> None:
    assert sleeps == bool(SLEEPS.search(text))
