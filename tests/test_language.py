"""Plain English: phrases that are never right in this project's texts, with what to write instead.

A short list against relapses, and no substitute for reading. Glossary: CONTRIBUTING.md, Language.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from holdfast.cli.verbs import VERBS, cli
from support.pages import ROOT

INSTEAD = {
    r"\banew\b": "again; starts over",
    r"\bupon\b": "on",
    r"\bfor ever\b": "forever",
    r"\bin vain\b": "without effect",
    r"\bwho(?:m)?ever\b": "the caller, any worker, the person who",
    r"\btak(?:e|es|en) up by\b|\bt(?:ake|akes|ook) (?:it|them|the run) up\b": "claim",
    r"\bgiven back\b|\bg(?:ive|ives|ave) (?:it|them|the run|its runs) back\b": "release",
    r"\bleaves? memory\b|\bleft memory\b": "is suspended",
    r"\bin one breath\b": "in one reply",
    r"\bno [a-z]+ any more\b": "deleted; no longer a …",
    r"\belse than\b": "other than",
    r"\bc(?:ome|omes|ame) round\b": "an iteration ends",
    r"\bneighbours?\b": "alternatives, other engines",
    r"\bplanted bugs?\b": "mutants",
    r"\bthe log (?:knows|holds)\b": "is recorded; the log contains",
    r"\b(?:did|does) not get on\b": "makes no progress",
    r"\blooks? for (?:it|him|them)sel(?:f|ves)\b": "polls",
    r"\bin the worst moment\b": "at the worst moment",
    r"\bbelongs? into\b": "belongs in",
    r"\bbeside (?:it|them|the|its|an?)\b": "next to, compared with",
    r"\ball the same\b": "still",
    r"\bcuts? off\b(?! the)": "cancelled, truncated",
    r"\bshall\b": "must, should",
    r"\balso not\b": "nor",
    r"\bmend(?:s|ed|ing)?\b": "fix, repair",
    r"\b(?:is|are) told (?:so|to|by|of)\b": "is notified, gets the error",
}
RULES = [(re.compile(phrase, re.IGNORECASE), better) for phrase, better in INSTEAD.items()]
NAMES = re.compile(r"def test_\w+")
TEXTS = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "Makefile",
    "bench/README.md",
    "examples/README.md",
)


def files() -> Iterator[Path]:
    yield from (ROOT / name for name in TEXTS)
    yield from sorted((ROOT / "docs").rglob("*.md"))
    for suffix in ("*.py", "*.sql"):
        yield from sorted((ROOT / "src").rglob(suffix))
    for folder in ("tests", "bench", "examples"):
        yield from (p for p in sorted((ROOT / folder).rglob("*.py")) if p != Path(__file__))


def problems(text: str) -> list[str]:
    return [
        f"line {number}: {found[0]!r}; write: {better}"
        for number, line in enumerate(NAMES.sub(_spaced, text).splitlines(), 1)
        for rule, better in RULES
        if (found := rule.search(line))
    ]


def _spaced(name: re.Match[str]) -> str:
    """The name of a test is a sentence too."""
    return name[0].replace("_", " ")


def test_a_text_has_no_phrase_of_the_old_dialect() -> None:
    """One test for all files: hundreds of tests cost seconds to collect in every worker."""
    found = {str(file.relative_to(ROOT)): problems(file.read_text("utf-8")) for file in files()}

    assert {} == {file: places for file, places in found.items() if places}


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_a_command_has_no_phrase_of_the_old_dialect(verb: str) -> None:
    shown = CliRunner().invoke(cli, [verb, "--help"], prog_name="holdfast")

    assert isinstance(cli, click.Group) and 0 == shown.exit_code, shown.output
    assert [] == problems(shown.output)


def test_a_phrase_of_the_old_dialect_is_found_with_its_replacement() -> None:
    assert ["line 2: 'whoever'; write: the caller, any worker, the person who"] == problems(
        "Fine.\nIt is for whoever asks."
    )
    assert ["line 1: 'for ever'; write: forever"] == problems(
        "def test_a_run_waits_for_ever(): ..."
    )
