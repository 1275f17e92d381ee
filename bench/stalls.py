"""How long one request holds the broker's loop, at worst.

A broker runs in this process, on a loop that measures the CPU time of its thread from one look at the sockets to the
next. Requests are sent from another thread, as bytes. What the table shows is the longest hold while a request was
served; all requests that come meanwhile wait for so long.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import selectors
import socket
import struct
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench.stall_cases import BIG, BIG_PARTITIONS, CASES, COMMITTED, GROUP, SMALL, Case, large_group
from bench.table import Row
from tidelog.broker.apis import SERVED
from tidelog.config.tidelog_settings import MAX_ELEMENTS
from tidelog.coordination.memory import MemoryCoordination
from tidelog.groups.records import group_record
from tidelog.host import garbage
from tidelog.host.machine import RealPorts
from tidelog.lab.broker import LabBroker, eventually
from tidelog.wire import Message
from tidelog.wire.frames import encode_request
from tidelog.wire.messages import configs, group_offsets, groups, metadata, topics

BAR_MS = 50.0
_MB = 1_000_000
_MOST_BYTES = 100 * _MB
_WIDE = 5_000
"""Partitions of the topic that is created while it is measured."""
_JUNK = 1_000
"""Topics that are deleted by one request."""
_PATIENCE_S = 60.0


class Hold(NamedTuple):
    """What one request came to."""

    what: str
    size: int
    longest_ms: float
    total_ms: float
    outcome: str


class Watch(selectors.DefaultSelector):
    """Notes how much CPU time the thread spends between two looks at the sockets."""

    def __init__(self) -> None:
        super().__init__()
        self.longest_s = 0.0
        self.total_s = 0.0
        self._since_s = time.thread_time()

    def reset(self) -> None:
        self.longest_s = self.total_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        held_s = time.thread_time() - self._since_s
        self.longest_s = max(self.longest_s, held_s)
        self.total_s += held_s
        found = super().select(timeout)
        self._since_s = time.thread_time()
        return found


class Stage:
    """A broker, and a client on a thread of its own."""

    def __init__(self, watch: Watch, broker: LabBroker) -> None:
        self.watch = watch
        self.broker = broker

    async def hold(self, what: str, frame: bytes, *, until: Callable[[], bool] | None = None) -> Hold:
        """The longest hold until the answer is there, and until what it began is done."""
        gc.collect(1)
        loop = asyncio.get_running_loop()
        port = next(iter(self.broker.broker.ports_bound.values()))
        await asyncio.sleep(0.01)
        self.watch.reset()
        outcome = await loop.run_in_executor(None, _exchange, port, frame)
        if until is not None:
            await eventually(until, _PATIENCE_S)
        await asyncio.sleep(0.02)
        return Hold(what, len(frame), self.watch.longest_s * 1000, self.watch.total_s * 1000, outcome)

    async def measure(self, case: Case, size: int) -> Hold:
        return await self.hold(case.name, frame_of(case, size))

    async def prepare(self) -> None:
        """What the cases name."""
        for name, partitions in ((BIG, BIG_PARTITIONS), (SMALL, 1)):
            await self.create(name, partitions)
        kit = self.broker
        await kit.call(metadata.FindCoordinatorRequest(coordinator_keys=[GROUP]), 4)
        shards = kit.broker.groups.shards
        await eventually(lambda: len(shards) > 0 and all(shard.is_active for shard in shards.values()), _PATIENCE_S)
        shard = kit.broker.groups.shard_of(GROUP)
        shard.groups.replay([group_record(GROUP, large_group())])
        shard.perform(shard.groups.loaded(kit.broker.groups.now_ms()))
        partitions_to_commit = [
            group_offsets.OffsetCommitRequestPartition(partition_index=index, committed_offset=1)
            for index in range(BIG_PARTITIONS)
        ]
        topic = group_offsets.OffsetCommitRequestTopic(name=BIG, partitions=partitions_to_commit)
        await kit.call(group_offsets.OffsetCommitRequest(group_id=COMMITTED, topics=[topic]), 9)

    async def create(self, name: str, partitions: int) -> None:
        wanted = topics.CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        await self.hold(name, _framed(topics.CreateTopicsRequest(topics=[wanted], timeout_ms=60_000), 7))
        known = self.broker.broker.metadata
        await eventually(lambda: (topic := known.topic(name)) is not None and topic.has_leaders, _PATIENCE_S)


def frame_of(case: Case, size: int) -> bytes:
    """About so many bytes, and at most a few elements more than are allowed."""
    sample = len(_framed(case.build(10), case.version)) / 10
    count = min(max(int(size / sample), 1), _most(case) + 1_000)
    return _padded(_framed(case.build(count), case.version), size)


def largest_allowed(case: Case) -> bytes:
    """As many elements as one request may have, or as many bytes."""
    sample = len(_framed(case.build(10), case.version)) / 10
    count = min(_most(case), int(_MOST_BYTES * 0.99 / sample))
    return _framed(case.build(count), case.version)


def _most(case: Case) -> int:
    """How many of its elements one request may have."""
    limit = SERVED[case.build(1).__schema__.api_key].max_elements
    return ((MAX_ELEMENTS if limit is None else limit) - 10) // case.elements_of_one


def _padded(frame: bytes, size: int) -> bytes:
    """Bytes behind a request are ignored."""
    if len(frame) >= size:
        return frame
    return struct.pack(">i", size - 4) + frame[4:] + bytes(size - len(frame))


def _framed(request: Message, version: int) -> bytes:
    return b"".join(bytes(part) for part in encode_request(request, version, 1, "stalls"))


def _exchange(port: int, frame: bytes) -> str:
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.settimeout(_PATIENCE_S)
        try:
            line.sendall(frame)
            head = _receive(line, 4)
            if len(head) < 4:
                return "closed"
            (size,) = struct.unpack(">i", head)
            return f"answer of {len(_receive(line, size))} bytes"
        except OSError:
            return "closed"


def _receive(line: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        part = line.recv(min(size - len(received), 1 << 20))
        if not part:
            break
        received += part
    return bytes(received)


@contextlib.asynccontextmanager
async def stage(watch: Watch, directory: Path) -> AsyncIterator[Stage]:
    ports = RealPorts(num_io_threads=2)
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(directory),
        "tidelog.metrics.port": "0",
        "auto.create.topics.enable": "true",
        "offsets.topic.num.partitions": "10",
        "offsets.topic.replication.factor": "1",
    }
    broker = LabBroker(ports, MemoryCoordination(ports.clock), settings, 1, "127.0.0.1")
    await broker.start()
    made = Stage(watch, broker)
    try:
        await made.prepare()
        garbage.settle()
        yield made
    finally:
        await broker.stop()
        ports.close()


def run_on_stage(story: Callable[[Stage], Any]) -> None:
    """On a loop that is watched, in a directory of its own."""
    watch = Watch()

    async def main() -> None:
        with tempfile.TemporaryDirectory() as directory:
            async with stage(watch, Path(directory)) as made:
                await story(made)

    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(watch)) as runner:
        runner.run(main())


# Honest requests whose work is large


async def honest(made: Stage) -> AsyncIterator[Hold]:
    kit = made.broker.broker
    known = kit.metadata

    def led(name: str, count: int) -> bool:
        topic = known.topic(name)
        return topic is not None and len(topic.partitions) == count and topic.has_leaders

    create = topics.CreateTopicsRequest(
        topics=[topics.CreatableTopic(name="wide", num_partitions=_WIDE, replication_factor=1)], timeout_ms=60_000
    )
    yield await made.hold(f"CreateTopics of {_WIDE} partitions", _framed(create, 7), until=lambda: led("wide", _WIDE))
    create = topics.CreateTopicsRequest(
        topics=[topics.CreatableTopic(name=f"junk-{i}", num_partitions=1, replication_factor=1) for i in range(_JUNK)],
        timeout_ms=60_000,
    )
    yield await made.hold(
        f"CreateTopics of {_JUNK} topics", _framed(create, 7), until=lambda: led(f"junk-{_JUNK - 1}", 1)
    )
    names = [metadata.MetadataRequestTopic(name=f"auto-{i}") for i in range(2_000)]
    auto = metadata.MetadataRequest(topics=names, allow_auto_topic_creation=True)
    yield await made.hold("Metadata that names 2000 topics to be created", _framed(auto, 9))
    yield await made.hold("Metadata of all", _framed(metadata.MetadataRequest(topics=None), 9))
    yield await made.hold("DescribeLogDirs of all", _framed(topics.DescribeLogDirsRequest(topics=None), 4))
    yield await made.hold("ListGroups", _framed(groups.ListGroupsRequest(), 4))
    elect = topics.ElectLeadersRequest(topic_partitions=None, timeout_ms=10_000)
    yield await made.hold("ElectLeaders of all", _framed(elect, 2))
    change = configs.IncrementalAlterConfigsRequestAlterConfigsResource(
        resource_type=4,
        resource_name="",
        configs=[
            configs.IncrementalAlterConfigsRequestAlterableConfig(
                name="log.cleaner.backoff.ms", config_operation=0, value="14000"
            )
        ],
    )
    alter = configs.IncrementalAlterConfigsRequest(resources=[change])
    yield await made.hold(
        "IncrementalAlterConfigs of all brokers",
        _framed(alter, 1),
        until=lambda: bool(kit.config["log.cleaner.backoff.ms"] == 14_000),
    )
    yield await scrape(made)
    delete = topics.DeleteTopicsRequest(
        topics=[topics.DeleteTopicState(name=f"junk-{i}") for i in range(_JUNK)], timeout_ms=60_000
    )
    yield await made.hold(f"DeleteTopics of {_JUNK} topics", _framed(delete, 6))


async def scrape(made: Stage) -> Hold:
    port = made.broker.broker.ports_bound["metrics"]
    gc.collect()
    await asyncio.sleep(0.01)
    made.watch.reset()
    url = f"http://127.0.0.1:{port}/metrics"
    page = await asyncio.get_running_loop().run_in_executor(None, lambda: urllib.request.urlopen(url).read())
    await asyncio.sleep(0.02)
    return Hold("GET /metrics", len(page), made.watch.longest_s * 1000, made.watch.total_s * 1000, "200")


# The table


def settings() -> dict[str, str]:
    return {
        "measured": "CPU time of the loop's thread between two looks at the sockets, the longest while it was served",
        "broker": f"one, with {BIG_PARTITIONS} partitions of one topic and 4000 members of one group",
    }


def rows() -> list[Row]:
    found: list[Row] = []

    async def story(made: Stage) -> None:
        for case in CASES:
            holds = [await made.measure(case, _MB), await made.hold(case.name, largest_allowed(case))]
            holds.append(await made.measure(case, int(_MOST_BYTES * 0.99)))
            found.extend(_row(hold) for hold in holds)
        async for hold in honest(made):
            found.append(_row(hold))

    run_on_stage(story)
    return found


def _row(hold: Hold) -> Row:
    what = f"{hold.what}, {hold.size / _MB:.1f} MB, {hold.outcome}"
    row = Row(what, f"{hold.longest_ms:.0f} ms", f"{hold.total_ms:.0f} ms in all", hold.longest_ms, BAR_MS, True, "ms")
    print(f"{what}: {row.ours} ({row.peer})", flush=True)
    return row
