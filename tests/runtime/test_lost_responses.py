"""A lost response is in doubt, not failed: the effect may have happened, and nothing repeats it by itself."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import (
    AsyncRun,
    CallFailed,
    Holdfast,
    InDoubt,
    InvalidInput,
    Retry,
    Run,
    RunFailed,
    RunWaiting,
    agent,
    tool,
)
from holdfast.core import events as e
from support.runs import of_kind
from support.waiting import eventually

READ_SECONDS = 0.3


class MailServer:
    """It acts on every request, and then loses the response in one way or another."""

    def __init__(self, lose: str) -> None:
        self.sent = 0
        self._lose = lose
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}/"

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            data = b""
            while b"the mail" not in data and (more := connection.recv(65536)):
                data += more
            self.sent += b"the mail" in data
            self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        if self._lose == "silent":
            self._held.append(connection)
            return
        if self._lose == "reset":
            at_once = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        elif self._lose == "partial":
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nok")
        elif self._lose != "closed":
            connection.sendall(f"HTTP/1.1 {self._lose} x\r\nContent-Length: 0\r\n\r\n".encode())
        connection.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        for connection in self._held:
            connection.close()


@pytest.fixture
def serve() -> Iterator[Callable[[str], MailServer]]:
    made: list[MailServer] = []

    def start(lose: str) -> MailServer:
        made.append(MailServer(lose))
        return made[-1]

    yield start
    for server in made:
        server.close()


def with_urllib(url: str) -> str:
    try:
        with urllib.request.urlopen(url, data=b"the mail", timeout=READ_SECONDS) as got:
            return str(got.read())
    except urllib.error.HTTPError as error:
        error.close()
        raise


def with_httpx(url: str) -> str:
    httpx = pytest.importorskip("httpx")
    got = httpx.post(url, content=b"the mail", timeout=httpx.Timeout(60, read=READ_SECONDS))
    return str(got.raise_for_status().text)


def with_requests(url: str) -> str:
    requests = pytest.importorskip("requests")
    got = requests.post(url, data=b"the mail", timeout=(60, READ_SECONDS))
    got.raise_for_status()
    return str(got.text)


def mailing_agent(post: Callable[[str], str], **declared: Any) -> Any:
    @tool(**declared)
    def send_mail(url: str) -> str:
        return post(url)

    @agent
    def main(run: Run, url: str) -> str:
        return send_mail(url)

    return main


@pytest.mark.parametrize("lose", ["silent", "reset", "closed", "partial", "503"])
@pytest.mark.parametrize("post", [with_urllib, with_httpx, with_requests])
def test_a_mail_whose_response_is_lost_is_sent_once_also_with_retry_and_resume(
    hf: Holdfast, serve: Callable[[str], MailServer], post: Callable[[str], str], lose: str
) -> None:
    server = serve(lose)
    main = mailing_agent(post, retry=Retry(attempts=3))

    for _ in range(2):
        with pytest.raises(RunWaiting, match="may or may not have happened"):
            hf.run(main, id="r", url=server.url)

    eventually(lambda: server.sent, "the mail")
    assert (server.sent, hf.get("r").call(1).status) == (1, "in_doubt")
    assert [] == of_kind(hf, "r", e.CallFailure)
    (doubted,) = of_kind(hf, "r", e.CallDoubted)
    assert doubted.error is not None and doubted.error.type in doubted.because
    hf.resolve("r", done="sent")
    assert "sent" == hf.run(main, id="r", url=server.url)


@pytest.mark.parametrize("post", [with_urllib, with_httpx, with_requests])
@pytest.mark.parametrize("answer", ["refused", "422"])
def test_a_mail_that_was_surely_not_sent_has_failed(
    hf: Holdfast, serve: Callable[[str], MailServer], post: Callable[[str], str], answer: str
) -> None:
    server = serve(answer if answer != "refused" else "closed")
    url = server.url
    if answer == "refused":
        with socket.socket() as nobody:
            nobody.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{nobody.getsockname()[1]}/"

    with pytest.raises(RunFailed):
        hf.run(mailing_agent(post, retry=Retry(attempts=2)), id="r", url=url)

    assert "failed" == hf.get("r").call(1).status
    assert 2 == len(of_kind(hf, "r", e.CallStarted))


def raising_agent(errors: list[Exception | str], made: list[str], **declared: Any) -> Any:
    """Its tool does one after the other: it raises an error, or returns a text. The tool has a key if asked for."""
    keyed = declared.pop("keyed", False)

    def act(key: str) -> str:
        made.append(key)
        outcome = errors[len(made) - 1]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    if keyed:

        @tool(**declared)
        def pay(idempotency_key: str = "") -> str:
            return act(idempotency_key)
    else:

        @tool(**declared)
        def pay() -> str:  # type: ignore[misc]
            return act("")

    @agent
    def main(run: Run) -> str:
        return pay()

    return main


class OddError(Exception):
    """Of a library that Holdfast does not know."""


@pytest.mark.parametrize(
    ("error", "declared"),
    [
        (InDoubt("the gateway says nothing"), {}),
        (OddError("?"), {"unsure_on": (OddError,)}),
        (OddError("?"), {"unsure_on": OddError}),
        (ConnectionResetError("reset"), {}),
    ],
    ids=repr,
)
def test_a_tool_can_report_itself_that_its_outcome_is_unknown(
    hf: Holdfast, error: Exception, declared: dict[str, Any]
) -> None:
    made: list[str] = []
    main = raising_agent([error], made, retry=Retry(attempts=3), **declared)

    with pytest.raises(RunWaiting, match=type(error).__name__):
        hf.run(main, id="r")
    with pytest.raises(RunWaiting):
        hf.resume("r")

    assert 1 == len(made)


def test_a_lost_response_in_the_middle_of_retries_ends_them(hf: Holdfast) -> None:
    made: list[str] = []
    errors: list[Exception | str] = [ConnectionRefusedError(), ConnectionResetError(), "paid"]
    main = raising_agent(errors, made, retry=Retry(attempts=5))

    with pytest.raises(RunWaiting, match="may or may not have happened"):
        hf.run(main, id="r")

    assert 2 == len(made)
    hf.resolve("r", retry=True, by="ann", why="the bank has nothing")
    assert "paid" == hf.run(main, id="r")


def test_an_async_tool_in_a_branch_is_in_doubt_while_its_sibling_finishes(hf: Holdfast) -> None:
    done: list[str] = []

    @tool
    async def pay() -> str:
        raise ConnectionResetError

    @tool
    async def greet() -> str:
        done.append("hello")
        return "hello"

    @agent
    async def main(run: AsyncRun) -> list[str]:
        return list(await asyncio.gather(pay(), greet()))

    with pytest.raises(RunWaiting, match="pay, which may or may not have happened"):
        hf.run(main, id="r")
    hf.resolve("r", done="paid")

    assert ["paid", "hello"] == hf.run(main, id="r")
    assert ["hello"] == done


@pytest.mark.parametrize("answer", ["found", None])
def test_a_checked_tool_asks_its_check_after_a_lost_response(hf: Holdfast, answer: Any) -> None:
    made: list[str] = []
    errors: list[Exception | str] = [ConnectionResetError(), "paid"]
    main = raising_agent(errors, made, check=lambda _key: answer, retry=Retry(attempts=2))

    assert hf.run(main, id="r") == (answer or "paid")
    assert len(made) == (1 if answer else 2)
    assert "check" == of_kind(hf, "r", e.CallResolved)[0].by


def test_a_check_that_fails_leaves_the_call_in_doubt(hf: Holdfast) -> None:
    def check(key: str) -> str:
        raise OddError("the bank is closed")

    main = raising_agent([InDoubt("?")], [], check=check)

    with pytest.raises(RunWaiting, match="its check failed: OddError"):
        hf.run(main, id="r")


def test_a_keyed_tool_is_called_again_with_its_key_after_a_lost_response(hf: Holdfast) -> None:
    made: list[str] = []
    errors: list[Exception | str] = [ConnectionResetError(), "paid"]
    main = raising_agent(errors, made, keyed=True, retry=Retry(attempts=2))

    assert "paid" == hf.run(main, id="r")
    assert 2 == len(made) and 1 == len(set(made))
    (lost,) = of_kind(hf, "r", e.CallFailure)
    assert "unknown" == lost.error.effect


@pytest.mark.parametrize("last", [ConnectionResetError(), ConnectionRefusedError()], ids=repr)
def test_a_keyed_tool_without_attempts_left_is_in_doubt_and_resume_uses_its_key(
    hf: Holdfast, last: Exception
) -> None:
    """Not failed: the code, or a model, could take that for a no and pay under another key."""
    made: list[str] = []
    errors: list[Exception | str] = [ConnectionResetError(), last, "paid"]
    main = raising_agent(errors, made, keyed=True, retry=Retry(attempts=2))

    with pytest.raises(RunWaiting, match="resuming the run calls it again with its key"):
        hf.run(main, id="r")
    assert ("in_doubt", 2) == (hf.get("r").call(1).status, len(made))

    assert "paid" == hf.resume("r")
    assert 3 == len(made) and 1 == len(set(made))


def test_an_answer_to_the_same_key_holds_for_a_lost_response_before_it(hf: Holdfast) -> None:
    errors: list[Exception | str] = [ConnectionResetError(), ValueError("no such account")]
    main = raising_agent(errors, [], keyed=True, retry=Retry(attempts=2))

    with pytest.raises(RunFailed, match="no such account"):
        hf.run(main, id="r")


def test_a_keyed_tool_that_was_surely_refused_has_failed(hf: Holdfast) -> None:
    main = raising_agent([ConnectionRefusedError()], [], keyed=True)

    with pytest.raises(RunFailed):
        hf.run(main, id="r")


def test_after_a_persons_retry_earlier_attempts_are_no_longer_unknown(hf: Holdfast) -> None:
    made: list[str] = []
    errors: list[Exception | str] = [ConnectionResetError(), ConnectionRefusedError()]
    main = raising_agent(errors, made, keyed=True)
    with pytest.raises(RunWaiting):
        hf.run(main, id="r")

    hf.resolve("r", retry=True)
    with pytest.raises(RunFailed):
        hf.resume("r")

    assert 2 == len(made)


@pytest.mark.parametrize("keyed", [False, True])
def test_on_doubt_fail_settles_a_lost_response_as_failed_at_once(hf: Holdfast, keyed: bool) -> None:
    made: list[str] = []
    main = raising_agent([InDoubt("?")], made, keyed=keyed, on_doubt="fail")

    with pytest.raises(RunFailed, match="may or may not have happened"):
        hf.run(main, id="r")

    assert ["policy"] == [x.by for x in of_kind(hf, "r", e.CallResolved)]


def test_on_doubt_retry_leaves_a_lost_response_to_the_retries(hf: Holdfast) -> None:
    made: list[str] = []
    errors: list[Exception | str] = [InDoubt("?"), "paid"]
    main = raising_agent(errors, made, on_doubt="retry", retry=Retry(attempts=2))

    assert "paid" == hf.run(main, id="r")
    assert 2 == len(made)


def test_code_can_see_that_a_failed_call_may_have_happened(hf: Holdfast) -> None:
    seen: list[bool] = []

    @tool(on_doubt="retry")
    def pay() -> None:
        raise InDoubt("?")

    @agent
    def main(run: Run) -> None:
        try:
            pay()
        except CallFailed as failed:
            seen.append(failed.may_have_happened)

    hf.run(main, id="r")
    hf.replay("r")

    assert [True, True] == seen


def test_a_tool_that_only_reads_fails_as_before(hf: Holdfast) -> None:
    main = raising_agent([ConnectionResetError()], [], risk="read")

    with pytest.raises(RunFailed, match="ConnectionResetError"):
        hf.run(main, id="r")


@pytest.mark.parametrize("wrong", ["OddError", [OddError], (OddError, "x"), 5, BaseException])
def test_an_unsure_on_that_is_not_an_exception_is_refused_when_declared(wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="unsure_on"):
        raising_agent([], [], unsure_on=wrong)


def test_unsure_on_is_refused_where_nothing_can_be_in_doubt() -> None:
    with pytest.raises(InvalidInput, match="never in doubt"):
        raising_agent([], [], risk="read", unsure_on=OddError)
