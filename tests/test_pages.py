"""The pages of the documentation that show code and commands work as they say."""

from pathlib import Path

import pytest

from support.pages import play_page

DOCS = Path(__file__).parent.parent / "docs"


@pytest.mark.parametrize("page", ["testing.md", "code-changes.md", "fleet.md"])
def test_the_page_works_from_top_to_bottom(page: str, tmp_path: Path) -> None:
    assert play_page(DOCS / page, tmp_path) >= 6
