"""Clients that do harm to the server: slow headers, slow bodies, many connections, many streams (FAULTS G 109)."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import httpx2
import pytest

from holdfast import Holdfast, RunWaiting
from holdfast.web import server as listening
from holdfast.web.app import create_app
from holdfast.web.context import ClientLimits
from support.web import TOKENS, credentials, patient, serving

HEADERS = {"authorization": f"Bearer {TOKENS['operator']}"}


@pytest.fixture
def url(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(listening, "HEADER_SECONDS", 0.5)
    monkeypatch.setattr(listening, "CONNECTIONS_PER_PEER", 20)
    limits = ClientLimits(body_seconds=0.5, streams_per_user=2)
    with serving(create_app(hf, credentials=credentials(), limits=limits)) as found:
        yield found


def connected(url: str, sent: bytes) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    made = socket.create_connection((host, int(port)), timeout=60)
    made.sendall(sent)
    return made


def answer(connection: socket.socket) -> bytes:
    """All that the server sends until it closes the connection."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def test_connections_with_an_incomplete_request_are_closed(url: str) -> None:
    """None of it, a part of the first request's headers, or of the second's; and others are served meanwhile.

    Long before the 30 seconds that an idle connection is kept."""
    began = time.monotonic()
    first = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    slow = [
        connected(url, sent)
        for sent in (b"", b"GET / HTTP/1.1\r\nHost: x\r\n", first + b"GET /healthz HT")
    ]
    assert 200 == httpx2.get(url + "/healthz").status_code
    assert [b"", b""] == [answer(one) for one in slow[:2]]
    assert answer(slow[2]).startswith(b"HTTP/1.1 200 OK")
    assert time.monotonic() - began < 25
    for one in slow:
        one.close()


def test_a_request_whose_body_does_not_arrive_times_out(url: str) -> None:
    head = (
        "POST /api/v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {TOKENS['operator']}\r\nContent-Length: 100\r\n\r\n{{"
    )
    with connected(url, head.encode()) as slow:
        assert answer(slow).startswith(b"HTTP/1.1 408")
    assert 200 == httpx2.get(url + "/healthz").status_code


def test_a_request_whose_body_arrives_too_slowly_times_out(url: str) -> None:
    """The time counts from its first byte to its last, not between two of them."""
    head = (
        "POST /api/v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Authorization: Bearer {TOKENS['operator']}\r\nContent-Length: 100000\r\n\r\n"
    )
    with connected(url, head.encode()) as slow:
        slow.settimeout(0.1)
        found = b""
        for _ in range(600):
            slow.sendall(b"x")
            with contextlib.suppress(TimeoutError):
                found = slow.recv(65536)
                break
    assert found.startswith(b"HTTP/1.1 408")


def test_one_peer_has_a_limited_number_of_connections(url: str) -> None:
    kept = [connected(url, b"") for _ in range(30)]
    # Those beyond the limit are closed at once; reading from the others ends when their time is over.
    assert {b""} == {answer(one) for one in kept}
    for one in kept:
        one.close()
    assert 200 == httpx2.get(url + "/healthz").status_code


def test_streams_are_limited_per_user_and_counted_down_when_they_end(
    hf: Holdfast, url: str
) -> None:
    with pytest.raises(RunWaiting):
        hf.run(patient, id="p")
    stream = url + "/api/v1/runs/p/stream"
    with httpx2.Client(headers=HEADERS) as client:
        with client.stream("GET", stream) as one, client.stream("GET", stream) as two:
            assert [200, 200] == [one.status_code, two.status_code]
            refused = client.get(stream)
            assert (429, "5") == (refused.status_code, refused.headers["retry-after"])
            hf.cancel("p")
            hf.worker().run(once=True)
            assert ["event: end"] * 2 == [
                next(line for line in s.iter_lines() if line == "event: end") for s in (one, two)
            ]
        with client.stream("GET", stream) as again:
            assert 200 == again.status_code


def test_a_stream_sends_an_event_when_it_is_committed(hf: Holdfast, url: str) -> None:
    with pytest.raises(RunWaiting):
        hf.run(patient, id="p")
    with (
        httpx2.Client(headers=HEADERS) as client,
        client.stream("GET", url + f"/api/v1/runs/p/stream?after={hf.get('p').seq}") as following,
    ):
        hf.signal("p", "other")
        kinds = (line for line in following.iter_lines() if line.startswith("event: "))
        assert "event: signal_received" == next(kinds)


def test_a_small_response_is_sent_without_delay(url: str) -> None:
    """Headers and body are two writes: without TCP_NODELAY the second waits 40 ms for an acknowledgement."""
    with httpx2.Client(headers=HEADERS) as client:
        client.get(url + "/healthz")
        took = []
        for _ in range(30):
            began = time.perf_counter()
            client.get(url + "/healthz")
            took.append(time.perf_counter() - began)
    assert min(took) < 0.03


def test_a_stream_of_the_pages_has_the_security_headers(url: str) -> None:
    """It does not end, so `test_access.py` leaves it out."""
    with httpx2.stream("GET", url + "/runs/live", headers=HEADERS) as found:
        assert 200 == found.status_code
        assert "script-src 'self'" in found.headers["content-security-policy"]
        assert "nosniff" == found.headers["x-content-type-options"]
