"""Faults of a hostile server, for `ChatServer`: what a reply can hold that a client must survive.

Each fault writes its reply to the connection. All are bounded, so that a client that does not defend itself fails a
test and not the machine.
"""

from __future__ import annotations

import gzip
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler
from itertools import repeat
from typing import Any

import zstandard

MAX_S = 60.0
MAX_BYTES = 2 << 30
BOMB_BYTES = 1 << 30
OK = b"HTTP/1.1 200 OK\r\n"
JSON_TYPE = b"Content-Type: application/json\r\n"
Mode = Callable[[BaseHTTPRequestHandler], None]


def completion(
    content: Any = "The answer is \\boxed{4}.", *, usage: str = '{"completion_tokens": 7}', **choice: Any
) -> bytes:
    """A chat completion with one choice; ``usage`` is JSON text, for numbers that json does not write."""
    choices = [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"} | choice]
    return f'{{"choices": {json.dumps(choices)}, "usage": {usage}}}'.encode()


def send(handler: BaseHTTPRequestHandler, *parts: bytes) -> None:
    handler.wfile.write(b"".join(parts))


def replies(body: bytes, *, status: bytes = b"200 OK", headers: bytes = JSON_TYPE) -> Mode:
    length = f"Content-Length: {len(body)}\r\n\r\n".encode()
    return lambda handler: send(handler, b"HTTP/1.1 ", status, b"\r\n", headers, length, body)


def streams(head: bytes, pieces: Iterator[bytes], *, every_s: float = 0.0) -> Mode:
    """The head, then piece after piece, until the client has had enough."""

    def stream(handler: BaseHTTPRequestHandler) -> None:
        send(handler, head)
        deadline, n_bytes = time.monotonic() + MAX_S, 0
        for piece in pieces:
            if time.monotonic() > deadline or n_bytes > MAX_BYTES:
                break
            send(handler, piece)
            n_bytes += len(piece)
            time.sleep(every_s)
        handler.close_connection = True

    return stream


def chunked(piece: bytes) -> bytes:
    return f"{len(piece):x}\r\n".encode() + piece + b"\r\n"


def breaks_off(handler: BaseHTTPRequestHandler) -> None:
    send(handler, OK, JSON_TYPE, b"Content-Length: 5000\r\n\r\n", b'{"choices": [')
    # RST instead of FIN
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()
    handler.close_connection = True


def hangs(head: bytes) -> Mode:
    def hang(handler: BaseHTTPRequestHandler) -> None:
        send(handler, head)
        handler.connection.settimeout(MAX_S)
        try:
            handler.connection.recv(1)  # until the client goes away
        except OSError:
            pass
        handler.close_connection = True

    return hang


@cache
def gzip_bomb() -> bytes:
    """1 GiB of zeros as 1 MB: ten gzip members of the same bytes."""
    return gzip.compress(bytes(BOMB_BYTES // 64), 9) * 64


@cache
def zstd_bomb() -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(bytes(BOMB_BYTES // 8)) * 8


@cache
def page(text: bytes) -> bytes:
    return text * (50_000_000 // len(text))


@cache
def list_of_10_mb() -> bytes:
    return completion([[] for _ in range(2_500_000)])


def bomb(make: Callable[[], bytes], encoding: bytes, status: bytes = b"200 OK") -> Mode:
    headers = JSON_TYPE + b"Content-Encoding: " + encoding + b"\r\n"
    return lambda handler: replies(make(), status=status, headers=headers)(handler)


CHUNKED = OK + JSON_TYPE + b"Transfer-Encoding: chunked\r\n\r\n"
TEXT = b"Content-Type: text/html\r\n"
DEEP = b"[" * 100_000 + b"]" * 100_000

FAILING: dict[str, Mode] = {
    "an endless body": streams(CHUNKED, repeat(chunked(b"x" * (1 << 20)))),
    "an endless answer": streams(CHUNKED + chunked(completion()[:60]), repeat(chunked(b"x" * (1 << 20)))),
    "an endless body without chunks": streams(OK + JSON_TYPE + b"\r\n", repeat(b"x" * (1 << 20))),
    "an endless body in chunks of a byte": streams(CHUNKED, repeat(chunked(b"x") * 10_000)),
    "endless white space": streams(CHUNKED, repeat(chunked(b" " * (1 << 20)))),
    "a gzip bomb": bomb(gzip_bomb, b"gzip"),
    "a zstd bomb": bomb(zstd_bomb, b"zstd"),
    "a gzip bomb of an error": bomb(gzip_bomb, b"gzip", b"500 Internal Server Error"),
    "a gzip reply that is none": replies(completion(), headers=JSON_TYPE + b"Content-Encoding: gzip\r\n"),
    "an error page of 50 MB": lambda handler: replies(page(b"\x1b\xff<p>"), status=b"400 Bad", headers=TEXT)(handler),
    "a failure page of 50 MB": lambda handler: replies(page(b"\n \x07"), status=b"500 Bad", headers=TEXT)(handler),
    "an endless error page": streams(CHUNKED.replace(b"200 OK", b"500 Oops"), repeat(chunked(b"\x07" * (1 << 20)))),
    "dripping headers": streams(OK, (f"X-{n}: x\r\n".encode() for n in range(10**9)), every_s=0.05),
    "endless headers": streams(OK, repeat(b"X-Header: " + b"x" * 1000 + b"\r\n")),
    "endless interim responses": streams(b"", repeat(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)),
    "a dripping body": streams(CHUNKED, repeat(chunked(b" ")), every_s=0.05),
    "a dripping error page": streams(CHUNKED.replace(b"200 OK", b"400 Bad"), repeat(chunked(b"no ")), every_s=0.05),
    "no answer": hangs(b""),
    "a content length that is too long": hangs(OK + JSON_TYPE + b"Content-Length: 5000\r\n\r\n" + completion()),
    "a content length that is too short": lambda handler: send(
        handler, OK, JSON_TYPE, b"Content-Length: 20\r\n\r\n", completion()
    ),
    "a content length that is no number": lambda handler: send(
        handler, OK, JSON_TYPE, b"Content-Length: many\r\n\r\n", completion()
    ),
    "a reset in the middle of the body": breaks_off,
    "no HTTP": streams(b"SSH-2.0-OpenSSH_9.6\r\n", iter(())),
    "a status that is no number": streams(b"HTTP/1.1 two OK\r\n\r\n", iter(())),
    "a status of 999": replies(b"{}", status=b"999 What"),
    "no content": replies(b"", status=b"200 OK"),
    "invalid JSON": replies(b'{"choices": [}'),
    "JSON that is not UTF-8": replies(b'{"choices": "\xff\xfe\xfa"}'),
    "a web page": replies(b"<html>Welcome!</html>", headers=TEXT),
    "a list": replies(b"[1, 2, 3]"),
    "null": replies(b"null"),
    "choices that are a number": replies(b'{"choices": 7}'),
    "choices of null": replies(b'{"choices": [null]}'),
    "a message that is text": replies(b'{"choices": [{"message": "hello", "finish_reason": "stop"}]}'),
    "no choices": replies(b'{"choices": []}'),
    "an answer that is NaN": replies(completion(float("nan"))),
    "an answer that is a list of 10 MB": lambda handler: replies(list_of_10_mb())(handler),
    "an answer that is nested deeply": replies(completion("@").replace(b'"@"', b"[" * 500 + b"]" * 500)),
    "nested deeply": replies(DEEP),
    "an error that is nested deeply": replies(DEEP, status=b"400 Bad Request"),
    "half a surrogate pair as finish_reason": replies(completion(finish_reason="\ud800")),
    "half a surrogate pair as a field": replies(b'{"\\ud800": 1, "choices": {"\\ud800": "\\ud800"}}'),
    "an error with half a surrogate pair": replies(b'{"error": {"message": "\\ud800"}}', status=b"400 Bad"),
    "a finish_reason of 240 kB": replies(completion(finish_reason="\x1b" * 40_000)),
    "an unknown charset": replies(b"no", status=b"400 No", headers=b"Content-Type: text/html; charset=hex\r\n"),
    "a redirect to itself": replies(b"", status=b"307 Temporary Redirect", headers=b"Location: #\r\n"),
    "a redirect to no address": replies(b"", status=b"302 Found", headers=b"Location: http://[::1\r\n"),
    "a redirect to another host": replies(b"", status=b"302 Found", headers=b"Location: http://127.0.0.1:9/\r\n"),
    "429 with a long Retry-After": replies(b"", status=b"429 Too Many", headers=b"Retry-After: 99999999999\r\n"),
    "429 with an odd Retry-After": replies(b"", status=b"429 Too Many", headers=b"Retry-After: 1 Jan 99999\r\n"),
    "500 for ever": replies(b"{}", status=b"500 Internal Server Error"),
    "503 for ever": replies(b"{}", status=b"503 Service Unavailable"),
}
"""Modes without an answer."""

ANSWERING: dict[str, Mode] = {
    "half a surrogate pair": replies(completion("4 \ud800 and \udc00 \\boxed{4}")),
    "null bytes": replies(completion("\x00 4 \x00\\boxed{4}")),
    "a terminal's commands": replies(completion("\x1b[2J\x07\\boxed{4}")),
    "a token count of 10^4000": replies(completion(usage=f'{{"completion_tokens": 1{"0" * 4000}}}')),
    "a token count below 0": replies(completion(usage='{"completion_tokens": -7, "prompt_tokens": -1}')),
    "a token count of NaN": replies(completion(usage='{"completion_tokens": NaN}')),
    "a token count that is infinite": replies(completion(usage='{"completion_tokens": 1e999}')),
    "usage that is text": replies(completion(usage='"much"')),
    "another content type": replies(completion(), headers=b"Content-Type: image/png; charset=hex\r\n"),
    "gzip that nobody asked for": replies(
        gzip.compress(completion()), headers=JSON_TYPE + b"Content-Encoding: gzip\r\n"
    ),
    "a thousand choices": replies(json.dumps({"choices": json.loads(completion())["choices"] * 1000}).encode()),
}
"""Modes with an answer that can be used."""
