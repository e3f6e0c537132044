"""Declared secrets never reach the log, the errors or anything that people see."""

from __future__ import annotations

import dataclasses
import io
import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from holdfast import (
    CallFailed,
    Diverged,
    Holdfast,
    NotStorable,
    Retry,
    Run,
    RunFailed,
    RunWaiting,
    agent,
    step,
    tool,
    views,
)

CANARY = "s3cr3t-canary-4f7a"


def everything_visible(hf: Holdfast, run_id: str) -> str:
    """All that people and programs can see of a run."""
    state = hf.get(run_id)
    parts = [json.dumps(views.to_plain(state), default=str), repr(state), repr(hf.events(run_id))]
    parts += [json.dumps(views.to_plain(hf.at(run_id, c.step)), default=str) for c in state.calls]
    parts.append(msgspec.json.encode(views.to_plain(state)).decode())
    return "\n".join(parts)


def assert_nowhere(home: Any, *texts: str) -> None:
    paths = list(Path(home.path).parent.iterdir())
    assert home.path in paths
    for path in paths:
        assert CANARY.encode() not in path.read_bytes(), f"the secret is in {path.name}"
    for text in texts:
        assert CANARY not in text


def test_a_redacted_argument_is_found_nowhere_and_the_tool_gets_it(home: Any) -> None:
    got: list[str] = []

    @tool(redact=("token",))
    def call_api(url: str, token: str, idempotency_key: str = "") -> dict[str, str]:
        got.append(token)
        return {"ok": "yes", "token": token}

    @agent
    def main(run: Run) -> dict[str, str]:
        answer = call_api("https://example.com", token=CANARY)
        run.wait_for("go")
        return answer

    hf = home.open()
    with pytest.raises(RunWaiting):
        hf.run(main, id="r")
    hf.signal("r", "go")
    result = home.open().run(main, id="r")

    assert got == [CANARY]
    assert result == {"ok": "yes", "token": "[redacted]"}
    assert_nowhere(home, everything_visible(hf, "r"), repr(result))


@dataclasses.dataclass
class Session:
    url: str
    token: str
    said: list[str]


def test_a_secret_in_the_words_of_a_result_is_removed(home: Any) -> None:
    @tool(redact=("token",))
    def log_in(token: str, idempotency_key: str = "") -> Session:
        return Session(f"https://example.com/?token={token}", token, [f"welcome, {token}!"])

    @tool
    def greet(key: pydantic.SecretStr, idempotency_key: str = "") -> str:
        return f"hello {key.get_secret_value()}"

    @agent
    def main(run: Run) -> list[Any]:
        session = log_in(token=CANARY)
        run.wait_for("go")
        return [session.url, session.token, session.said, greet(pydantic.SecretStr(CANARY))]

    hf = home.open()
    with pytest.raises(RunWaiting):
        hf.run(main, id="r")
    hf.signal("r", "go")
    result = home.open().run(main, id="r")

    url = "https://example.com/?token=[redacted]"
    assert result == [url, "[redacted]", ["welcome, [redacted]!"], "hello [redacted]"]
    assert_nowhere(home, everything_visible(hf, "r"))


def test_a_short_secret_does_not_spoil_a_result(home: Any) -> None:
    @tool(redact=("pin",))
    def pay(pin: str, idempotency_key: str = "") -> dict[str, str]:
        return {"order": f"9{pin}7", "pin": pin}

    @agent
    def main(run: Run) -> dict[str, str]:
        return pay("1234")

    assert home.open().run(main, id="r") == {"order": "912347", "pin": "[redacted]"}


def test_a_secret_in_an_error_is_removed_from_message_and_traceback(home: Any) -> None:
    @tool(redact=("token",), retry=Retry(attempts=2, initial=0))
    def call_api(token: str, idempotency_key: str = "") -> None:
        raise ConnectionError(f"401 for https://example.com/?token={token}")

    @agent
    def main(run: Run) -> None:
        call_api(token=CANARY)

    hf = home.open()
    with pytest.raises(RunFailed) as failed:
        hf.run(main, id="r")

    assert "[redacted]" in str(failed.value)
    assert_nowhere(home, everything_visible(hf, "r"), str(failed.value), repr(failed.value))


def test_a_secret_in_a_caught_and_wrapped_error_does_not_reach_the_runs_failure(home: Any) -> None:
    @tool(redact=("token",))
    def call_api(token: str, idempotency_key: str = "") -> None:
        raise ConnectionError(f"bad token {token}")

    @agent
    def main(run: Run) -> None:
        try:
            call_api(token=CANARY)
        except CallFailed as failed:
            raise RuntimeError("no access") from failed

    hf = home.open()
    with pytest.raises(RunFailed):
        hf.run(main, id="r")

    assert_nowhere(home, everything_visible(hf, "r"))


