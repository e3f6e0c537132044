"""The server: how long pages and API take with many runs and a long run, what a viewer waits for an update, and what idle
viewers cost a worker.

A real `holdfast serve` in a process of its own, over a store with 100,000 runs, of which one has 100,000 events. Every request
is made with a new id or cursor where there is one, so that nothing is answered from a cache of ours.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2

from bench.harness import Report, folder
from holdfast import Holdfast, Run, RunWaiting, agent, step
from holdfast.web.credentials import Credentials

P95_MS_MAX: Final = 200.0
LIVE_MS_MAX: Final = 300.0
VIEWERS: Final = 200
VIEWERS_EACH: Final = 20
DROP_MAX: Final = 0.05
LONG: Final = "long"


@step
def count(i: int) -> int:
    return i


@agent
def counting(run: Run, n: int = 0) -> int:
    return sum(count(i) for i in range(n)) + run.state.get("more", 0)


@agent
def patient(run: Run) -> Any:
    return run.wait_for("go")


class Place(NamedTuple):
    """One thing that is asked for; `path` is made of a number that grows."""

    name: str
    path: Callable[[int], str]


def main(*, rounds: int, quick: bool, databases: Sequence[str], results: Path) -> None:
    """Print and keep the figures."""
    report = Report("web", rounds, results)
    if "sqlite" in databases:
        with folder() as here:
            _measure(
                report,
                here,
                runs=2000 if quick else 100_000,
                events=2000 if quick else 100_000,
                requests=20 if quick else 200,
                seconds=1.0 if quick else 5.0,
            )
    report.show()


def _measure(
    report: Report, folder: Path, *, runs: int, events: int, requests: int, seconds: float
) -> None:
    url = str(folder / "h.db")
    credentials = Credentials(folder / "credentials.json")
    token = credentials.create("bench", "admin")
    # A server refuses more than 30 streams of one user.
    viewers = [credentials.create(f"viewer-{n}", "viewer") for n in range(VIEWERS // VIEWERS_EACH)]
    with Holdfast(url, agents=[counting, patient]) as hf:
        _fill(hf, url, runs, events)
        with _server(folder, url) as (address, link, process):
            headers = {"authorization": f"Bearer {token}"}
            with httpx2.Client(base_url=address, headers=headers, timeout=120) as api:
                before = _megabytes(process.pid)
                for place in _api(runs, events):
                    _p95(report, api, process.pid, place, requests)
            with httpx2.Client(base_url=address, timeout=120, follow_redirects=True) as browser:
                browser.get(link)
                browser.get(f"/runs/{LONG}")
                loaded = _megabytes(process.pid)
                for place in _pages(events):
                    _p95(report, browser, process.pid, place, requests)
            report.fact(
                "memory of the server",
                f"{before:.0f} MB, with the long run {loaded:.0f} MB, afterwards {_megabytes(process.pid):.0f} MB",
            )
            _live(report, hf, address, headers, requests)
            _idle_viewers(report, hf, address, process.pid, viewers, seconds)


def _fill(hf: Holdfast, url: str, runs: int, events: int) -> None:
    from support.bulk import fill
    from support.long_runs import write_steps

    hf.register()
    fill(url, runs, agent="counting", now=hf.store.now(), due=0, step=0, ended_of=1000)
    write_steps(hf.store, counting, LONG, events, _count, n=events)
    hf.get(LONG)  # saves a snapshot, as any reader of a long run does
    try:
        hf.run(patient, id="live")
    except RunWaiting:
        pass  # for the signal


def _count(i: int) -> int:
    return i


_count.__name__ = "count"


@contextmanager
def _server(folder: Path, url: str) -> Iterator[tuple[str, str, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "holdfast.cli", "serve", "--port", "0", "--json", "--db", url]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = json.loads(process.stderr.readline())
        address: str = said["url"].rstrip("/")
        try:
            yield address, said["link"], process
        finally:
            process.terminate()


# ── how long one answer takes ────────────────────────────────────────────────────────────────


def _api(runs: int, events: int) -> list[Place]:
    base, long = "/api/v1", f"/api/v1/runs/{LONG}"
    return [
        Place("API: a page of runs", lambda n: f"{base}/runs?after={runs - 50 * n % runs}"),
        Place("API: waiting runs", lambda _: f"{base}/runs?status=waiting"),
        Place("API: a search by ids", lambda n: f"{base}/runs?q=none-{n}"),
        Place("API: a search of what runs contain", lambda n: f"{base}/runs?q=input:none-{n}"),
        Place("API: a row", lambda n: f"{base}/runs/bulk-{1 + n}/row"),
        Place("API: inbox", lambda _: f"{base}/inbox"),
        Place("API: 200 events of a long run", lambda n: f"{long}/events?after={997 * n % events}"),
        Place(
            "API: 200 sentences of a long run",
            lambda n: f"{long}/timeline?after={997 * n % events}",
        ),
        Place("API: 200 calls of a long run", lambda n: f"{long}/calls?after={997 * n % events}"),
        Place("API: how a long run ended", lambda _: f"{long}/result"),
    ]


def _pages(events: int) -> list[Place]:
    return [
        Place("page: runs", lambda _: "/"),
        Place("page: a long run", lambda _: f"/runs/{LONG}"),
        Place("page: a call of a long run", lambda n: f"/runs/{LONG}/calls/{1 + 997 * n % events}"),
        Place("page: inbox", lambda _: "/inbox"),
    ]


def _p95(report: Report, client: httpx2.Client, pid: int, place: Place, requests: int) -> None:
    took = []
    before = _cpu_seconds(pid)
    for number in range(requests):
        began = time.perf_counter()
        found = client.get(place.path(number))
        took.append(1000 * (time.perf_counter() - began))
        if found.status_code != 200:
            report.fact(place.name, f"no figure: it answered {found.status_code}")
            return
    p95 = statistics.quantiles(took, n=20)[-1]
    cpu = 1000 * (_cpu_seconds(pid) - before) / requests
    size = len(found.content) / 1024
    said = f"p95 {p95:.0f} ms, median {statistics.median(took):.0f} ms, CPU {cpu:.1f} ms, {size:.0f} KB"
    report.fact(place.name, said, p95 <= P95_MS_MAX)


def _cpu_seconds(pid: int) -> float:
    """What a process has computed so far: a busy machine does not change this, as it changes how long an answer takes."""
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _megabytes(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text("utf-8").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


# ── live ─────────────────────────────────────────────────────────────────────────────────────


def _live(report: Report, hf: Holdfast, address: str, headers: dict[str, str], count: int) -> None:
    """From the commit of an event in this process to its arrival at a viewer of the server: of the API, and of a page."""
    seq = hf.get("live").seq
    for name, path, sign in (
        ("from a commit to a viewer", f"/api/v1/runs/live/stream?after={seq}", "event: "),
        ("from a commit to a page", f"/runs/live/live?seq={seq}", "id: "),
    ):
        took = []
        with (
            httpx2.Client(headers=headers, timeout=60) as client,
            client.stream("GET", address + path) as answer,
        ):
            updates = (line for line in answer.iter_lines() if line.startswith(sign))
            if hf.get("live").seq > seq:
                next(updates)  # what was committed for the one before
            for number in range(max(20, count // 4)):
                time.sleep(0.4)  # as idle as between the steps of an agent
                hf.signal("live", f"other-{number}")
                committed = time.perf_counter()
                next(updates)
                took.append(1000 * (time.perf_counter() - committed))
        p95 = statistics.quantiles(took, n=20)[-1]
        report.fact(
            name, f"p95 {p95:.0f} ms, median {statistics.median(took):.0f} ms", p95 <= LIVE_MS_MAX
        )


def _idle_viewers(
    report: Report, hf: Holdfast, address: str, pid: int, tokens: Sequence[str], seconds: float
) -> None:
    """What a worker's process does, without and with viewers that follow a run which does nothing.

    The two are taken in turns, because other processes make the machine faster and slower meanwhile. What viewers cost
    whatever else runs is CPU time: of the worker's process for a step, and of the server.
    """
    alone, watched, cpu = [], [], []
    for number in range(3 * max(3, report.rounds)):
        alone.append(_work(hf, f"alone-{number}", seconds / 3))
        with _viewers(address, tokens):
            before, began = _cpu_seconds(pid), time.perf_counter()
            watched.append(_work(hf, f"watched-{number}", seconds / 3))
            cpu.append((_cpu_seconds(pid) - before) / (time.perf_counter() - began))
    for name, of in (("steps/s", 0), ("steps per second of CPU", 1)):
        a, b = (statistics.median(taken[of] for taken in x) for x in (alone, watched))
        said = f"{a:,.0f} {name} alone, {b:,.0f} with {VIEWERS} viewers: {b / a - 1:+.1%}"
        report.fact(f"idle viewers, {name}", said, 1 - b / a <= DROP_MAX)
    report.fact("idle viewers, CPU of the server", f"{statistics.median(cpu):.1%} of a core")


def _work(hf: Holdfast, name: str, seconds: float) -> tuple[float, float]:
    """Steps per second, and per second of this process's CPU time."""
    done, began, cpu = 0, time.perf_counter(), time.process_time()
    while (took := time.perf_counter() - began) < seconds:
        hf.run(counting, id=f"{name}-{done}", n=100)
        done += 100
    return done / took, done / (time.process_time() - cpu)


@contextmanager
def _viewers(address: str, tokens: Sequence[str]) -> Iterator[None]:
    """Open streams, which are not read: nothing but keep-alives comes."""
    host, port = address.removeprefix("http://").split(":")
    with ExitStack() as kept:
        for number in range(VIEWERS):
            viewer = kept.enter_context(socket.create_connection((host, int(port))))
            lines = [
                "GET /api/v1/runs/live/stream?after=100000 HTTP/1.1",
                "Host: 127.0.0.1",
                f"Authorization: Bearer {tokens[number // VIEWERS_EACH]}",
                "",
                "",
            ]
            viewer.sendall("\r\n".join(lines).encode())
            answer = viewer.recv(1000)
            assert answer.startswith(b"HTTP/1.1 200"), answer
        yield
