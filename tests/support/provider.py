"""A model provider on this machine: speaks the protocols of OpenAI and Anthropic, strictly, and misbehaves
on demand.

It runs in a process of its own, so that it outlives the processes under test and is a witness: every
request that came is written down. A dialogue that the real ones would refuse is refused here with 400.
What the model says is decided by a *brain*: a function of the model's name and the turn.

Faults are taken in order, one for each request: a status ("429", "500", "529", "400", "401"), "timeout" (no answer),
"broken" (the connection is cut in the middle), "cut" (a stream that ends early), "error" (an error inside a
stream), "garbage" (a page instead of an answer), "quota" (a 429 that waiting does not help), "truncated" (half of the
JSON in a body of the right length), "no-end" (a stream that closes cleanly before its last event).
"""

from __future__ import annotations

import json
import multiprocessing
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from support.dialogues import Refused, check_anthropic, check_openai

KEY = "sk-test-4f9c21aa77e0"
"""The key that is right. It protects nothing."""

GARBAGE = "<html>a proxy says hello</html>"

ModelReply = dict[str, Any]
"""What a brain answers: `text`, and `calls` as (name, arguments as JSON text).

`finish` replaces the reason why the answer ended, `refusal` is OpenAI's field of that name, `thinking` is Anthropic
blocks that come first (made with `support.dialogues.thinking`)."""
Brain = Callable[[str, int, list[str]], ModelReply]


