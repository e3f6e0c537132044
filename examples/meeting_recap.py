"""Send a meeting's recap by e-mail, once.

The mail server below accepts the message, and then the connection breaks: the agent cannot know whether
it was sent. It tries again with the same idempotency key, and the server sends nothing twice.

    python examples/meeting_recap.py
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from holdfast import Holdfast, Retry, Run, agent, step, tool

NOTES = """
Ann: the release is ready, tests are green.
Ben: the docs still lack a page on retries. I write it by Thursday.
Ann: then we ship on Friday.
"""


class MailServer:
    """A mail server that honours idempotency keys; a folder of files, so that it survives us."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def send(self, message: dict[str, str], key: str) -> str:
        sent = self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:12]}.json"
        if sent.exists():
            print(f"    mail server: I know this key, nothing is sent again ({key[:24]}…)")
            return sent.stem
        sent.write_text(json.dumps(message))
        print(f"    mail server: sent to {message['to']}")
        raise ConnectionError("the connection broke before the answer came")


HOME = Path(os.environ.get("RECAP_HOME") or tempfile.mkdtemp(prefix="recap-"))
MAIL = MailServer(HOME / "outbox")


@step
def draft(notes: str) -> str:
    """A model would write this; here it is every line that contains a promise."""
    promises = [line for line in notes.strip().splitlines() if "I " in line or "we " in line]
    return "What we agreed:\n" + "\n".join(f"- {line}" for line in promises)


@tool(risk="external_action", timeout=10, retry=Retry(attempts=5, initial=0.01))
def send_email(to: str, subject: str, body: str, idempotency_key: str = "") -> dict[str, Any]:
    """The runtime fills in the key: the same one at every attempt, in every process."""
    return {"message_id": MAIL.send({"to": to, "subject": subject, "body": body}, idempotency_key)}


@agent(stages=("drafting", "sending", "complete"), deadline=300)
def recap(run: Run, recipient: str, notes: str) -> str:
    run.stage = "drafting"
    run.state.draft = draft(notes)

    run.stage = "sending"
    if not run.state.message_id:  # holds over re-runs too: hf.rerun("recap-sam") sends nothing
        run.state.increment("send_attempts")
        receipt = send_email(recipient, "Recap", run.state.draft)
        run.state.message_id = receipt["message_id"]

    run.stage = "complete"
    message_id: str = run.state.message_id
    return message_id


def main() -> None:
    with Holdfast(os.environ.get("HOLDFAST_URL") or HOME / "holdfast.db", agents=[recap]) as hf:
        print("The first run:")
        sent = hf.run(recap, id="recap-sam", wait=True, recipient="sam@example.com", notes=NOTES)
        print(f"  completed: message {sent}")

        print("The same id again, as after a restart:")
        hf.run(recap, id="recap-sam", recipient="sam@example.com", notes=NOTES)
        print("  the recorded result; nothing was executed")

        print("The code from its first line again, with the state kept:")
        hf.rerun("recap-sam", wait=True)
        state = hf.get("recap-sam")
        attempts = next(len(call.attempts) for call in state.calls if call.name == "send_email")
        print(f"  the guard held; send_email was attempted {attempts} times under one key")
        print(f"In the outbox: {len(list(MAIL.folder.iterdir()))} message")


if __name__ == "__main__":
    main()
