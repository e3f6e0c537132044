"""Names that docstrings, comments and the design pages mention exist, and no two classes have one name."""

from __future__ import annotations

import ast
import io
import itertools
import keyword
import re
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "holdfast"
MODULES = sorted(SOURCE.rglob("*.py"))
DESIGN = sorted((ROOT / "docs" / "design").glob("*.md"))
OF_OTHERS = {"setup.py", "agent.py", "agents.py", "recap.py", "conftest.py", "FILE.py"}
"""Files of users, as examples."""

_FILE = re.compile(r"`([\w/]+\.py)`")
_NAME = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\(\))?`")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


@cache
def files() -> frozenset[str]:
    """Every way to write the path of a file of the project: with all of its folders, or fewer."""
    found = set()
    for file in (
        *SOURCE.rglob("*.py"),
        *(ROOT / "tests").rglob("*.py"),
        *(ROOT / "bench").rglob("*.py"),
    ):
        parts = file.relative_to(ROOT).parts
        found |= {"/".join(parts[n:]) for n in range(len(parts))}
    return frozenset(found)


def prose(source: str) -> str:
    """The docstrings and comments of a module."""
    tree = ast.parse(source)
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value
    ]
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts += [ast.get_docstring(x) or "" for x in ast.walk(tree) if isinstance(x, documented)]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return "\n".join([*texts, *(t.string for t in tokens if t.type == tokenize.COMMENT)])


def missing_files(text: str) -> list[str]:
    return sorted(set(_FILE.findall(text)) - files() - OF_OTHERS)


@cache
def names() -> frozenset[str]:
    """Every name that the package defines or uses: modules, classes, functions, parameters and attributes, what it
    imports, words of its data, and what its SQL and Lua define."""
    found = set(keyword.kwlist)
    for file in MODULES:
        found |= set(file.relative_to(SOURCE).with_suffix("").parts)
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            match node:
                case (
                    ast.ClassDef(name=name)
                    | ast.FunctionDef(name=name)
                    | ast.AsyncFunctionDef(name=name)
                ):
                    found.add(name)
                case ast.arg(arg=name) | ast.Attribute(attr=name) | ast.Name(id=name):
                    found.add(name)
                case ast.alias(name=name):
                    found |= set(name.split("."))
                case ast.keyword(arg=str(name)) | ast.Constant(value=str(name)):
                    found.add(name)
                case _:
                    pass
    for file in (*SOURCE.rglob("*.sql"), *SOURCE.rglob("*.lua")):
        found |= set(re.findall(r"[A-Za-z_]\w*", file.read_text("utf-8")))
    return frozenset(found)


@cache
def members() -> dict[str, frozenset[str]]:
    """By class of the package: its methods, fields and attributes, and those of the classes below it."""
    own: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for file in MODULES:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(node, ast.ClassDef):
                continue
            bases.setdefault(node.name, set()).update(ast.unparse(x) for x in node.bases)
            found = own.setdefault(node.name, set())
            for inner in ast.walk(node):
                match inner:
                    case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                        found.add(name)
                    case ast.Name(id=name, ctx=ast.Store()):
                        found.add(name)
                    case ast.Attribute(attr=name, value=ast.Name(id="self" | "cls")):
                        found.add(name)
                    case _:
                        pass

    def with_bases(name: str) -> frozenset[str]:
        inherited = (with_bases(base.rpartition(".")[2]) for base in bases.get(name, ()))
        return frozenset(own.get(name, ())).union(*inherited)

    return {name: with_bases(name) for name in own}


def missing_names(text: str) -> list[str]:
    """The names in a text that there are not; of `Class.member` also if only another class has the member."""
    missing = []
    for name in _NAME.findall(_FENCE.sub("", text)):
        parts = name.split(".")
        if name.endswith(".py") or name in KNOWN:
            continue
        of_classes = [(a, b) for a, b in itertools.pairwise(parts) if a in members()]
        if set(parts) - names() - KNOWN or any(b not in members()[a] for a, b in of_classes):
            missing.append(name)
    return sorted(set(missing))


def test_every_file_and_name_that_a_docstring_mentions_exists() -> None:
    """One test for all modules: hundreds of tests cost seconds to collect in every worker."""
    missing = {}
    for file in MODULES:
        text = prose(file.read_text("utf-8"))
        if found := missing_files(text) + missing_names(text):
            missing[str(file.relative_to(SOURCE))] = found

    assert {} == missing


@pytest.mark.parametrize("page", DESIGN, ids=lambda file: file.name)
def test_every_file_and_name_on_a_design_page_exists(page: Path) -> None:
    text = page.read_text("utf-8")

    assert ([], []) == (missing_files(_FENCE.sub("", text)), missing_names(text))


def test_the_stages_that_are_named_in_the_design_are_files() -> None:
    """So `ls` answers where the gate is. Both pages and the flow name the same stages, in the same order."""
    call = SOURCE / "runtime" / "call"
    pages = [
        *(ROOT / "docs" / "design" / x for x in ("README.md", "call-flow.md")),
        call / "flow.py",
    ]
    stages = [
        line.split(" → ")
        for page in pages
        for line in map(str.strip, page.read_text("utf-8").splitlines())
        if line.startswith("enter → ")
    ]

    assert [stages[0]] * len(pages) == stages
    assert [] == [stage for stage in stages[0] if not (call / f"{stage}.py").is_file()]


KNOWN = {
    "holdfast",
    "jsonb",
    "strace",
    "synchronous",
    "FULL",
    "fsync",
    "COMMIT",
    "ROLLBACK",
    "Doc",
    "Encoding",
    "NewType",
    "Path.is_dir",
    "holdfast.stores",
    "input.customer.id",
    "isError",
}
"""Words of databases, systems and other libraries, and examples."""


def test_a_name_that_does_not_exist_is_found() -> None:
    assert ["Session.gone", "Session.show", "no_such_name"] == missing_names(
        "`Session.check_lease`, `Session.show` (of `AgentView`), `Session.gone`, `no_such_name`"
    )


def test_a_file_that_does_not_exist_is_found() -> None:
    assert ["gone.py", "runtime/flow.py"] == missing_files(
        "see `gone.py`, `runtime/flow.py`, `call/flow.py`"
    )


TWINS = {
    "Appends": "the same for each store",
    "Finish": "why a reply ended, and the body of a request, which names its operation",
    "KnownLog": "the same protocol, for two packages that must not import each other",
    "Outcome": "of a run, and of a run in a specification, which is public as holdfast.testing.Outcome",
    "Ticket": "a protocol and its implementation",
    "VersionConflict": "the same refusal, in two interfaces that do not import each other",
}


def test_no_two_public_classes_have_one_name() -> None:
    """A name that means two things has to be looked up each time."""
    found = Counter(
        node.name
        for file in MODULES
        for node in ast.parse(file.read_text("utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )

    assert sorted(TWINS) == sorted(name for name, count in found.items() if count > 1)
