"""Requests over a bare socket to one broker, and waiting for what it will answer.

No client stands between: it would wait between its attempts to connect, and choose by itself which broker it asks.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from peers.process import PeerFailedError
from tidelog.wire import Message
from tidelog.wire.frames import decode_response, encode_request

ANSWER_DEADLINE_S = 10.0


@contextmanager
def connection_to(port: int) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_DEADLINE_S) as connection:
        yield connection


def call(connection: socket.socket, request: Message, version: int) -> Message:
    connection.sendall(b"".join(encode_request(request, version, 1, "bench")))
    return decode_response(request.__schema__.api_key, version, read_frame(connection)).response


def read_frame(connection: socket.socket) -> bytes:
    """The next one, without its size."""
    return _read(connection, int.from_bytes(_read(connection, 4), "big"))


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:  # a socket with a timeout gives what is there, whatever it was told to wait for
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionResetError("the broker closed the connection")
        data += piece
    return bytes(data)


def until(condition: Callable[[], bool], what: str, *, deadline_s: float, poll_s: float) -> None:
    """Returns when it holds. PeerFailedError, which names what did not come, after the deadline."""
    give_up_at = time.perf_counter() + deadline_s
    while not condition():
        if time.perf_counter() > give_up_at:
            raise PeerFailedError(f"after {deadline_s} s still not there: {what}")
        time.sleep(poll_s)
