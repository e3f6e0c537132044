"""Every block of Python in the pages of `docs/` runs, in a folder of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parent.parent / "docs").glob("*.md"))
BLOCKS = [
    pytest.param(
        page,
        match[1],
        id=f"{page.name}-{page.read_text('utf-8')[: match.start()].count(chr(10)) + 1}",
    )
    for page in PAGES
    for match in re.finditer(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.M | re.S)
]


@pytest.mark.parametrize(("page", "block"), BLOCKS)
def test_a_block_of_python_in_the_docs_runs(
    page: Path, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, page.name, "exec"), {"__name__": "docs"})
