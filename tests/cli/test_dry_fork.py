"""`holdfast fork ID STEP --dry FILE`: one step again, in isolation."""

import shlex

from support.shell import Shell, commands


def test_a_dry_fork_prints_what_the_step_did_and_changes_nothing(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")
    before = shell.log("r1")

    said = shell(
        "fork", "r1", "2", "--dry", "agents.py", "--mock", 'send={"message_id": "m-9"}'
    ).stdout

    assert "step 2, send: done" in said
    assert '{"body": "HELLO", "to": "sam"}' in said
    assert "state.message_id" in said and "m-9" in said
    assert "run r1 is unchanged" in said
    assert before == shell.log("r1")
    assert ["sam"] == shell.lines("sent")
    assert ["r1"] == [run["id"] for run in shell.json("list")["runs"]]


def test_a_dry_fork_as_json(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")

    data = shell.json("fork", "r1", "2", "--dry", "agents.py", "--mock", 'send={"message_id": "x"}')

    assert ("send", "done", "done", {"message_id": "x"}) == (
        data["name"],
        data["status"],
        data["recorded"],
        data["result"],
    )
    assert {"path": "state.message_id", "before": None, "after": "x"} in data["changes"]


def test_a_tool_without_a_mock_is_named_and_not_called(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")

    refused = shell("fork", "r1", "2", "--dry", "agents.py", code=1).stderr

    assert "send has no mock, so nothing was executed" in refused
    (line,) = commands(refused)
    pasted = shell(*shlex.split(line.replace("RESULT", "m-9"))[1:]).stdout
    assert "step 2, send: done" in pasted
    assert ["sam"] == shell.lines("sent")


def test_mocks_of_the_file_are_used(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")
    with (shell.folder / "agents.py").open("a") as file:
        file.write('\nMOCKS = {"send": {"raises": ValueError("down")}}\n')

    data = shell.json("fork", "r1", "2", "--dry", "agents.py")

    assert ("failed", "down", 3) == (data["status"], data["error"]["message"], data["attempts"])


def test_mocks_without_dry_and_an_id_with_it_are_refused(shell: Shell) -> None:
    shell.run("recap", "r1", "to=sam")

    assert "--dry FILE" in shell("fork", "r1", "1", "--mock", "send=1", code=2).stderr
    assert (
        "--id cannot be used"
        in shell("fork", "r1", "1", "--dry", "agents.py", "--id", "x", code=2).stderr
    )
