"""Specs that need no parser are read as Cucumber's own parser reads them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from gherkin.parser import Parser
from gherkin.token_scanner import TokenScanner

from holdfast.testing.outlines import outlines_of, plain_outlines

ROOT = Path(__file__).parents[2]
PLAIN = "Feature: a\n  Scenario: b\n    Given c\n    When d\n"


def texts() -> list[str]:
    """The specs in the repository's .tac files and pages."""
    files = [*ROOT.glob("tests/lua/files/*"), *ROOT.glob("examples/*"), *ROOT.glob("docs/*.md")]
    found = [
        re.findall(r"(Feature:.*?)(?:\]\]|\"\"\"|```|\Z)", path.read_text(), re.DOTALL)
        for path in files
        if path.is_file()
    ]
    return [text for some in found for text in some]


def test_both_readers_agree_on_every_spec_that_needs_no_parser() -> None:
    plain = {text: outlines for text in texts() if (outlines := plain_outlines(text)) is not None}

    assert len(plain) >= 30
    assert {t: outlines_of(Parser().parse(TokenScanner(t))) for t in plain} == plain


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        PLAIN.replace("\n", "\r\n"),
        "\n\n" + PLAIN.replace("a\n", "a: b\n\n\n"),
        PLAIN.replace("Given c", "Given   c: <d>  "),
        PLAIN.replace("When", "*").replace("Given", "But"),
        PLAIN.replace("Scenario: b", "Scenario:"),
        PLAIN + PLAIN.removeprefix("Feature: a\n"),
    ],
)
def test_a_plain_text_has_the_same_lines_for_both(text: str) -> None:
    assert outlines_of(Parser().parse(TokenScanner(text))) == plain_outlines(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Feature: a\n",
        "Scenario: a\n  Given b\n",
        "# language: de\n" + PLAIN,
        "@tag\n" + PLAIN,
        PLAIN + "      | a | b |\n",
        PLAIN + '      """\n      text\n      """\n',
        PLAIN + "  Scenario: empty\n",
        PLAIN + "  Scenario Outline: a\n",
        PLAIN + "    given a\n",
        PLAIN + "    Given\n",
        PLAIN.replace("  Scenario", "  Some text.\n  Scenario"),
        PLAIN.replace("  Scenario: b\n", "  Background:\n"),
        PLAIN.replace("  Scenario: b\n", ""),
        PLAIN + PLAIN,
    ],
)
def test_every_other_text_is_left_to_the_parser(text: str) -> None:
    assert plain_outlines(text) is None
