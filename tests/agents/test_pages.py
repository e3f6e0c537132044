"""The pages about agents, executed: every block of Python, from top to bottom."""

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.mark.parametrize("page", ["agent-state.md", "loops.md", "checkpoints.md"])
def test_every_python_block_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    text = (DOCS / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)

    assert blocks
    for block in blocks:
        exec(compile(block, page, "exec"), names)
