"""A journey in nine steps, and nothing left behind when the last one fails.

Every booking says how it is undone. When a later step fails for good, the bookings are undone,
newest first, each once, also if the process dies in the middle of that.

    python examples/booking.py
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from holdfast import Holdfast, Retry, Run, RunFailed, agent, step, tool

HOME = Path(os.environ.get("BOOKING_HOME") or tempfile.mkdtemp(prefix="booking-"))
BOOK = HOME / "bookings.jsonl"
"""What the travel agency has in its book: a line for each booking and each cancellation, by key."""


def write(what: str, item: str, key: str) -> None:
    """The agency honours keys: the same one is written down once."""
    lines = BOOK.read_text().splitlines() if BOOK.exists() else []
    if not any(json.loads(line)["key"] == key for line in lines):
        with BOOK.open("a") as book:
            book.write(json.dumps({"what": what, "item": item, "key": key}) + "\n")
        print(f"    {what:7} {item}")


def still_booked() -> list[str]:
    found = [json.loads(line) for line in BOOK.read_text().splitlines()]
    cancelled = [x["item"] for x in found if x["what"] == "cancel"]
    return [x["item"] for x in found if x["what"] == "book" and x["item"] not in cancelled]


def cancel(item: str, idempotency_key: str) -> None:
    """An undo gets the arguments of the call that it undoes, and a key of its own."""
    write("cancel", item, idempotency_key)


@tool(undo=cancel)
def book(item: str, idempotency_key: str = "") -> str:
    write("book", item, idempotency_key)
    return f"confirmed: {item}"


@step
def find_dates(city: str) -> str:
    return "3 to 7 May"


class Declined(Exception):
    """The bank's answer: nothing was paid. (A lost connection would not say so: docs/effects.md.)"""


@tool(retry=Retry(attempts=3, initial=0.01))
def pay(amount: int, idempotency_key: str = "") -> str:
    raise Declined("the bank declines")


@agent(on_failure="undo")
def journey(run: Run, city: str) -> str:
    dates = find_dates(city)  # 1
    for item in (
        "flight out",
        "flight back",
        "hotel",
        "car",
        "museum",
        "dinner",
        "guide",
    ):  # 2 to 8
        book(f"{item}, {city}, {dates}")
    return pay(amount=1840)  # 9


def main() -> None:
    with Holdfast(os.environ.get("HOLDFAST_URL") or HOME / "holdfast.db") as hf:
        print("Booking:")
        try:
            hf.run(journey, id="lisbon", wait=True, city="Lisbon")
        except RunFailed as failed:
            print(f"  {failed.error_type}: {failed.message}")

        state = hf.get("lisbon")
        failure = state.failure
        assert failure is not None
        tries = len(next(call for call in state.calls if call.step == failure.step).attempts)
        print(f"Step {failure.step}, {failure.tool}, failed after {tries} attempts.")
        print("Undone, newest first:")
        for call in state.calls:
            if call.undoes:
                print(f"  step {call.undoes}: {hf.value('lisbon', call.args)['item']}")
        print(f"Still booked: {', '.join(still_booked()) or 'nothing'}")

        print("From the log:")
        print(f"  before step 9 it had made {hf.at('lisbon', 9, 'before').steps} calls")
        print(f"  the code agrees with the log: {hf.replay('lisbon').diverged is None}")
        print(f"  the log agrees with its hashes: {hf.verify('lisbon').ok}")
        dry = hf.fork("lisbon", step=9, mocks={"pay": {"returns": "paid"}})
        print(f"  step 9 again, with a bank that accepts: {dry.status}, {dry.result!r}")


if __name__ == "__main__":
    main()