@pytest.mark.parametrize("where", ["argument", "nested", "list"])
def test_a_secret_type_is_found_nowhere_and_the_tool_gets_it(home: Any, where: str) -> None:
    got: list[str] = []

    @tool
    def call_api(key: Any) -> str:
        inner = key["deep"]["key"] if where == "nested" else key[0] if where == "list" else key
        got.append(inner.get_secret_value())
        return "ok"

    @agent
    def main(run: Run) -> str:
        secret = pydantic.SecretStr(CANARY)
        return call_api(
            {"deep": {"key": secret}}
            if where == "nested"
            else [secret]
            if where == "list"
            else secret
        )

    hf = home.open()
    assert hf.run(main, id="r") == "ok"

    assert got == [CANARY]
    assert_nowhere(home, everything_visible(hf, "r"))


class Credentials(pydantic.BaseModel):
    user: str
    password: pydantic.SecretStr


def test_a_secret_inside_a_model_is_found_nowhere(home: Any) -> None:
    got: list[str] = []

    @tool
    def log_in(who: Credentials) -> str:
        got.append(who.password.get_secret_value())
        raise PermissionError(f"no: {who.password.get_secret_value()}")

    @agent
    def main(run: Run) -> str:
        return log_in(Credentials(user="sam", password=pydantic.SecretStr(CANARY)))

    hf = home.open()
    with pytest.raises(RunFailed) as failed:
        hf.run(main, id="r")

    assert got == [CANARY]
    assert_nowhere(home, everything_visible(hf, "r"), str(failed.value))


def test_a_secret_in_a_step_and_in_an_approval_is_not_shown(home: Any) -> None:
    @step(redact=("key",))
    def ask_model(prompt: str, key: str) -> str:
        return "hi"

    @tool(redact=("key",))
    def pay(amount: int, key: str) -> str:
        return "paid"

    @agent(approve=("external_action",))
    def main(run: Run) -> str:
        ask_model("hello", key=CANARY)
        return pay(5, key=CANARY)

    hf = home.open()
    with pytest.raises(RunWaiting) as waiting:
        hf.run(main, id="r")
    (wait,) = hf.get("r").waits
    assert views.to_plain(wait.show) == {"amount": 5, "key": "[redacted]"}
    hf.approve("r")
    assert hf.run(main, id="r") == "paid"

    assert_nowhere(home, everything_visible(hf, "r"), str(waiting.value))


def test_a_changed_secret_is_not_a_divergence(home: Any) -> None:
    """Keys rotate; the action stays the same."""

    def made(token: str) -> Any:
        @tool(redact=("token",))
        def call_api(token: str, idempotency_key: str = "") -> str:
            return "ok"

        @agent(name="main")
        def main(run: Run) -> str:
            call_api(token=token)
            run.wait_for("go")
            return "done"

        return main

    with pytest.raises(RunWaiting):
        home.open().run(made(CANARY), id="r")
    hf = home.open()
    hf.signal("r", "go")

    assert hf.run(made("another"), id="r") == "done"


def test_a_secret_of_a_call_in_doubt_is_not_shown_to_people(home: Any) -> None:
    @tool(redact=("token",))
    def pay(token: str) -> None: ...

    @agent
    def main(run: Run) -> None:
        pay(token=CANARY)

    home.crash(main, "r", "after pay")
    hf = home.open()
    with pytest.raises(RunWaiting) as waiting:
        hf.run(main, id="r")

    assert_nowhere(home, everything_visible(hf, "r"), str(waiting.value))


def test_a_divergence_does_not_show_a_secret(home: Any) -> None:
    @tool(redact=("token",))
    def one(token: str) -> None: ...

    @tool(redact=("token",))
    def two(token: str) -> None: ...

    def made(which: Any) -> Any:
        @agent(name="main")
        def main(run: Run) -> None:
            which(token=CANARY)
            run.wait_for("go")

        return main

    with pytest.raises(RunWaiting):
        home.open().run(made(one), id="r")
    with pytest.raises(Diverged, match="diverged") as stopped:
        home.open().run(made(two), id="r")

    assert_nowhere(home, str(stopped.value))


def test_an_input_of_a_secret_type_is_refused(home: Any) -> None:
    @agent
    def main(run: Run, key: pydantic.SecretStr) -> None: ...

    with pytest.raises(NotStorable, match=r"\$\.key") as refused:
        home.open().run(main, id="r", key=pydantic.SecretStr(CANARY))
    assert_nowhere(home, str(refused.value))


def test_a_secret_in_state_is_refused(home: Any) -> None:
    @agent
    def main(run: Run) -> None:
        run.state.key = pydantic.SecretStr(CANARY)

    with pytest.raises(RunFailed, match=r"state\.key cannot be stored") as refused:
        home.open().run(main, id="r")
    assert_nowhere(home, str(refused.value))


def test_nothing_that_we_log_holds_a_secret(home: Any) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = logging.getLogger("holdfast")
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:

        @tool(redact=("token",))
        def call_api(token: str) -> None:
            raise ValueError(token)

        @agent
        def main(run: Run) -> None:
            call_api(token=CANARY)

        def broken(said: Any) -> None:
            raise RuntimeError(f"cannot tell of {said}")  # which is logged

        hf = home.open(main)
        hf.start(main, id="r")
        hf.worker(report=broken).run(once=True)
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)

    assert hf.handle("r").status == "failed"
    assert "ValueError: [redacted]" in stream.getvalue()
    assert_nowhere(home, stream.getvalue())
