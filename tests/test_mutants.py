"""The planted bugs of `mutants.py` still fit the source, so that `make nightly` can plant them."""

from __future__ import annotations

import importlib.util
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
            mutant.planted((mutants.SOURCE / mutant.file).read_text("utf-8"))
        except (LookupError, OSError) as error:
            unfit.append(str(error))

    names = [mutant.name for mutant in mutants.MUTANTS]
    assert [] == unfit
    assert len(names) == len(set(names)), "two have the same name"


def test_a_mutant_is_planted_inside_its_function_only() -> None:
    mutants = load()
    text = "def one():\n    return 1\n\n\nclass Box:\n    def two(self):\n        return 1\n"

    planted = mutants.Mutant("m", "box.py::Box.two", "return 1", "return 2", ()).planted(text)

    assert text.replace("        return 1", "        return 2") == planted
    with pytest.raises(LookupError):
        mutants.Mutant("m", "box.py::Box.three", "return 1", "return 2", ()).planted(text)
    with pytest.raises(LookupError):
        mutants.Mutant("m", "box.py", "return 1", "return 2", ()).planted(text)
