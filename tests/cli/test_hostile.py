"""What data can do to a terminal: nothing."""

import json
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli import text
from holdfast.cli.verbs import cli
from holdfast.core import log
from holdfast.core.log import Record
from holdfast.words import timeline
from support.shell import Shell, real

TRICKS = "\x1b[31mred\x07\x9b2J\u202eevil\u2066\u200b\r\n\x00\U000e0041\ud800"


@given(st.text(alphabet=st.characters(codec=None)))
def test_nothing_shown_can_steer_a_terminal_or_hide(said: str) -> None:
    """FAULTS 105: control, bidirectional and invisible characters come out as escapes."""
    for lines in (False, True):
        kinds = {
            unicodedata.category(c)
            for c in text.visible(said, lines=lines)
            if not (lines and c in "\n\t")
        }

        assert set() == kinds & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126)))
def test_plain_text_is_shown_as_it_is(said: str) -> None:
    assert said == text.visible(said)


def test_escape_sequences_in_data_never_reach_the_screen(shell: Shell) -> None:
    """In the input, in results, state and errors, through every verb that shows them."""
    trick = TRICKS.replace("\ud800", "").replace("\x00", "")
    shell.run("recap", "r1", "to=nobody", f"notes={trick}", code=1)
    for words in (
        ["show", "r1"],
        ["trace", "r1"],
        ["events", "r1"],
        ["diff", "r1", "1", "2"],
        ["list"],
        ["show", "r1", "--json"],
        ["events", "r1", "--json"],
    ):
        said = CliRunner().invoke(cli, [*words, "--db", str(shell.db)], color=True).stdout

        assert "\x1b[31mred" not in said
        without_own_colours = re.sub(r"\x1b\[[0-9;]*m", "", said)
        assert not set("\x1b\x07\x9b\u202e\u2066\u200b\r\U000e0041") & set(without_own_colours), (
            words
        )


# -- a log that someone made to harm ------------------------------------------------------------

TRICK = "\x1b[2J\x1b]0;x\x07\x9b2J\u202e\u200b\r\n\x7f"
GOLDEN = json.loads((Path(__file__).parents[1] / "core" / "golden_events.json").read_text())


def hostile(value: Any) -> Any:
    """The same with a trick in every text, also where only certain words are expected."""
    if isinstance(value, str):
        return value + TRICK
    if isinstance(value, dict):
        return {k: hostile(v) for k, v in value.items()}
    return [hostile(v) for v in value] if isinstance(value, list) else value


