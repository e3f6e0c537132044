"""Hooks of the documentation site (mkdocs.yml): what the pages' tests need and a site does not know.

A fence such as "python notest: needs a server" tells the tests not to run a block; Markdown knows only "python".
"""

from __future__ import annotations

import re
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    return re.sub(r"^( *```[a-z]+) .*$", r"\1", markdown, flags=re.MULTILINE)