class Provider:
    """Start with `start`; give its `url` to a client; look with `requests`."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        self._process: Any = None
        self.url = ""

    def start(self) -> Provider:
        context = multiprocessing.get_context("fork")
        read, write = context.Pipe(duplex=False)
        self._process = context.Process(target=_serve, args=(self._brain, write), daemon=True)
        self._process.start()
        assert read.poll(120)
        self.url = f"http://127.0.0.1:{read.recv()}"
        return self

    def stop(self) -> None:
        self._process.kill()
        self._process.join()

    def fail(self, model: str, *faults: str) -> None:
        """The next requests for this model get these faults, one each."""
        self._tell({"model": model, "faults": faults})

    def requests(self, model: str) -> list[dict[str, Any]]:
        """Every request for this model: its body, and the status it was answered with."""
        found: list[dict[str, Any]] = self._tell({"model": model})
        return found

    def _tell(self, what: dict[str, Any]) -> Any:
        with urllib.request.urlopen(f"{self.url}/_test", json.dumps(what).encode()) as answer:
            return json.loads(answer.read())


class _Fault(Exception):
    def __init__(
        self, status: int, kind: str, message: str, headers: dict[str, str] | None = None
    ) -> None:
        self.status, self.kind, self.message, self.headers = status, kind, message, headers or {}


def _serve(brain: Brain, ready: Any) -> None:
    faults: dict[str, list[str]] = {}
    seen: dict[str, list[dict[str, Any]]] = {}

    class Handler(_Handler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            model = body["model"]
            if self.path == "/_test":
                faults.setdefault(model, []).extend(body.get("faults", ()))
                self.reply(200, seen.get(model, []))
                return
            entry = {"body": body, "status": 0, "connection": self.client_address[1]}
            seen.setdefault(model, []).append(entry)
            waiting = faults.get(model, [])
            fault = waiting.pop(0) if waiting else ""
            speak = _OpenAI(self) if self.path.endswith("/chat/completions") else _Anthropic(self)
            try:
                entry["status"] = 200
                speak.check(body)
                self.misbehave(fault)
                speak.answer(body, brain(model, speak.turn(body), speak.results(body)), fault)
            except (_Fault, Refused) as error:
                if isinstance(error, Refused):
                    error = _Fault(400, "invalid_request_error", str(error))
                entry["status"] = error.status
                self.reply(error.status, speak.error(error), error.headers)
            except (BrokenPipeError, ConnectionResetError):
                entry["status"] = -1

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    ready.send(server.server_address[1])
    server.serve_forever(poll_interval=60)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None: ...

    def reply(self, status: int, what: Any, headers: dict[str, str] | None = None) -> None:
        page = isinstance(what, str)
        data = what.encode() if page else json.dumps(what).encode()
        self.send_response(status)
        self.send_header("content-type", "text/html" if page else "application/json")
        self.send_header("content-length", str(len(data)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def misbehave(self, fault: str) -> None:
        if fault == "quota":
            raise _Fault(429, "insufficient_quota", "You exceeded your current quota")
        if fault == "timeout":
            self.rfile.read(1)  # until the client has waited long enough, and hangs up
            self.close_connection = True
            raise BrokenPipeError
        if fault.isdigit():
            kind = {"401": "invalid_api_key", "529": "overloaded_error"}.get(fault, "server_error")
            headers = {"retry-after": "7"} if fault == "429" else {}
            raise _Fault(int(fault), kind, f"deliberate {fault}", headers)

    def stream(self, events: Iterator[str], fault: str) -> None:
        """Server-sent events, in chunks; half of them if the connection is to break."""
        if fault == "garbage":
            self.reply(200, GARBAGE)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        all_events = list(events)
        if fault in ("broken", "cut"):
            all_events = all_events[: len(all_events) // 2]
        if fault == "no-end":
            all_events = [x for x in all_events if not any(mark in x for mark in _END_MARKS)]
        for event in all_events:
            data = event.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
        if fault == "broken":
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")

    def whole(self, what: Any, fault: str) -> None:
        if fault == "garbage":
            self.reply(200, GARBAGE)
        elif fault in ("truncated", "no-end"):
            data = json.dumps(what).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data) // 2))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
        elif fault in ("broken", "cut", "error"):
            data = json.dumps(what).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
        else:
            self.reply(200, what)


_END_MARKS = ('"finish_reason": "', "[DONE]", "message_stop")
"""What the last events of a stream contain."""


class _OpenAI:
    def __init__(self, handler: _Handler) -> None:
        self.handler = handler

    def check(self, body: dict[str, Any]) -> None:
        given = self.handler.headers.get("authorization", "")
        if given != f"Bearer {KEY}":
            shown = given.removeprefix("Bearer ")
            raise _Fault(401, "invalid_api_key", f"Incorrect API key provided: {shown}.")
        check_openai(body["messages"])
        for tool in body.get("tools", ()):
            if tool["type"] != "function" or tool["function"]["parameters"]["type"] != "object":
                raise Refused("tools")

    def turn(self, body: dict[str, Any]) -> int:
        return 1 + sum(m["role"] == "assistant" for m in body["messages"])

    def results(self, body: dict[str, Any]) -> list[str]:
        return [m["content"] for m in body["messages"] if m["role"] == "tool"]

    def error(self, error: _Fault) -> dict[str, Any]:
        return {
            "error": {
                "message": error.message,
                "type": error.kind,
                "code": error.kind,
                "param": None,
            }
        }

    def answer(self, body: dict[str, Any], reply: ModelReply, fault: str) -> None:
        calls = [
            {
                "id": f"call_{self.turn(body)}_{i}",
                "type": "function",
                "function": {"name": name, "arguments": args},
            }
            for i, (name, args) in enumerate(reply.get("calls", ()))
        ]
        finish = reply.get("finish") or ("tool_calls" if calls else "stop")
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        frame = {"id": "chatcmpl-1", "created": 1, "model": body["model"]}
        if not body.get("stream"):
            message = {"role": "assistant", "content": reply.get("text") or None}
            message |= {"tool_calls": calls} if calls else {}
            message |= {"refusal": reply["refusal"]} if reply.get("refusal") else {}
            choice = {"index": 0, "message": message, "finish_reason": finish}
            answer = {**frame, "object": "chat.completion", "choices": [choice]}
            self.handler.whole(answer if reply.get("silent") else {**answer, "usage": usage}, fault)
            return

        def chunk(delta: dict[str, Any] | None, finish: str | None = None, **fields: Any) -> str:
            choices = (
                [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
            )
            return f"data: {json.dumps({**frame, 'object': 'chat.completion.chunk', 'choices': choices, **fields})}\n\n"

        def events() -> Iterator[str]:
            yield chunk({"role": "assistant", "content": ""})
            for piece in _pieces(reply.get("text", "")):
                yield chunk({"content": piece})
            for piece in _pieces(reply.get("refusal", "")):
                yield chunk({"refusal": piece})
            if fault == "error":
                yield 'data: {"error": {"message": "the server had an error", "type": "server_error"}}\n\n'
                return
            for i, call in enumerate(calls):
                function: Any = call["function"]
                yield chunk(
                    {
                        "tool_calls": [
                            {"index": i, **call, "function": {**function, "arguments": ""}}
                        ]
                    }
                )
                for piece in _pieces(function["arguments"]):
                    yield chunk({"tool_calls": [{"index": i, "function": {"arguments": piece}}]})
            yield chunk({}, finish)
            if body.get("stream_options", {}).get("include_usage"):
                yield chunk(None, usage=usage)
            yield "data: [DONE]\n\n"

        self.handler.stream(events(), fault)


class _Anthropic:
    def __init__(self, handler: _Handler) -> None:
        self.handler = handler

    def check(self, body: dict[str, Any]) -> None:
        headers = self.handler.headers  # newer clients send the key as a bearer token
        if KEY not in (headers.get("x-api-key"), headers.get("authorization", "")[7:]):
            raise _Fault(401, "authentication_error", "invalid x-api-key")
        if not self.handler.headers.get("anthropic-version") or not body.get("max_tokens"):
            raise Refused("anthropic-version and max_tokens are required")
        check_anthropic(body)
        for tool in body.get("tools", ()):
            if not tool["name"] or tool["input_schema"]["type"] != "object":
                raise Refused("tools")

    def turn(self, body: dict[str, Any]) -> int:
        return 1 + sum(m["role"] == "assistant" for m in body["messages"])

    def results(self, body: dict[str, Any]) -> list[str]:
        blocks = [b for m in body["messages"] for b in m["content"]]
        return [b.get("content", "") for b in blocks if b["type"] == "tool_result"]

    def error(self, error: _Fault) -> dict[str, Any]:
        return {"type": "error", "error": {"type": error.kind, "message": error.message}}

    def answer(self, body: dict[str, Any], reply: ModelReply, fault: str) -> None:
        blocks: list[dict[str, Any]] = [dict(block) for block in reply.get("thinking", ())]
        if reply.get("text"):
            blocks.append({"type": "text", "text": reply["text"]})
        for i, (name, args) in enumerate(reply.get("calls", ())):
            blocks.append(
                {
                    "type": "tool_use",
                    "id": f"toolu_{self.turn(body)}_{i}",
                    "name": name,
                    "raw": args,
                }
            )
        finish = reply.get("finish") or ("tool_use" if reply.get("calls") else "end_turn")
        message = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "stop_sequence": None,
        }
        if not body.get("stream"):
            content = [
                {**b, "input": json.loads(b.pop("raw"))} if b["type"] == "tool_use" else b
                for b in blocks
            ]
            usage = {"input_tokens": 100, "output_tokens": 10}
            self.handler.whole(
                {**message, "content": content, "stop_reason": finish, "usage": usage}, fault
            )
            return

        def event(kind: str, **data: Any) -> str:
            return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n"

        def events() -> Iterator[str]:
            began = {
                **message,
                "content": [],
                "stop_reason": None,
                "usage": {"input_tokens": 100, "output_tokens": 1},
            }
            yield event("message_start", message=began)
            yield event("ping")
            if fault == "error":
                yield event("error", error={"type": "overloaded_error", "message": "Overloaded"})
                return
            for i, block in enumerate(blocks):
                if block["type"] == "thinking":
                    empty = {"type": "thinking", "thinking": "", "signature": ""}
                    yield event("content_block_start", index=i, content_block=empty)
                    deltas = [
                        {"type": "thinking_delta", "thinking": piece}
                        for piece in _pieces(block["thinking"])
                    ]
                    deltas.append({"type": "signature_delta", "signature": block["signature"]})
                elif block["type"] == "redacted_thinking":
                    yield event("content_block_start", index=i, content_block=block)
                    deltas = []
                elif block["type"] == "text":
                    yield event(
                        "content_block_start", index=i, content_block={"type": "text", "text": ""}
                    )
                    deltas = [
                        {"type": "text_delta", "text": piece} for piece in _pieces(block["text"])
                    ]
                else:
                    start = {
                        "type": "tool_use",
                        "id": block["id"],
                        "name": block["name"],
                        "input": {},
                    }
                    yield event("content_block_start", index=i, content_block=start)
                    deltas = [
                        {"type": "input_json_delta", "partial_json": piece}
                        for piece in _pieces(block["raw"])
                    ]
                for delta in deltas:
                    yield event("content_block_delta", index=i, delta=delta)
                yield event("content_block_stop", index=i)
            yield event(
                "message_delta",
                delta={"stop_reason": finish, "stop_sequence": None},
                usage={"output_tokens": 10},
            )
            yield event("message_stop")

        self.handler.stream(events(), fault)


def _pieces(text: str) -> list[str]:
    return [text[i : i + 7] for i in range(0, len(text), 7)]
