"""`python -m fuzz` (in `tests/`): random agents under random faults, for as long as you like.

    python -m fuzz --seed 1 --batches 100 --store both
    python -m fuzz --kills 20000 --store both --save /tmp/found
    python -m fuzz --seed 17 --batches 1 --store sqlite      # the same choices as batch 17 of another session
    python -m fuzz --without races,timeouts --shape waiting_child

Each batch has a seed (`--seed`, then one more for each batch). Violations are printed, and saved with programs and
logs if `--save` names a folder. Exit code 1 if there was any.
"""

from __future__ import annotations

import argparse
import os
import pickle
import select
import signal
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

from fuzz import features as f
from fuzz.batch import Harm, Report, die_with_parent, run_batch, warm_up
from fuzz.programs import SHAPES


def main(words: list[str] | None = None) -> int:
    given = _arguments(words)
    f.chosen(_names(given.without), _names(given.only))  # or an error now
    began = time.monotonic()
    stores = ("sqlite", "postgres") if given.store == "both" else (given.store,)
    warm_up(stores)
    total = _in_jobs(given, stores) if given.jobs > 1 else _job(given, stores, 0)
    total.seconds = time.monotonic() - began
    print(summary(total))
    return 1 if total.violations else 0


def _in_jobs(options: argparse.Namespace, stores: tuple[str, ...]) -> Report:
    """Several batches at once, each job in a process of its own and on one store. With `--stop`, a job that found
    something ends the others."""
    total, jobs = Report(), dict[int, int]()
    for number in range(options.jobs):
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            code = 1
            try:
                die_with_parent()
                signal.signal(signal.SIGTERM, _leave)
                report = _job(options, (stores[number % len(stores)],), number)
                with os.fdopen(write, "wb") as pipe:
                    pickle.dump(report, pipe)
                code = 0
            except SystemExit:
                pass  # it was asked to
            except BaseException:  # a forked process must end here, and say why
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(write)
        jobs[read] = pid
    while jobs:
        if options.stop and total.violations:
            for pid in jobs.values():
                os.kill(pid, signal.SIGTERM)
        ready, _, _ = select.select(list(jobs), [], [], 1.0)
        if not ready:
            continue
        pid = jobs.pop(ready[0])
        with os.fdopen(ready[0], "rb") as pipe:
            told = pipe.read()
        os.waitpid(pid, 0)
        if not told and not (options.stop and total.violations):
            raise RuntimeError("a job of the fuzzer failed; see above")
        total.add(pickle.loads(told) if told else Report())  # our own child's words
    return total


def _leave(*_: object) -> None:
    """Another job has found something: end all that this one has started."""
    sys.exit(0)


def _job(options: argparse.Namespace, stores: tuple[str, ...], number: int) -> Report:
    """The batches of one job, with a server of its own if it needs one."""
    if "postgres" not in stores:
        return _batches(options, stores, number, "", None)
    from support.postgres import PostgresServer

    with PostgresServer() as server:

        def restart(how: str) -> None:
            server.stop(immediate=how == "immediate")
            server.start()

        return _batches(options, stores, number, server.dsn(server.create_database()), restart)


def _batches(
    options: argparse.Namespace,
    stores: tuple[str, ...],
    job: int,
    dsn: str,
    restart: Callable[[str], None] | None,
) -> Report:
    chosen = f.chosen(_names(options.without), _names(options.only))
    total, began, number = Report(), time.monotonic(), 0
    harm = Harm(options.runs, options.kills_per_batch, options.harm_seconds, options.patience)
    while _goes_on(options, total, number, time.monotonic() - began):
        seed, store = options.seed + number * options.jobs + job, stores[number % len(stores)]
        report = run_batch(
            seed,
            store,
            dsn,
            chosen,
            harm,
            shape=options.shape,
            restart=restart if store == "postgres" else None,
            save=options.save,
        )
        total.add(report)
        number += 1
        kinds = Counter(v.kind for *_, v in report.violations)
        note = f"  {dict(kinds)}" if kinds else ""
        print(
            f"seed {seed} {store}: {report.runs} runs, {report.kills} kills, {report.seconds:.1f} s{note}",
            flush=True,
        )
        if report.violations and options.stop:
            break
    return total


def _goes_on(options: argparse.Namespace, total: Report, number: int, elapsed: float) -> bool:
    if options.kills:
        return bool(total.kills < options.kills / options.jobs)
    if options.minutes:
        return bool(elapsed < 60 * options.minutes)
    return bool(number < options.batches / options.jobs)


def summary(total: Report) -> str:
    """What was done, and what was found, by kind and shape."""
    rate = total.kills / total.seconds if total.seconds else 0.0
    lines = [
        f"{total.batches} batches, {total.runs} runs, {total.events} events, {total.kills} kills in "
        f"{total.seconds:.0f} s ({rate:.1f} a second), {len(total.violations)} violations"
    ]
    lines.append(
        "  seconds: " + ", ".join(f"{name} {spent:.0f}" for name, spent in total.phases.items())
    )
    lines += [f"  {count:6} {what}" for what, count in sorted(total.faults.items())]
    found: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for seed, store, shape, violation in total.violations:
        found[violation.kind, shape].append((seed, store))
    for (kind, shape), where in sorted(found.items()):
        batches = sorted(set(where))
        first = ", ".join(f"{seed} {store}" for seed, store in batches[:4])
        of = total.shapes[shape] if shape else 0
        lines.append(
            f"  {kind} in {shape or '-'}: {len(where)} times ({of} such runs), seeds {first}"
        )
    return "\n".join(lines)


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _arguments(words: list[str] | None) -> argparse.Namespace:
    shapes = sorted(make.__name__ for make in SHAPES)
    p = argparse.ArgumentParser(
        prog="fuzz", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--batches", type=int, default=10)
    p.add_argument("--kills", type=int, default=0, help="run until there were this many kills")
    p.add_argument("--minutes", type=float, default=0.0, help="run for this long")
    p.add_argument("--store", choices=("sqlite", "postgres", "both"), default="sqlite")
    p.add_argument(
        "--jobs", type=int, default=1, help="batches at the same time; each job has one store"
    )
    p.add_argument("--runs", type=int, default=Harm.runs, help="runs in each batch")
    p.add_argument("--kills-per-batch", type=int, default=Harm.kills)
    p.add_argument("--harm-seconds", type=float, default=Harm.seconds)
    p.add_argument(
        "--patience",
        type=float,
        help="patience_seconds of all processes; else some have a long one",
    )
    p.add_argument(
        "--without", default="", help=f"features to leave out: {', '.join(sorted(f.ALL))}"
    )
    p.add_argument("--only", default="", help="features to use, and no others")
    p.add_argument("--shape", default="", choices=["", *shapes], help="programs of this shape only")
    p.add_argument("--save", type=Path, default=None, help="a folder for what is found")
    p.add_argument("--stop", action="store_true", help="stop at the first batch with a violation")
    return p.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
