"""The scenarios of a Gherkin text, as lines that are not understood yet.

A text with nothing but `Feature:`, `Scenario:` and sentences is read here. Everything else (Background, Rule, Scenario
Outline, tables, doc strings, tags, comments, other languages, mistakes) is read by Cucumber's own parser, which takes
longer to import than such a text takes to run.
"""

from collections.abc import Iterator
from typing import Any, Final

from msgspec import Struct

KEYWORDS: Final = ("Given", "When", "Then", "And", "But", "*")


class StepLine(Struct, frozen=True):
    """A sentence: its keyword, its line in the text, what it says, and what is below it (as the parser has it)."""

    keyword: str
    line: int
    text: str
    argument: Any = None


class Outline(Struct, frozen=True):
    """A scenario: its name, its line in the text, and its sentences."""

    name: str
    line: int
    steps: list[StepLine]


def plain_outlines(text: str) -> list[Outline] | None:
    """The scenarios of a text that needs no parser; None for any other text."""
    found: list[Outline] = []
    is_feature = False
    for number, line in enumerate(map(str.strip, text.split("\n")), 1):
        keyword, _, said = line.partition(" ")
        if not line:
            continue
        if not is_feature:
            is_feature = line.startswith("Feature:")
            if not is_feature:
                return None
        elif line.startswith("Scenario:"):
            found.append(Outline(line.removeprefix("Scenario:").strip(), number, []))
        elif keyword in KEYWORDS and said and found:
            found[-1].steps.append(StepLine(keyword, number, said.strip()))
        else:
            return None
    return found if found and all(outline.steps for outline in found) else None


def outlines_of(parsed: Any) -> list[Outline]:
    """The scenarios of what Cucumber's parser returned, outlines expanded."""
    from gherkin.pickles.compiler import Compiler

    places = dict(_places(parsed))
    parsed["uri"] = ""
    found = []
    for pickle in Compiler().compile(parsed):
        outline = Outline(pickle["name"], pickle["location"]["line"], [])
        for step in pickle["steps"]:
            keyword, line = places[step["astNodeIds"][0]]
            outline.steps.append(StepLine(keyword, line, step["text"], step.get("argument")))
        found.append(outline)
    return found


def _places(node: Any) -> Iterator[tuple[str, tuple[str, int]]]:
    """Of every step by its id: its keyword and line."""
    if isinstance(node, dict):
        if "id" in node and "keyword" in node and "text" in node:
            yield node["id"], (node["keyword"].strip(), node["location"]["line"])
        for value in node.values():
            yield from _places(value)
    elif isinstance(node, list):
        for value in node:
            yield from _places(value)
