"""A fake tool server in a process of its own: it does what it is told, and remembers that it did.

It is the witness of every effect. Tools talk to it over a socket, so an effect has happened exactly
when the server has written it down, whatever becomes of the process that asked.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import socket
import socketserver
import tempfile
import threading
import time
from pathlib import Path
from typing import Any


class Ledger:
    """Start with `start`, ask with `do`, look with `effects`.

    With an address it is one that another process has started. `dawdle_seconds` is how long, at
    most, a request and its answer are under way: time in which a process can die.
    """

    def __init__(self, address: str = "", *, dawdle_seconds: float = 0.0) -> None:
        self._folder = "" if address else tempfile.mkdtemp(prefix="hf-ledger-")
        self.address = address or str(Path(self._folder) / "socket")
        self._dawdle_seconds = dawdle_seconds
        self._process: Any = None

    def start(self) -> Ledger:
        context = multiprocessing.get_context("fork")
        ready = context.Event()
        self._process = context.Process(target=_serve, args=(self.address, ready), daemon=True)
        self._process.start()
        assert ready.wait(120)
        return self

    def stop(self) -> None:
        self._process.kill()
        self._process.join()
        Path(self.address).unlink(missing_ok=True)
        Path(self._folder).rmdir()

    def _ask(self, request: dict[str, Any]) -> Any:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(self.address)
            client.sendall(json.dumps(request).encode() + b"\n")
            with client.makefile("rb") as answer:
                return json.loads(answer.readline())

    def do(
        self,
        run: str,
        tool: str,
        key: str,
        args: Any,
        *,
        honours_key: bool = False,
        fail_first: int = 0,
    ) -> Any:
        """Do something to the world. A server that honours keys does it once per key.

        The first `fail_first` requests are refused without doing anything.
        """
        time.sleep(random.uniform(0, self._dawdle_seconds))
        answer = self._ask(
            {
                "do": tool,
                "run": run,
                "key": key,
                "args": args,
                "honours": honours_key,
                "fail": fail_first,
            }
        )
        time.sleep(random.uniform(0, self._dawdle_seconds))
        if "error" in answer:
            raise ConnectionError(answer["error"])
        return answer["result"]

    def effects(self, run: str) -> list[dict[str, Any]]:
        """Every effect that happened for a run (`requests` counts those that came)."""
        found: list[dict[str, Any]] = self._ask({"list": run})
        return found

    def find(self, run: str, key: str) -> Any:
        """What was done under this key, or None: a look-up for tools with a check."""
        return next((x["result"] for x in self.effects(run) if x["key"] == key), None)


def _serve(address: str, ready: Any) -> None:
    effects: list[dict[str, Any]] = []
    requests: dict[tuple[str, str, str], int] = {}

    def answer(request: dict[str, Any]) -> Any:
        if "list" in request:
            prefix = request["list"]
            return [x for x in effects if x["run"] == prefix or x["run"].startswith(prefix + "~")]
        name = (request["run"], request["do"], request["key"])
        requests[name] = requests.get(name, 0) + 1
        if requests[name] <= request["fail"]:
            return {"error": "503 try later"}
        if request["honours"]:
            for x in effects:
                if (x["run"], x["tool"], x["key"]) == name:
                    x["requests"] += 1
                    x["bodies"].append(request["args"])
                    return {"result": x["result"]}
        result = {
            "number": len([x for x in effects if x["run"] == request["run"]]) + 1,
            "tool": request["do"],
        }
        effects.append(
            {
                "run": request["run"],
                "tool": request["do"],
                "key": request["key"],
                "args": request["args"],
                "result": result,
                "requests": 1,
                "bodies": [request["args"]],
            }
        )
        return {"result": result}

    one_at_a_time = threading.Lock()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            # Of a process that may be frozen: others continue meanwhile.
            line = self.rfile.readline()
            if line:
                with one_at_a_time:
                    said = answer(json.loads(line))
                self.wfile.write(json.dumps(said).encode() + b"\n")

    class Server(socketserver.ThreadingUnixStreamServer):
        request_queue_size = 64
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """The client has been killed meanwhile; what was done stays recorded."""

    with Server(address, Handler) as server:
        Path(address).chmod(0o600)
        ready.set()
        server.serve_forever(poll_interval=60)
