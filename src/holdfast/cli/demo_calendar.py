"""The calendar of `holdfast demo`: a small HTTP server in its own process, with a ledger file.

It knows nothing of Holdfast. It makes an entry for each key it has not seen, answers a known key
with the entry it made for it, and is unreliable: the first request to some of its pages gets a 503.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

FLAKY = ("/slot", "/posts")
"""Pages whose first request is answered with 503."""


class Ledger:
    """What the calendar was asked for and what it made, as lines of JSON in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._made: dict[str, dict[str, Any]] = {}
        self.asked: dict[str, int] = {}

    def write(self, **line: Any) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def make(self, page: str, key: str, body: Any) -> dict[str, Any]:
        """A new entry, or the one that was made under this key."""
        known = self._made.get(key) if key else None
        if known is not None:
            self.write(did="answered again", page=page, id=known["id"], key=key)
            return known
        entry = {"id": f"{page.strip('/').rstrip('s')}-{len(self._made) + 1}"}
        self._made[key or entry["id"]] = entry
        self.write(did="made", page=page, id=entry["id"], key=key, body=body)
        return entry


class Calendar(HTTPServer):
    def __init__(self, ledger: Ledger) -> None:
        super().__init__(("127.0.0.1", 0), CalendarHandler)
        self.ledger = ledger


class CalendarHandler(BaseHTTPRequestHandler):
    """GET /slot, and POST /rooms, /invites, /posts."""

    server: Calendar

    def do_GET(self) -> None:
        if not self._fails():
            self._answer(200, {"slot": "Monday 10:00"})

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size))
        if not self._fails():
            key = self.headers.get("Idempotency-Key") or ""
            self._answer(200, self.server.ledger.make(self.path, key, body))

    def _fails(self) -> bool:
        asked, page = self.server.ledger.asked, self.path.partition("?")[0]
        asked[page] = asked.get(page, 0) + 1
        if asked[page] > 1 or page not in FLAKY:
            return False
        self.server.ledger.write(did="answered 503", page=page)
        self._answer(503, {"error": "try again"})
        return True

    def _answer(self, status: int, data: dict[str, Any]) -> None:
        body = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """The ledger is the log."""


def main(ledger: str) -> None:
    """Serve until killed; the first line of stdout is the address."""
    with Calendar(Ledger(Path(ledger))) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
