"""The client of the `hot` table, which costs next to nothing: `python -m bench.hot_client JOB`, the job as JSON.

It builds all frames, checks one answer to each of them as a client would, runs for a moment unmeasured and says
"ready". After a line on its standard input it runs for the wanted time, counts answers, and prints a Result as JSON.
One process without threads serves all connections; each has its own partition.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass

from bench import hot_frames
from bench.calls import ANSWER_DEADLINE_S, read_frame
from bench.hot_answers import Answers
from bench.hot_frames import Batch, WrongAnswerError
from tidelog.types import Buffer

PRODUCE_IDS = 16
"""So many frames each connection has; they differ in their correlation ids alone."""
_BUFFER_BYTES = 256 * 1024
_RETRY_S = 0.02
_EVENTS = select.EPOLLIN | select.EPOLLOUT | select.EPOLLET


@dataclass(frozen=True)
class Job:
    """What one run does. A fetch reads `fetched` batches with each request; a produce, without them, writes one."""

    port: int
    topic: str
    timestamp_ms: int
    record_bytes: int
    batch_bytes: int | None
    fetched: int = 0
    positions: int = 0
    """At how many places of each partition fetches begin, one after the other."""
    connections: int = 8
    in_flight: int = 5
    warm_s: float = 0.5
    seconds: float = 3.0
    most: int = 10**9
    """Requests of each connection, after which it ends too; at most as many are sent unmeasured before."""

    @property
    def batch(self) -> Batch:
        return hot_frames.batch_of(self.timestamp_ms, self.record_bytes, self.batch_bytes)

    @property
    def most_written_bytes(self) -> int:
        return 0 if self.fetched else self.most * self.connections * len(self.batch.data)


@dataclass(frozen=True)
class Result:
    """`all_requests` counts those too that came before the measured ones."""

    requests: int
    seconds: float
    moved_bytes: int
    cpu_s: float
    all_requests: int


class Connection:
    """Frames go out in their order, again and again, as many at once as may be in flight."""

    def __init__(self, job: Job, number: int, batch: Batch) -> None:
        self.socket = socket.create_connection(("127.0.0.1", job.port), timeout=ANSWER_DEADLINE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.frames = _frames(job, number, batch)
        self.answer_bytes = self._checked(job, batch)
        self.answered = 0
        self._sent = 0
        self._last = 0
        self._pending: deque[Buffer] = deque()
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        self._answers = Answers(self._buffer, self.answer_bytes, len(self.frames))
        self.socket.setblocking(False)

    def _checked(self, job: Job, batch: Batch) -> int:
        """The size of the answers, of which one to each frame is read and looked at."""
        sizes = set()
        for number, parts in enumerate(self.frames):
            if job.fetched:
                frame = self._exchange(parts)
                hot_frames.check_fetched(frame, batch, number * job.fetched * batch.records, job.fetched)
            else:
                frame = self._acknowledged(parts)
            sizes.add(len(frame) + 4)
        if len(sizes) > 1:
            raise WrongAnswerError(f"answers of {sorted(sizes)} bytes")
        return sizes.pop()

    def _acknowledged(self, parts: list[Buffer]) -> bytes:
        """The answer; a new topic may be without a leader for a moment."""
        give_up_at = time.perf_counter() + ANSWER_DEADLINE_S
        while True:
            frame = self._exchange(parts)
            try:
                hot_frames.check_produced(frame)
            except WrongAnswerError:
                if time.perf_counter() > give_up_at:
                    raise
                time.sleep(_RETRY_S)
            else:
                return frame

    def _exchange(self, parts: list[Buffer]) -> bytes:
        self.socket.sendall(b"".join(parts))
        return read_frame(self.socket)

    @property
    def is_idle(self) -> bool:
        return self.answered == self._sent

    def begin(self, in_flight: int, most: int) -> None:
        self._last = self._sent + most
        self.send(in_flight)

    def send(self, count: int) -> None:
        """So many more frames, the last ones of which may have to wait for room."""
        for _ in range(min(count, self._last - self._sent)):
            self._pending.extend(self.frames[self._sent % len(self.frames)])
            self._sent += 1
        self.flush()

    def flush(self) -> None:
        hot_frames.send_pending(self.socket, self._pending)

    def receive(self) -> int:
        """Answers that came; all that the socket has is taken."""
        came = 0
        while True:
            room = self._answers.room
            try:
                count = self.socket.recv_into(room)
            except BlockingIOError:
                break
            if not count:
                raise WrongAnswerError("the broker closed the connection")
            came += self._answers.received(count)
            if count < len(room):
                break
        self.answered += came
        return came


def _frames(job: Job, number: int, batch: Batch) -> list[list[Buffer]]:
    if not job.fetched:
        ids = min(PRODUCE_IDS, job.most)
        return [hot_frames.produce_frame(job.topic, number, batch.data, index) for index in range(ids)]
    size = job.fetched * len(batch.data)
    step = job.fetched * batch.records
    return [hot_frames.fetch_frame(job.topic, number, index * step, size, index) for index in range(job.positions)]


class Client:
    def __init__(self, job: Job) -> None:
        self._job = job
        self._batch = job.batch
        self._connections = [Connection(job, number, self._batch) for number in range(job.connections)]
        self._epoll = select.epoll()
        self._by_fd = {connection.socket.fileno(): connection for connection in self._connections}
        for fd in self._by_fd:
            self._epoll.register(fd, _EVENTS)

    def run(self, seconds: float) -> Result:
        """Until the time is over and all is answered, or `most` requests are."""
        before = self._answered()
        cpu_s, start = _cpu_s(), time.perf_counter()
        end_at = start + seconds
        for connection in self._connections:
            connection.begin(self._job.in_flight, self._job.most)
        while not all(connection.is_idle for connection in self._connections):
            self._turn(end_at)
        took_s = time.perf_counter() - start
        requests = self._answered() - before
        moved = requests * len(self._batch.data) * max(self._job.fetched, 1)
        checked = sum(len(connection.frames) for connection in self._connections)
        return Result(requests, took_s, moved, _cpu_s() - cpu_s, self._answered() + checked)

    def _turn(self, end_at: float) -> None:
        events = self._epoll.poll(ANSWER_DEADLINE_S)
        if not events:
            raise WrongAnswerError(f"no answer in {ANSWER_DEADLINE_S} s")
        is_over = time.perf_counter() >= end_at
        for fd, _ in events:
            connection = self._by_fd[fd]
            came = connection.receive()
            if came and not is_over:
                connection.send(came)
            else:
                connection.flush()

    def _answered(self) -> int:
        return sum(connection.answered for connection in self._connections)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    client = Client(job)
    client.run(job.warm_s)
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(asdict(client.run(job.seconds))), flush=True)


if __name__ == "__main__":
    main()
