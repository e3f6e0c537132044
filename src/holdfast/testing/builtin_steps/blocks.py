"""What is below a sentence, as values: a table, or JSON in quotes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import InvalidInput
from holdfast.testing.step_matcher import json_or_text


def mapping_of(what: str, block: Any) -> dict[str, Any]:
    """A JSON object, or a table of two columns (with or without a head `name | value`)."""
    if isinstance(block, Mapping):
        return dict(block)
    rows = rows_of(block)
    if rows and all(len(row) == 2 for row in rows):
        body = rows[1:] if rows[0] in (["name", "value"], ["key", "value"]) else rows
        return {name: json_or_text(value) for name, value in body}
    raise InvalidInput(f"{what}: use a table of names and values, or a JSON object in quotes")


def rows_of(block: Any) -> list[list[str]]:
    is_table = isinstance(block, list) and all(isinstance(row, list) for row in block)
    return block if is_table else []


def items_of(what: str, block: Any) -> list[Any]:
    """A JSON list, or a table of one column."""
    rows = rows_of(block)
    if rows and all(len(row) == 1 for row in rows):
        return [json_or_text(row[0]) for row in rows]
    if isinstance(block, list) and not rows:
        return block
    raise InvalidInput(f"{what}: use a table of one column, or a JSON list in quotes")
