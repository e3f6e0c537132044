"""The mutants of `mutants.py` still fit the source and name tests that exist, so that `make nightly` can apply them."""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest


def load() -> ModuleType:
    path = Path(__file__).parent / "mutants.py"
    spec = importlib.util.spec_from_file_location("mutants", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_text_that_each_mutant_changes_occurs_exactly_once() -> None:
    mutants = load()

    unfit = []
    for mutant in mutants.MUTANTS:
        try:
            text = mutant.planted((mutants.SOURCE / mutant.file).read_text("utf-8"))
            if mutant.file.endswith(".py"):
                ast.parse(text)  # a mutant that cannot be imported fails every test
        except (LookupError, OSError, SyntaxError) as error:
            unfit.append(str(error))

    names = [mutant.name for mutant in mutants.MUTANTS]
    assert [] == unfit
    assert len(names) == len(set(names)), "two have the same name"
    assert set() == mutants.FUZZED.keys() - set(names), "the fuzzer is shown mutants that exist"


def test_every_test_that_a_mutant_names_exists() -> None:
    """Also by `-k`: each of its words is in the name of a test of these files, or in a parameter."""
    mutants = load()
    checks = (mutants.SOURCE / "testing" / "store_suite").glob("*.py")
    parameters = {"sqlite", "postgres", "postgresql", *_functions(*checks)}

    missing = []
    for mutant in mutants.MUTANTS:
        files = [mutants.ROOT / name.partition("::")[0] for name in mutant.tests if ".py" in name]
        existing = [file for file in files if file.is_file()]
        names = _functions(*existing)
        missing += [f"{mutant.name}: {file}" for file in files if file not in existing]
        wanted = [name.partition("::")[2].partition("[")[0] for name in mutant.tests]
        if "-k" in mutant.tests:
            words = re.findall(r"\w+", mutant.tests[mutant.tests.index("-k") + 1])
            wanted += [word for word in words if word not in ("and", "or", "not")]
        missing += [
            f"{mutant.name}: {word}"
            for word in wanted
            if not any(word in name for name in names | parameters)
        ]
    assert [] == missing


def _functions(*files: Path) -> set[str]:
    return {name for file in files for name in re.findall(r"def (\w+)", file.read_text("utf-8"))}


def test_a_mutant_changes_only_its_own_function() -> None:
    mutants = load()
    text = "def one():\n    return 1\n\n\nclass Box:\n    def two(self):\n        return 1\n"

    planted = mutants.Mutant("m", "box.py::Box.two", "return 1", "return 2", ()).planted(text)

    assert text.replace("        return 1", "        return 2") == planted
    with pytest.raises(LookupError):
        mutants.Mutant("m", "box.py::Box.three", "return 1", "return 2", ()).planted(text)
    with pytest.raises(LookupError):
        mutants.Mutant("m", "box.py", "return 1", "return 2", ()).planted(text)
