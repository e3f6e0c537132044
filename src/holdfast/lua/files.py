"""The project's folder, as a Lua file may use it: files below it, and modules for `require`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from msgspec import Struct

from holdfast import InvalidInput

_BEFORE: Final = rb"\A(\xef\xbb\xbf)?(#[^\n]*)?"
"""What may be before the code: a byte order mark, and a line for the shell."""
READ_MAX: Final = 8 * 1024 * 1024
SUFFIXES: Final = (".lua", ".tac")


def code_of(content: bytes) -> bytes:
    """The code of a file, with its lines where they are."""
    return re.sub(_BEFORE, b"", content, count=1)


class Project(Struct, frozen=True):
    """A folder. No path leads out of it, and none through a symbolic link that does."""

    folder: Path

    def path(self, name: str) -> Path:
        """A file below the folder, or InvalidInput."""
        if not name or "\0" in name:
            raise InvalidInput("a file needs a name")
        root = self.folder.resolve()
        found = (root / name).resolve()
        if found != root and root not in found.parents:
            raise InvalidInput(f"{name!r} is outside the project's folder")
        if ".holdfast" in found.relative_to(root).parts:
            raise InvalidInput(f"{name!r} belongs to Holdfast")
        return found

    def read(self, name: str) -> str:
        path = self.path(name)
        if path.exists() and not path.is_file():
            raise InvalidInput(f"{name!r} is not a file")
        try:
            if path.stat().st_size > READ_MAX:
                raise InvalidInput(f"{name!r} is larger than {READ_MAX:,} bytes")
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise InvalidInput(f"{name!r} is not UTF-8 text") from None
        except OSError as error:
            raise InvalidInput(f"{name!r} cannot be read: {error.strerror}") from None

    def write(self, name: str, content: str) -> int:
        path = self.path(name)
        if path.suffix not in WRITABLE:
            raise InvalidInput(
                f"{name!r}: File.write writes data and text ({', '.join(WRITABLE)}), not code"
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        except OSError as error:
            raise InvalidInput(f"{name!r} cannot be written: {error.strerror}") from None
        return len(content.encode())

    def exists(self, name: str) -> bool:
        return self.path(name).is_file()

    def size(self, name: str) -> int:
        path = self.path(name)
        if not path.is_file():
            raise InvalidInput(f"file {name!r} not found")
        return path.stat().st_size

    def module(self, name: str) -> tuple[bytes, str]:
        """The source of a module, and its file as errors name it."""
        parts = name.split(".") if "/" not in name else name.split("/")
        if not all(part and part not in ("..", ".") for part in parts):
            raise InvalidInput(f"require: {name!r} is not the name of a module")
        below = "/".join(parts)
        for suffix in ("", *SUFFIXES):
            given = below + suffix
            if Path(given).suffix in SUFFIXES and self.path(given).is_file():
                return code_of(self.read(given).encode()), given
        raise InvalidInput(
            f"require: module {name!r} not found in the project (looked for {below}.lua and {below}.tac)"
        )


WRITABLE: Final = (
    ".txt",
    ".md",
    ".json",
    ".jsonl",
    ".csv",
    ".tsv",
    ".html",
    ".xml",
    ".yaml",
    ".yml",
    ".log",
)
