"""The verbs with which people decide. In this process, through click's runner."""

import re

import pytest

from support.shell import Shell, commands

# -- people decide -------------------------------------------------------------------------------


def test_approve_shows_the_exact_arguments_before_it_asks(shell: Shell) -> None:
    shell.run("careful", "r1", "to=sam", code=1)

    result = shell("approve", "r1", "--by", "ann", "--why", "fine", input="y\n")

    assert '"to": "sam"' in result.stderr
    assert '"body": "HELLO"' in result.stderr
    assert "approve this?" in result.stderr
    assert "r1: approved" in result.stdout
    assert '{\n  "message_id": "m-1"\n}\n' == shell("resume", "agents.py", "r1").stdout
    assert any(
        "approved by ann: fine" in line["text"] for line in shell.json("show", "r1")["lines"]
    )


def test_approve_with_set_calls_the_tool_with_that_argument(shell: Shell) -> None:
    """A text stays a text, whatever it looks like; what changes is shown before it asks."""
    shell.run("careful", "r1", "to=sam", code=1)

    result = shell("approve", "r1", "--set", "to=17", "--by", "ann", input="y\n")

    assert 'to: "sam" becomes "17"' in result.stderr
    assert "r1: approved with edited arguments" in result.stdout
    shell("resume", "agents.py", "r1")
    (call,) = [c for c in shell.json("show", "r1")["calls"] if c["name"] == "send"]
    assert {"to": "17", "body": "HELLO"} == call["args"]


@pytest.mark.parametrize(
    ("edit", "code", "said"),
    [
        ("too=ann", 1, "send has no argument 'too'; its arguments are body, to"),
        ("to", 2, "not of the form key=value"),
    ],
)
def test_an_edit_that_is_wrong_changes_nothing(
    shell: Shell, edit: str, code: int, said: str
) -> None:
    shell.run("careful", "r1", "to=sam", code=1)
    before = shell.log("r1")

    assert said in shell("approve", "r1", "--set", edit, "--yes", code=code).stderr
    assert before == shell.log("r1")


REFUND = """
from holdfast import Run, agent, tool

@tool(risk="external_action")
def refund(amount: int, note: str) -> str:
    return f"refunded {amount}"

@agent(approve=("external_action",))
def desk(run: Run) -> str:
    return refund(5, "late")
"""


@pytest.mark.parametrize("edit", ["amount=abc", "amount=[1]", "amount=true"])
def test_an_edit_of_another_type_is_refused_before_it_asks(shell: Shell, edit: str) -> None:
    """The person is not asked to confirm what is refused anyway."""
    (shell.folder / "refund.py").write_text(REFUND)
    shell("run", "refund.py:desk", "--id", "r1", code=1)
    before = shell.log("r1")

    refused = shell("approve", "r1", "--set", "note=soon", "--set", edit, input="y\n", code=1)

    assert "refund: 'amount' must be a number, not " in refused.stderr
    assert "approve this?" not in refused.stderr
    assert "becomes" not in refused.stderr
    assert before == shell.log("r1")


@pytest.mark.parametrize(
    ("input", "said"), [("n\n", "nothing was done"), ("", "use --yes to skip the question")]
)
def test_approve_without_a_yes_changes_nothing(shell: Shell, input: str, said: str) -> None:
    shell.run("careful", "r1", "to=sam", code=1)
    before = shell.log("r1")

    assert said in shell("approve", "r1", input=input, code=1).stderr
    assert before == shell.log("r1")


def test_a_rejection_is_passed_to_the_agent(shell: Shell) -> None:
    shell.run("careful", "r1", "to=sam", code=1)
    assert (
        "rejected"
        == shell.json("reject", "r1", "--yes", "--by", "ann", "--why", "not today")["did"]
    )

    assert "rejected by ann: not today" in shell("resume", "agents.py", "r1", code=1).stderr
    assert [] == shell.lines("sent")


def test_a_second_decision_is_refused_and_the_error_shows_the_first(shell: Shell) -> None:
    shell.run("careful", "r1", "to=sam", code=1)
    shell("approve", "r1", "--yes", "--by", "ann")
    before = shell.log("r1")

    assert "already decided: approved by ann" in shell("reject", "r1", "--yes", code=1).stderr
    assert before == shell.log("r1")


