"""A small chat server that speaks the OpenAI protocol, and fails when told to."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Fault = Callable[[int, dict[str, Any]], int | str | bytes | Callable[[BaseHTTPRequestHandler], None] | None]
"""From the number of the request and its body: a status, "drop", "garbage", "slow", what writes the whole reply
itself, or None for an answer."""


@dataclass
class ChatServer:
    """What the server received, and how it answers."""

    url: str = ""
    takes_n: bool = True
    continues: bool = True
    """Whether it knows ``continue_final_message``; else the field is ignored."""
    trims: bool = False
    """Whether its chat template cuts white space off messages."""
    echoes: bool = False
    """Whether answers repeat the prefix."""
    counts_prompts: bool = True
    fault: Fault = lambda _number, _body: None
    answer: Callable[[dict[str, Any], int], dict[str, Any]] | None = None
    delay_s: float = 0.0
    retry_after_s: float | None = None
    """Sent with every status that is a fault."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    most_at_once: int = 0
    _at_once: int = 0
    _lock: Any = field(default_factory=threading.Lock)
    _server: _Server | None = None
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to listen, on the same port as before where there was one."""
        port = int(self.url.rpartition(":")[2]) if self.url else 0
        self._server = _Server(("127.0.0.1", port), type("Handler", (_Handler,), {"chat": self}))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self._thread.start()

    def die(self) -> None:
        """Stop as a process that is killed: every connection is dropped, whatever was asked on it."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server.drop_connections()
            self._thread.join()
        self._server = self._thread = None

    @property
    def requests(self) -> list[dict[str, Any]]:
        """The requests without those by which the sampler gets to know the server."""
        own = (".", "How long is the bar?")
        return [body for body in self.bodies if body["messages"][0]["content"] not in own]

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

    def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        n = body.get("n", 1) if self.takes_n else 1
        usage = {"completion_tokens": 7}
        if self.counts_prompts:
            usage["prompt_tokens"] = len(re.findall(r"\w+|\n+|[^\w\s]", self.prompt(body)))
        return {"choices": [self._choice(body, number) for number in range(n)], "usage": usage}

    def got(self, path: str) -> tuple[int, bytes]:
        """Status and body of the answer to GET."""
        return 404, b"{}"

    def prompt(self, body: dict[str, Any]) -> str:
        """What the policy reads."""
        turns = [(m["role"], m["content"].strip() if self.trims else m["content"]) for m in body["messages"]]
        rendered = "".join(f"<|{role}|>{content}<|end|>" for role, content in turns)
        if self.continues and body.get("continue_final_message"):
            return rendered.removesuffix("<|end|>")
        return rendered + ("<|assistant|>" if body.get("add_generation_prompt", True) else "")

    def _choice(self, body: dict[str, Any], number: int) -> dict[str, Any]:
        if self.answer is not None:
            return self.answer(body, number)
        said = body["messages"][0]["content"]
        text = said if isinstance(said, str) else said[-1]["text"]
        content = f"{text}\n\nseed {body.get('seed')}, answer {number}"
        if self.echoes and body["messages"][-1]["role"] == "assistant":
            content = body["messages"][-1]["content"] + content
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

    def do_GET(self) -> None:
        status, data = self.chat.got(self.path)
        self._send(status, data)

    def _answer(self, number: int, body: dict[str, Any]) -> None:
        fault = self.chat.fault(number, body)
        if fault == "drop":
            self.close_connection = True
            self.connection.close()
            return
        if callable(fault):
            with contextlib.suppress(OSError):  # the client did not wait
                fault(self)
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
            self._send(200, self.chat.reply(body))

    def _send(self, status: int, record: dict[str, Any] | bytes) -> None:
        data = record if isinstance(record, bytes) else json.dumps(record).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            if status != 200 and self.chat.retry_after_s is not None:
                self.send_header("Retry-After", str(self.chat.retry_after_s))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            self.close_connection = True  # the client did not wait

    def log_message(self, *_args: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._connections: list[socket.socket] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.append(request)
        super().process_request(request, client_address)

    def drop_connections(self) -> None:
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # closed already

    def handle_error(self, *_args: Any) -> None:
        pass  # connections that are dropped on purpose


@contextmanager
def chat_server(**settings: Any) -> Iterator[ChatServer]:
    """A running server on a free port."""
    chat = ChatServer(**settings)
    chat.start()
    try:
        yield chat
    finally:
        chat.die()
