"""A small chat server that speaks the OpenAI protocol, and fails when told to."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Fault = Callable[[int, dict[str, Any]], int | str | None]
"""From the number of the request and its body: a status, "drop", "garbage", "slow", or None for an answer."""


@dataclass
class ChatServer:
    """What the server was asked, and how it answers."""

    url: str = ""
    takes_n: bool = True
    fault: Fault = lambda _number, _body: None
    answer: Callable[[dict[str, Any], int], dict[str, Any]] | None = None
    delay_s: float = 0.0
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    most_at_once: int = 0
    _at_once: int = 0
    _lock: Any = field(default_factory=threading.Lock)

    def came(self, body: dict[str, Any], headers: dict[str, str]) -> int:
        with self._lock:
            self.bodies.append(body)
            self.headers.append(headers)
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            return len(self.bodies) - 1

    def went(self) -> None:
        with self._lock:
            self._at_once -= 1

    def choice(self, body: dict[str, Any], number: int) -> dict[str, Any]:
        if self.answer is not None:
            return self.answer(body, number)
        said = body["messages"][0]["content"]
        text = said if isinstance(said, str) else said[-1]["text"]
        content = f"{text}\n\nseed {body['seed']}, answer {number}"
        return {"index": number, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    chat: ChatServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        number = self.chat.came(body, dict(self.headers))
        try:
            time.sleep(self.chat.delay_s)
            self._answer(number, body)
        finally:
            self.chat.went()

    def _answer(self, number: int, body: dict[str, Any]) -> None:
        fault = self.chat.fault(number, body)
        if fault == "drop":
            self.close_connection = True
            self.connection.close()
            return
        if fault == "slow":
            time.sleep(1.0)
        if isinstance(fault, int):
            self._send(fault, {"error": {"message": f"fault {fault}"}})
        elif isinstance(fault, bytes):
            self._send(404, fault)
        elif fault == "garbage":
            self._send(200, {"nothing": "here"})
        elif isinstance(fault, str) and fault.startswith("refuse "):
            self._send(422, {"detail": fault})
        else:
            n = body.get("n", 1) if self.chat.takes_n else 1
            choices = [self.chat.choice(body, place) for place in range(n)]
            self._send(200, {"choices": choices, "usage": {"completion_tokens": 7}})

    def _send(self, status: int, record: dict[str, Any] | bytes) -> None:
        data = record if isinstance(record, bytes) else json.dumps(record).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            self.close_connection = True  # the client did not wait

    def log_message(self, *_args: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_args: Any) -> None:
        pass  # connections that are dropped on purpose


@contextmanager
def chat_server(**settings: Any) -> Iterator[ChatServer]:
    """A running server on a free port."""
    chat = ChatServer(**settings)
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"chat": chat}))
    chat.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield chat
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