@pytest.mark.parametrize(
    "words",
    [
        ["approve", "r1", "--yes"],
        ["reject", "r1", "--yes"],
        ["answer", "r1", "x", "--yes"],
        ["signal", "r1", "x"],
        ["pause", "r1"],
        ["cancel", "r1", "--yes"],
        ["cancel", "r1"],
        ["resolve", "r1", "1", "--retry", "--yes"],
    ],
    ids=lambda words: words[0],
)
def test_an_ended_run_accepts_no_decisions(shell: Shell, words: list[str]) -> None:
    shell.run("recap", "r1", "to=sam")
    before = shell.log("r1")

    result = shell(*words, code=1)

    assert result.stderr.startswith("error: ")  # at once, without a question
    assert before == shell.log("r1")


def test_answer_takes_an_option_and_refuses_others(shell: Shell) -> None:
    shell.run("asking", "r1", code=1)
    before = shell.log("r1")

    assert (
        "not one of the options: red, blue"
        in shell("answer", "r1", "green", "--yes", code=1).stderr
    )
    unasked = shell("answer", "r1", "green", code=1).stderr
    assert ("not one of the options" in unasked, "[y/N]" in unasked) == (True, False)
    assert before == shell.log("r1")
    assert "Which colour?" in shell("answer", "r1", "blue", input="y\n").stderr
    assert "blue\n" == shell("resume", "agents.py", "r1").stdout


def test_a_signal_carries_json_and_counts_once_by_its_id(shell: Shell) -> None:
    shell.run("listening", "r1", code=1)

    for _ in range(2):
        shell("signal", "r1", "payment", '{"euro": 5}', "--signal-id", "p-1")

    assert 1 == sum(record.kind == "signal_received" for record in shell.log("r1"))
    assert {"got": {"euro": 5}} == shell.json("resume", "agents.py", "r1")["result"]
    assert "non-empty" in shell("signal", "r1", " ", code=1).stderr


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        ("careful", ["approve", "r1"]),
        ("careful", ["reject", "r1"]),
        ("asking", ["answer", "r1", "blue"]),
        ("listening", ["signal", "r1", "payment"]),
        ("listening", ["pause", "r1"]),
        ("listening", ["cancel", "r1"]),
        ("listening", ["patch", "r1", "--state", "x=1"]),
        ("recap", ["undo", "r1"]),
        ("recap", ["fork", "r1", "1", "--id", "r2"]),
        ("recap", ["fork", "r1", "1", "--id", "r2", "--state", "x=1"]),
    ],
    ids=lambda x: x if isinstance(x, str) else x[0],
)
def test_who_decided_and_why_is_kept(shell: Shell, agent: str, words: list[str]) -> None:
    params = [] if agent in ("asking", "listening") else ["to=sam"]
    shell.run(agent, "r1", *params, code=0 if agent == "recap" else 1)

    shell(*words, "--by", "ann", "--why", "the moon is full", "--yes")

    run_id = "r2" if "fork" in words else "r1"
    lines = shell("trace", run_id).stdout.splitlines()
    assert any("by ann: the moon is full" in line for line in lines), lines


def test_a_patch_of_a_version_that_was_read_is_refused_if_the_run_has_changed(shell: Shell) -> None:
    shell.run("listening", "r1", code=1)
    seq = str(shell.json("show", "r1")["seq"])
    words = ["patch", "r1", "--state", "x=1", "--expected", seq, "--key", "k", "--yes"]

    assert "patched" in shell(*words).stdout
    assert "already patched with this key" in shell(*words).stdout
    refused = shell("patch", "r1", "--state", "x=2", "--expected", seq, "--yes", code=1)
    assert "has changed" in refused.stderr


def in_doubt(shell: Shell) -> None:
    """A run whose step 2 may or may not have happened."""
    shell.process("run", "agents.py:paying", "--id", "r1", "-p", "amount=5", "--lease", "2")
    shell("resume", "agents.py", "r1", code=1)


@pytest.mark.parametrize(
    ("how", "code", "output", "charged"),
    [
        (["--done", "charged by hand"], 0, "charged by hand\n", 1),
        (["--failed", "the bank knows nothing"], 1, "", 1),
        (["--retry"], 0, "charged\n", 2),
    ],
    ids=["done", "failed", "retry"],
)
def test_resolve_settles_a_call_in_doubt(
    shell: Shell, how: list[str], code: int, output: str, charged: int
) -> None:
    in_doubt(shell)
    assert "in doubt" in shell("show", "r1").stdout

    shown = shell("resolve", "r1", "2", *how, "--by", "ann", input="y\n")
    (shell.folder / "fixed").touch()

    assert '"amount": 5' in shown.stderr
    assert output == shell("resume", "agents.py", "r1", code=code).stdout
    assert charged == len(shell.lines("charged"))


