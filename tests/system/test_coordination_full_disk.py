"""A disk that is full, or fails, under the embedded store: clear errors and living sessions, never SIGBUS.

The disk is a small tmpfs, which needs the right to mount; where that is missing these tests are skipped.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from tests.kits.logkit import batch
from tests.kits.processkit import broker_process, wait_for
from tidelog.errors import ErrorCode
from tidelog.net.calling import Connection
from tidelog.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tidelog.wire.messages.topics import CreatableTopic, CreateTopicsRequest

SIZE = 1 << 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"this machine lets us mount nothing: {mounted.stderr.decode().strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(disk: Path) -> Path:
    """To the last byte."""
    filler = disk / "filler"
    with open(filler, "ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    return filler


SESSIONS = """
import asyncio, sys
from tidelog.coordination.embedded import EmbeddedCoordination
from tidelog.coordination.machine import NoRoomError
from tidelog.host.clock import SystemClock

async def main(directory, filler):
    home = EmbeddedCoordination(directory, SystemClock())
    session = await home.connect(500)
    await session.create("/before")
    with open(filler, "ab", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    for attempt in range(2000):
        try:
            await session.create(f"/full-{attempt}", bytes(500))
        except NoRoomError as error:
            print("refused:", error)
            break
    try:
        for _ in range(5):
            await home.connect(500)
    except NoRoomError as error:
        print("no session:", error)
    await asyncio.sleep(1.5)
    assert session.is_current(), "the lease needs no room"
    import os
    os.unlink(filler)
    await session.create("/after")
    assert {"before", "after"} <= set(await session.children("/"))
    print("done")

asyncio.run(asyncio.wait_for(main(*sys.argv[1:]), 30))
"""


def test_a_full_disk_refuses_changes_and_sessions_by_name_and_ends_nothing(small_disk: Path) -> None:
    """In a process of its own: a write to mapped memory without room behind it would end that process."""
    directory = small_disk / "store"
    ended = subprocess.run(
        [sys.executable, "-c", SESSIONS, str(directory), str(small_disk / "filler")],
        capture_output=True,
        timeout=60,
        check=False,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "done"
    for what in ("refused:", "no session:"):
        [line] = [line for line in ended.stdout.splitlines() if line.startswith(what)]
        assert str(directory) in line
        assert "No space left on device" in line
        assert "tidelog.coordination.dir" in line


async def create_topic(port: int, name: str, timeout_ms: int) -> int:
    connection = await Connection.open("127.0.0.1", port, client_id="full")
    topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    async with asyncio.timeout(30):
        made = await connection.call(CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms), 7)
    connection.close()
    code: int = made.topics[0].error_code  # type: ignore[attr-defined]
    return code


async def produce(port: int) -> int:
    connection = await Connection.open("127.0.0.1", port, client_id="full")
    data = PartitionProduceData(index=0, records=batch([b"value"]))
    topic = TopicProduceData(name="orders", partition_data=[data])
    answer = await connection.call(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic]), 9)
    connection.close()
    code: int = answer.responses[0].partition_responses[0].error_code  # type: ignore[attr-defined]
    return code


def test_a_broker_goes_on_while_its_coordination_disk_is_full(small_disk: Path, tmp_path: Path) -> None:
    settings = {"tidelog_coordination_dir": str(small_disk / "store"), "zookeeper_session_timeout_ms": "2000"}
    with broker_process(tmp_path, **settings) as broker:
        assert uvloop.run(create_topic(broker.port, "orders", 20_000)) == ErrorCode.NONE
        filler = fill(small_disk)
        while uvloop.run(create_topic(broker.port, f"topic-{os.urandom(4).hex()}", 1000)) == ErrorCode.NONE:
            pass  # until the last page of the journal is full
        for _ in range(5):
            assert uvloop.run(produce(broker.port)) == ErrorCode.NONE
            uvloop.run(asyncio.sleep(0.6))
        assert broker.is_alive
        assert broker.lines("ERROR", "changes to the cluster's state fail", "tidelog.coordination.dir")
        assert not broker.lines("is lost")
        filler.unlink()

        def is_made() -> bool:
            return uvloop.run(create_topic(broker.port, f"topic-{os.urandom(4).hex()}", 5000)) == ErrorCode.NONE

        wait_for(is_made, "a topic when there is room again")
        assert broker.stop() == 0
