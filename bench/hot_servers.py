"""What the `hot` table loads: the two brokers and the floor, alike for the client that loads them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench import hot_frames, hot_memory
from bench.broker_servers import Server
from bench.calls import call, connection_to, until
from bench.hot_client import Job, Result
from bench.turns import create_topic, delete_topic
from peers.process import PeerFailedError
from tidelog.wire.messages.offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)

_ROOT = Path(__file__).parent.parent
_LIST_OFFSETS_VERSION = 6
_LATEST = -1
_START_DEADLINE_S = 10.0
_EXIT_DEADLINE_S = 10.0
_FILL_DEADLINE_S = 60.0


class Floor(Server):
    """The bare server. It is started anew for each job, which it must know."""

    name = "floor"
    job: Job

    def own_settings(self) -> dict[str, str | int]:
        return {}

    def command(self) -> list[str]:
        return [sys.executable, "-m", "bench.hot_floor", str(self.port), str(self.directory), _as_json(self.job)]

    @contextmanager
    def serving(self, job: Job) -> Iterator[None]:
        self.job = job
        self.prepare()
        if job.fetched:
            self._fill()
        self.launch()
        try:
            until(self._is_listening, "the bare server", deadline_s=_START_DEADLINE_S, poll_s=0.01)
            yield
        finally:
            self.kill()
            shutil.rmtree(self.directory)

    def _fill(self) -> None:
        """What each partition of a broker has."""
        batch = self.job.batch
        batches = range(self.job.positions * self.job.fetched)
        data = b"".join(hot_frames.at_offset(batch, number * batch.records) for number in batches)
        for partition in range(self.job.connections):
            (self.directory / f"data-{partition}").write_bytes(data)

    def _is_listening(self) -> bool:
        self.check_alive()
        try:
            with connection_to(self.port):
                return True
        except OSError:
            return False

    def written_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.directory.glob("written-*"))


@dataclass(frozen=True)
class Measured:
    """One turn: what the client counted, and what of the processor the server took meanwhile."""

    result: Result
    server_cpu_s: float

    @property
    def rate(self) -> float:
        return self.result.requests / self.result.seconds

    @property
    def bytes_per_s(self) -> float:
        return self.result.moved_bytes / self.result.seconds

    @property
    def cpu_us_per_request(self) -> float:
        return self.server_cpu_s * 1e6 / self.result.requests

    @property
    def cpu_s_per_gb(self) -> float:
        return self.server_cpu_s * 1e9 / self.result.moved_bytes

    @property
    def server_share(self) -> float:
        """Of one core."""
        return self.server_cpu_s / self.result.seconds

    @property
    def client_share(self) -> float:
        return self.result.cpu_s / self.result.seconds


def measure(server: Server, job: Job) -> Measured:
    """The client in its own process; the CPU of what comes before its measured time is not counted."""
    job = replace(job, port=server.port)
    command = [sys.executable, "-m", "bench.hot_client", _as_json(job)]
    process = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        _expect(process.stdout.readline() == "ready\n", server)
        hot_memory.touch(server.directory, job.most_written_bytes)
        before = server.cpu_s
        with server.cpu_counted():
            process.stdin.write("go\n")
            process.stdin.flush()
            line = process.stdout.readline()
        _expect(bool(line), server)
        process.wait(_EXIT_DEADLINE_S)
    finally:
        process.kill()
        process.wait()
    return Measured(Result(**json.loads(line)), server.cpu_s - before)


def _expect(holds: bool, server: Server) -> None:
    if not holds:
        server.check_alive()
        raise PeerFailedError(f"the client of {server.name} has ended; it says above why")


def _as_json(job: Job) -> str:
    return json.dumps(asdict(job))


# What a turn needs besides


def produce_once(server: Server, job: Job) -> Measured:
    """To a new topic, which is removed again; what was counted must be there."""
    if isinstance(server, Floor):
        with server.serving(job):
            measured = measure(server, job)
            found = server.written_bytes() // len(job.batch.data)
    else:
        with _new_topic(server, job):
            measured = measure(server, job)
            found = _records_in(server, job) // job.batch.records
    if found != measured.result.all_requests:
        raise PeerFailedError(f"{server.name}: {measured.result.all_requests} answers, {found} batches")
    return measured


@contextmanager
def filled(server: Server, job: Job) -> Iterator[None]:
    """A topic that has what the job fetches, while this lasts."""
    if isinstance(server, Floor):
        with server.serving(job):
            yield
        return
    with _new_topic(server, job):
        measure(server, replace(job, fetched=0, most=job.positions * job.fetched, warm_s=0.0, seconds=_FILL_DEADLINE_S))
        yield


@contextmanager
def _new_topic(server: Server, job: Job) -> Iterator[None]:
    create_topic(server, job.topic, job.connections, 1)
    try:
        yield
    finally:
        delete_topic(server, job.topic)


def _records_in(server: Server, job: Job) -> int:
    partitions = [ListOffsetsPartition(partition_index=i, timestamp=_LATEST) for i in range(job.connections)]
    request = ListOffsetsRequest(topics=[ListOffsetsTopic(name=job.topic, partitions=partitions)])
    with connection_to(server.port) as connection:
        response = call(connection, request, _LIST_OFFSETS_VERSION)
    assert isinstance(response, ListOffsetsResponse)
    return sum(partition.offset for partition in response.topics[0].partitions)
