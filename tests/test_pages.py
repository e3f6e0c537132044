"""The pages of the documentation that show code and commands work as they say."""

from pathlib import Path

import pytest

from support.pages import play_page

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize(
    ("page", "blocks"), [("testing.md", 6), ("code-changes.md", 6), ("fleet.md", 5)]
)
def test_the_page_works_from_top_to_bottom(page: str, blocks: int, tmp_path: Path) -> None:
    assert play_page(DOCS / page, tmp_path) >= blocks