def tricks_in(said: str) -> set[str]:
    """What could steer a terminal, apart from our own colours and line ends."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", said).replace("\n", "")
    return {c for c in plain if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}


@pytest.mark.parametrize("kind", sorted(GOLDEN))
def test_no_field_of_any_event_can_steer_the_timeline(kind: str) -> None:
    """The author of a log chooses every text in it; an import checks the chain, not the words."""
    for stored in GOLDEN[kind]:
        data = json.dumps(hostile(json.loads(stored["data"]))).encode()
        event = log.read_event("r1", Record(0, 0, 0, kind, data, b""))
        said = timeline.sentence(event)

        assert set() == tricks_in(said.what + said.text)
        assert "\n" not in said.what + said.text


KEPT = ("run_id", "branch", "hash", "blob")
"""Without these as they are, an import refuses the file."""


def forged(lines: list[str]) -> Iterator[str]:
    """The lines of an export with tricks in every text of every event, chained as if it were true."""
    head = json.loads(lines[0])
    yield lines[0]
    before = log.origin(head["id"]).hash
    for line in lines[1:]:
        found = json.loads(line)
        if "blob" in found:
            yield line
            continue
        data = json.loads(found["data"])
        data = {k: v if k in KEPT else hostile(v) for k, v in data.items()}
        found["data"] = json.dumps(data)
        numbers = (found["seq"], found["time"], found["epoch"])
        before = log.chain_hash(before, *numbers, found["kind"], found["data"].encode())
        yield json.dumps({**found, "hash": before.hex()})


@pytest.mark.parametrize("run_id", ["done", "failed", "approval", "question", "signal", "doubt"])
def test_a_forged_run_cannot_steer_the_terminal_that_shows_it(
    run_id: str, world: Path, tmp_path: Path
) -> None:
    exported = real(world, "export", run_id, "--db", "runs.db").stdout.splitlines()
    (tmp_path / "forged.jsonl").write_text("\n".join(forged(exported)))

    def said(*words: str) -> str:
        db = str(tmp_path / "runs.db")
        result = CliRunner().invoke(cli, [*words, "--db", db], color=True)
        assert isinstance(result.exception, SystemExit | None), result.exception
        return result.output

    told = [said("import", str(tmp_path / "forged.jsonl"))]
    assert f"{run_id}: " in told[0], told
    told += [
        said(*words)
        for words in (
            ["list"],
            ["show", run_id],
            ["show", run_id, "--step", "1"],
            ["trace", run_id],
            ["events", run_id],
            ["diff", run_id, "1", "2"],
            ["verify", run_id],
            ["doctor"],
            ["show", run_id, "--json"],
            ["trace", run_id, "--json"],
            ["approve", run_id, "--yes"],
            ["answer", run_id, "x", "--yes"],
            ["resolve", run_id, "2", "--retry", "--yes"],
            ["undo", run_id, "--yes"],
            ["cancel", run_id, "--yes"],
            ["fork", run_id, "1"],
            ["gc", "--keep", "0", "--yes"],
        )
    ]

    assert [set()] * len(told) == [tricks_in(output) for output in told]
    assert any("\\x1b[2J" in output for output in told)
    # Nor can it begin a line of its own: what follows the trick's line break would be there.
    assert not [line for output in told for line in output.splitlines() if line.startswith("\\x7f")]


def test_the_arguments_of_a_command_cannot_steer_a_terminal_either(world: Path) -> None:
    """They come from scripts, and scripts take them from anywhere."""
    for words in (
        ["show", TRICK],
        ["list", "--agent", TRICK],
        ["run", TRICK],
        ["show", "done", TRICK],
        ["import", TRICK],
        ["export", "done", "-o", TRICK],
        [TRICK],
        ["list", "--limit", TRICK],
        ["list", "--db", TRICK],
    ):
        done = real(world, *words, *([] if "--db" in words else ["--db", "runs.db"]))

        assert set() == tricks_in(done.stdout + done.stderr), words
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("age", "seconds"),
    [("90", 90), ("30s", 30), ("1.5m", 90), ("2h", 7200), ("1d", 86_400), ("1w", 604_800)],
)
def test_ages_are_read_with_their_units(age: str, seconds: float) -> None:
    assert seconds == text.seconds_of(age)


@pytest.mark.parametrize(
    "words",
    [
        ["show", "r\udcff"],
        ["sho\udcff"],
        ["signal", "question", "go\udcff", "1"],
        ["answer", "question", "\udcff", "--yes"],
        ["cancel", "question", "--why", "\udcff", "--yes"],
        ["list", "--agent", "\udcff"],
        ["list", "--json", "--db", "\udcff.db"],
    ],
    ids=lambda words: words[0].replace("\udcff", "?") + str(len(words)),
)
def test_an_argument_that_is_not_utf_8_is_refused_as_a_wrong_call(
    world: Path, words: list[str]
) -> None:
    """Python hands such bytes on as lone surrogates, which no store can keep."""
    named = [] if "--db" in words else ["--db", "runs.db"]
    done = real(world, *words, *named)

    assert (2, "") == (done.returncode, done.stdout)
    assert "is not valid UTF-8" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_store_url_from_the_environment_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    done = real(tmp_path, "list", HOLDFAST_URL="x\udcff.db")

    assert 0 != done.returncode
    assert "is not valid UTF-8" in done.stderr
    assert "Traceback" not in done.stderr
