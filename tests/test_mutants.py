"""The planted bugs of `mutants.py` still fit the source, so that `make nightly` can plant them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


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

    counts = {
        m.name: (mutants.SOURCE / m.file).read_text("utf-8").count(m.before)
        for m in mutants.MUTANTS
    }

    assert counts == dict.fromkeys(counts, 1)
    assert len(counts) == len(mutants.MUTANTS), "two have the same name"
