"""Two processes that reach for the same run at the same moment, again and again."""

from __future__ import annotations

import multiprocessing
import threading
from itertools import zip_longest
from typing import Any

from holdfast.app import open_store
from holdfast.core import events, log
from holdfast.store.base import ClaimFilter, Creation, NewRun, Store

PATIENCE_SECONDS = 240
RUN = "wanted"


def race(url: str, rounds: int) -> list[tuple[int, int]]:
    """For each round the epochs that both racers got; 0 for one that got nothing."""
    store = open_store(url)
    created = events.NoteTaken(key="a", value=events.NULL)
    _, records = log.seal(log.origin(RUN), [created], epoch=0, time=store.now())
    store.create(Creation(NewRun(RUN, "agent", "digest"), records)).wait()
    context = multiprocessing.get_context("spawn")
    start, pipes, racers = context.Barrier(2), [], []
    for name in ("one", "two"):
        ours, theirs = context.Pipe(duplex=False)
        racer = context.Process(target=_racer, args=(url, name, rounds, start, theirs), daemon=True)
        racer.start()
        theirs.close()
        pipes.append(ours)
        racers.append(racer)
    try:
        got = [pipe.recv() for pipe in pipes]
        return list(zip_longest(*got, fillvalue=0))
    finally:
        for racer in racers:
            racer.join(PATIENCE_SECONDS)
        store.close()


def _racer(url: str, name: str, rounds: int, start: Any, tell: Any) -> None:
    store = open_store(url)
    got: list[int] = []
    try:
        _reach(store, name, rounds, start, got)
    except (AssertionError, threading.BrokenBarrierError):
        start.abort()  # the other need not wait: what was got so far tells what went wrong
    store.close()
    tell.send(got)


def _reach(store: Store, name: str, rounds: int, start: Any, got: list[int]) -> None:
    for number in range(rounds):
        start.wait(PATIENCE_SECONDS)
        if number % 2:
            row = store.claim(RUN, worker=name, lease_us=60_000_000)
        else:
            found = store.claim_due(
                worker=name, lease_us=60_000_000, limit=5, filters=[ClaimFilter("agent")]
            )
            row = next(iter(found), None)
        got.append(row.epoch if row else 0)
        start.wait(PATIENCE_SECONDS)  # both have tried
        if row:
            assert store.release(RUN, row.epoch)
