"""The Lua front end uses public names: it knows nothing of the inside of the runtime, the stores or the views."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import holdfast.lua

MODULES = sorted(Path(holdfast.lua.__file__).parent.glob("*.py"))
# Plain data and the model protocol; and what a declared function declares, which is how a Python tool is recognised.
OTHERS = {"holdfast.lua", "holdfast.core", "holdfast.agents.models"}
NAMES = {("holdfast.runtime.declare.specs", "spec_of"), ("holdfast.agents.llm", "LLMAgent")}


def wrong_imports(path: Path) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("holdfast"):
            continue
        for name in node.names:
            module = node.module or ""
            is_public = module == "holdfast" and name.name in {*holdfast.__all__, "core"}
            is_below = any(f"{module}.".startswith(f"{one}.") for one in OTHERS)
            if not is_public and not is_below and (module, name.name) not in NAMES:
                found.append(f"line {node.lineno}: {module}.{name.name}")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_imports_public_names_only(path: Path) -> None:
    assert [] == wrong_imports(path)
