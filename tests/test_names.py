"""Names that docstrings, comments and the design pages mention exist, and no two classes have one name."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
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


def test_every_file_that_a_docstring_names_exists() -> None:
    """One test for all modules: hundreds of tests cost seconds to collect in every worker."""
    found = {str(file.relative_to(SOURCE)): prose(file.read_text("utf-8")) for file in MODULES}

    assert {} == {file: names for file, text in found.items() if (names := missing_files(text))}


@cache
def names() -> frozenset[str]:
    """Every name that the package defines: modules, classes, functions, parameters and attributes."""
    found = set()
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
                case _:
                    pass
    return frozenset(found)


@pytest.mark.parametrize("page", DESIGN, ids=lambda file: file.name)
def test_every_file_and_name_on_a_design_page_exists(page: Path) -> None:
    text = _FENCE.sub("", page.read_text("utf-8"))
    said = {
        part for name in _NAME.findall(text) if not name.endswith(".py") for part in name.split(".")
    }

    assert ([], []) == (missing_files(text), sorted(said - names() - KNOWN))


@cache
def members() -> dict[str, frozenset[str]]:
    """By the name of a class: what it and the classes of the package that it is made from define or assign."""
    classes = {
        node.name: node
        for file in MODULES
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    return {name: frozenset(_members(node, classes)) for name, node in classes.items()}


def _members(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> Iterator[str]:
    for inner in ast.walk(node):
        match inner:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes:
            yield from _members(classes[base.id], classes)


def strangers(text: str) -> list[str]:
    """Names such as `Session.show` whose class does not have them."""
    found = {name for name in _NAME.findall(text) if name[0].isupper() and name.count(".") == 1}
    pairs = sorted(tuple(name.split(".")) for name in found)
    return [f"{a}.{b}" for a, b in pairs if a in members() and b not in members()[a]]


@pytest.mark.parametrize("page", DESIGN, ids=lambda file: file.name)
def test_every_member_on_a_design_page_is_one_of_its_class(page: Path) -> None:
    assert [] == strangers(_FENCE.sub("", page.read_text("utf-8")))


def test_every_member_in_a_docstring_is_one_of_its_class() -> None:
    found = {str(file.relative_to(SOURCE)): prose(file.read_text("utf-8")) for file in MODULES}

    assert {} == {file: wrong for file, text in found.items() if (wrong := strangers(text))}


def test_a_member_of_another_class_is_found() -> None:
    assert ["Session.show"] == strangers("`Session.show`, `AgentView.show` and `Unknown.show`")


KNOWN = {
    "holdfast",
    "await",
    "jsonb",
    "strace",
    "synchronous",
    "FULL",
    "fsync",
    "COMMIT",
    "ROLLBACK",
}
"""Words of databases and systems."""


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
