"""What a docstring says about a function, and about each of its parameters (Google, NumPy or Sphinx style)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

_HEADING: Final = re.compile(
    r"(args|arguments|parameters|params|returns?|raises|yields?|examples?|notes?)(:?)", re.I
)
_ABOUT_PARAMETERS: Final = ("args", "arguments", "parameters", "params")
_ENTRY: Final = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*(?::\s*(.*))?$")
_SPHINX: Final = re.compile(r":param\s+(?:[^:]*\s)?(\w+)\s*:\s*(.*)$")
_FIELD: Final = re.compile(r":\w[^:]*:")


@dataclass(slots=True)
class _Section:
    """Some lines of a docstring and the heading above them; underlined in the style of NumPy."""

    heading: str = ""
    underlined: bool = False
    lines: list[str] = field(default_factory=list)


def docstring_parts(doc: str) -> tuple[str, dict[str, str]]:
    """A docstring's own text, and what it says about each parameter (Google, NumPy or Sphinx style)."""
    first, *others = _sections(doc.splitlines())
    said: dict[str, str] = {}
    for section in others:
        if section.heading in _ABOUT_PARAMETERS:
            said |= _entries(section)
        elif found := _SPHINX.match(section.heading):
            said[found[1]] = _joined([found[2], *section.lines])
    return "\n".join(first.lines).strip(), {name: text for name, text in said.items() if text}


def _sections(lines: list[str]) -> list[_Section]:
    found = [_Section()]
    for line, below in zip(lines, [*lines[1:], ""], strict=False):
        text = line.strip()
        heading = _HEADING.fullmatch(text)
        if heading and (heading[2] or _is_rule(below)):
            found.append(_Section(heading[1].lower(), _is_rule(below)))
        elif _FIELD.match(text):
            found.append(_Section(text))
        elif not (_is_rule(line) and found[-1].underlined and not found[-1].lines):
            found[-1].lines.append(line)
    return found


def _is_rule(line: str) -> bool:
    return bool(line.strip()) and set(line.strip()) == {"-"}


def _entries(section: _Section) -> dict[str, str]:
    """`name: text` at the margin of the section, or `name : type` with the text below."""
    margin = min((_indent(line) for line in section.lines if line.strip()), default=0)
    said: dict[str, list[str]] = {}
    current: list[str] = []
    for line in section.lines:
        entry = _ENTRY.match(line.strip()) if _indent(line) == margin else None
        if entry and (section.underlined or entry[2] is not None):
            current = said[entry[1]] = [] if section.underlined else [entry[2]]
        else:
            current.append(line)
    return {name: _joined(parts) for name, parts in said.items()}


def _joined(lines: Iterable[str]) -> str:
    return " ".join(line.strip() for line in lines if line.strip())


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
