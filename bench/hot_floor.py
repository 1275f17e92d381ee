"""The floor of the `hot` table: what bare sockets reach that do only what every broker must do.

`python -m bench.hot_floor PORT DIRECTORY JOB`. One process, one thread, epoll, as a broker of ours has. It knows how
large each request is and what the answer will be, and decodes nothing. Of a produce it computes the CRC, sets the base
offset and writes the batch to a file; to a fetch it sends a stretch of a file that it maps, which was found to take
half of the CPU of sendfile.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import select
import socket
import sys
from abc import ABC, abstractmethod
from collections import deque
from pathlib import Path

from crc32c import crc32c

from bench import hot_frames
from bench.hot_client import Job
from tidelog.types import Buffer

_EVENTS = select.EPOLLIN | select.EPOLLOUT | select.EPOLLET
_BUFFER_BYTES = 64 * 1024
_REQUESTED_ID, _ANSWERED_ID = slice(8, 12), slice(4, 8)
"""Where the correlation id stands in the frames."""
_TAIL_BYTES = 3
"""Behind the batch in a Produce request: the tagged fields of the partition, the topic and the request."""
_CRC_AT, _CRC_FROM = 17, 21


class _Connection(ABC):
    """Requests of one size in, answers out; what the socket does not take waits."""

    def __init__(self, connected: socket.socket, request_bytes: int) -> None:
        self.socket = connected
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._request_bytes = request_bytes
        self._buffer = memoryview(bytearray(max(_BUFFER_BYTES // request_bytes, 1) * request_bytes))
        self._filled = 0

    def receive(self) -> bool:
        """False when the client is gone."""
        while True:
            room = self._buffer[self._filled :]
            try:
                count = self.socket.recv_into(room)
            except BlockingIOError:
                return True
            if not count:
                return False
            self._filled += count
            whole = self._filled // self._request_bytes
            if whole:
                size = self._request_bytes
                self.answer([self._buffer[i * size : (i + 1) * size] for i in range(whole)])
                left = self._filled - whole * size
                self._buffer[:left] = self._buffer[whole * size : self._filled]
                self._filled = left
            if count < len(room):
                return True

    @abstractmethod
    def answer(self, requests: list[memoryview]) -> None: ...

    @abstractmethod
    def flush(self) -> None: ...


class _Produced(_Connection):
    def __init__(self, connected: socket.socket, request_bytes: int, job: Job, file: int) -> None:
        super().__init__(connected, request_bytes)
        batch = job.batch
        self._records = batch.records
        self._batch_at = request_bytes - _TAIL_BYTES - len(batch.data)
        self._answer = bytearray(hot_frames.produce_answer(job.topic))
        self._file = file
        self._offset = 0

    def answer(self, requests: list[memoryview]) -> None:
        answers = bytearray()
        batches = []
        for request in requests:
            batch = request[self._batch_at : -_TAIL_BYTES]
            if crc32c(batch[_CRC_FROM:]) != int.from_bytes(batch[_CRC_AT:_CRC_FROM], "big"):
                raise ValueError("a batch whose CRC is wrong")
            batch[:8] = self._offset.to_bytes(8, "big")
            self._offset += self._records
            batches.append(batch)
            self._answer[_ANSWERED_ID] = request[_REQUESTED_ID]
            answers += self._answer
        os.writev(self._file, batches)
        self.socket.send(answers)  # small: the socket has room for all that may be in flight

    def flush(self) -> None:
        pass


class _Fetched(_Connection):
    def __init__(self, connected: socket.socket, request_bytes: int, job: Job, data: memoryview) -> None:
        super().__init__(connected, request_bytes)
        self._size = len(job.batch.data) * job.fetched
        before, self._behind = hot_frames.fetch_answer(job.topic, self._size)
        self._before = bytearray(before)
        self._data = data
        self._position = 0
        self._pending: deque[Buffer] = deque()

    def answer(self, requests: list[memoryview]) -> None:
        for request in requests:
            before = self._before[:]
            before[_ANSWERED_ID] = request[_REQUESTED_ID]
            self._pending.extend([before, self._data[self._position : self._position + self._size], self._behind])
            self._position = (self._position + self._size) % len(self._data)
        self.flush()

    def flush(self) -> None:
        hot_frames.send_pending(self.socket, self._pending)


class _Partitions:
    """Each connection has one of them, from the first to the last and again."""

    def __init__(self, directory: Path, job: Job) -> None:
        self._directory = directory
        self._job = job
        self._numbers = itertools.cycle(range(job.connections))

    def serve(self, connected: socket.socket, request_bytes: int) -> _Connection:
        number = next(self._numbers)
        if self._job.fetched:
            with (self._directory / f"data-{number}").open("rb") as file:
                data = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
            return _Fetched(connected, request_bytes, self._job, data)
        file_number = os.open(self._directory / f"written-{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        return _Produced(connected, request_bytes, self._job, file_number)


def main() -> None:
    port, directory, job = int(sys.argv[1]), Path(sys.argv[2]), Job(**json.loads(sys.argv[3]))
    batch = job.batch
    if job.fetched:
        request_bytes = hot_frames.frame_size(hot_frames.fetch_frame(job.topic, 0, 0, 0, 0))
    else:
        request_bytes = hot_frames.frame_size(hot_frames.produce_frame(job.topic, 0, batch.data, 0))
    listening = socket.create_server(("127.0.0.1", port))
    epoll = select.epoll()
    epoll.register(listening.fileno(), select.EPOLLIN)
    connections: dict[int, _Connection] = {}
    partitions = _Partitions(directory, job)
    while True:
        for fd, _ in epoll.poll():
            if fd == listening.fileno():
                connected, _ = listening.accept()
                connections[connected.fileno()] = partitions.serve(connected, request_bytes)
                epoll.register(connected.fileno(), _EVENTS)
                continue
            connection = connections[fd]
            connection.flush()
            if not connection.receive():
                connection.socket.close()
                del connections[fd]


if __name__ == "__main__":
    main()
