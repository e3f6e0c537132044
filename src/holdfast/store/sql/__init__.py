"""Statements and migrations, as `.sql` files, loaded by name. One folder a dialect."""

import hashlib
import re
from functools import cache
from pathlib import Path

from msgspec import Struct

from holdfast.store.base import Filter

# Not importlib.resources, whose import takes as long as all of this package's own modules.
_HERE = Path(__file__).parent


class Migration(Struct, frozen=True):
    """One numbered step of the schema."""

    number: int
    name: str
    sql: str
    checksum: str


@cache
def queries(dialect: str) -> dict[str, str]:
    """Every named statement of a dialect."""
    text = (_HERE / dialect / "queries.sql").read_text(encoding="utf-8")
    parts = re.split(r"^-- name: (\w+)$", text, flags=re.MULTILINE)[1:]
    return {
        name: _without_comments(body) for name, body in zip(parts[::2], parts[1::2], strict=True)
    }


def listing(filter: Filter) -> str:
    """The name of the statement that lists such runs, by the column that narrows them most."""
    for column in ("status", "agent", "parent"):
        if getattr(filter, column):
            return f"list_by_{column}"
    return "list"


@cache
def migrations(dialect: str) -> tuple[Migration, ...]:
    """The schema's steps, in order. Their numbers are 1, 2, 3 … without a gap."""
    folder = _HERE / dialect
    found = []
    for entry in sorted(folder.iterdir(), key=lambda e: e.name):
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", entry.name)
        if match:
            text = entry.read_text(encoding="utf-8")
            checksum = hashlib.sha256(text.encode()).hexdigest()
            found.append(Migration(int(match[1]), match[2], text, checksum))
    return tuple(found)


def _without_comments(body: str) -> str:
    return (
        "\n".join(line for line in body.splitlines() if not line.startswith("--"))
        .strip()
        .rstrip(";")
    )