def test_resolve_refuses_what_is_unclear(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")

    shell("resolve", "r1", "2", code=2)
    shell("resolve", "r1", "2", "--retry", "--failed", "x", code=2)
    assert "not in doubt" in shell("resolve", "r1", "2", "--retry", "--yes", code=1).stderr
    assert "no call in doubt" in shell("resolve", "r1", "9", "--retry", "--yes", code=1).stderr


def test_pause_holds_a_run_until_it_is_resumed(shell: Shell) -> None:
    shell.run("listening", "r1", code=1)
    assert "paused" == shell.json("pause", "r1", "--by", "ann")["status"]
    shell("signal", "r1", "payment", "5")

    assert {"executed": 0} == shell.json("worker", "agents.py", "--once")
    assert "already paused" in shell("pause", "r1", code=1).stderr
    assert {"got": 5} == shell.json("resume", "agents.py", "r1")["result"]


def test_cancel_ends_a_run_at_its_next_call(shell: Shell) -> None:
    shell.run("listening", "r1", code=1)

    assert (
        "cancel r1 of listening" in shell("cancel", "r1", "--why", "too late", input="y\n").stderr
    )
    assert {"executed": 1} == shell.json("worker", "agents.py", "--once")
    assert "cancelled" == shell.json("show", "r1")["status"]


def test_a_cancelled_run_stays_open_until_a_worker_ends_it_and_reports_it_once(
    shell: Shell,
) -> None:
    shell.run("asking", "r1", code=1)
    assert "an answer: Which colour?" == shell.json("list")["runs"][0]["waiting_for"]
    shell("cancel", "r1", "--yes", "--by", "ann", "--why", "no need")

    listed = shell("list").stdout
    said = shell("resume", "agents.py", "r1", code=1).stderr

    assert re.search(r"r1 +asking +pending .* a worker\n", listed)
    assert said.startswith("run r1 cancelled by ann: no need\n")


def test_undo_lists_what_it_will_undo_and_then_undoes_it(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")

    asked = shell("undo", "r1", input="y\n")
    shell("resume", "agents.py", "r1", code=1)

    assert 'would undo step 2, send {"body": "HELLO", "to": "sam"}' in asked.stderr
    assert ["sam"] == shell.lines("undone")
    assert "undone" in shell("show", "r1").stdout
    assert "1 call will be undone" in asked.stdout


def test_undo_refuses_a_run_with_nothing_to_undo_and_changes_nothing(shell: Shell) -> None:
    """Never anything, not any more, and not yet: a run that has not ended can be cancelled."""
    shell.run("asking", "a1", code=1)
    shell.run("recap", "r1", "to=sam")
    shell("undo", "r1", "--yes")
    shell("resume", "agents.py", "r1", code=1)
    before = [shell.log(run_id) for run_id in ("a1", "r1")]

    refused = [shell("undo", run_id, "--yes", code=1).stderr for run_id in ("a1", "r1")]

    assert ["has nothing to undo" in said for said in refused] == [True, True]
    assert [commands(said) for said in refused] == [[f"holdfast cancel a1 --db {shell.db}"], []]
    assert [said.count("hf.") for said in refused] == [0, 0]
    assert before == [shell.log(run_id) for run_id in ("a1", "r1")]


def test_a_fork_copies_the_first_steps_and_continues_independently(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")

    made = shell.json("fork", "r1", "1", "--id", "r2", "--state", "colour=red")

    assert {"run": "r2", "forked_from": "r1", "step": 1, "inherited_effects": []} == made
    assert "m-1\n" == shell("resume", "agents.py", "r2").stdout
    assert "red" == shell.json("show", "r2")["state"]["colour"]
    assert "exists" in shell("fork", "r1", "1", "--id", "r2", code=1).stderr
    assert "has no step 9" in shell("fork", "r1", "9", code=1).stderr
    shell("fork", "r1", "1", "--state", "nonsense", code=2)
