"""A broker of your own, from its first topic to a kill -9: `make run`.

It starts `tidelog up` with its default, embedded coordination, on a free port, in a directory that goes with it.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time

from rich.console import Console
from rich.table import Table

from tidelog.client.admin import Admin
from tidelog.client.cluster import Cluster
from tidelog.client.fetch import Fetcher
from tidelog.client.offsets import EARLIEST, LATEST, list_offsets
from tidelog.client.produce import Producer
from tidelog.records.build import build_batch
from tidelog.records.header import headers
from tidelog.types import TopicPartition

TOPIC = "orders"
PARTITIONS = [TopicPartition(TOPIC, number) for number in range(6)]
RECORDS = 1_000_000
PER_BATCH = 5_000
MAX_OUTSTANDING_BYTES = 16 << 20


class Up:
    """`tidelog up` as a child process."""

    def __init__(self, port: int, data: str) -> None:
        command = [sys.executable, "-m", "tidelog", "up", "--port", str(port), "--data", data]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if "tidelog is up" in line:
                return
        raise SystemExit("the broker did not start")

    def stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait()

    def kill_broker(self) -> None:
        """kill -9 for the broker; `up` reports it and, as no other is left, ends."""
        children = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self._process.pid)], capture_output=True, text=True, check=True
        )
        for pid in children.stdout.split():
            os.kill(int(pid), signal.SIGKILL)
        self._process.wait()


async def write(cluster: Cluster) -> None:
    producer = Producer(cluster)
    sent = []
    for number in range(0, RECORDS, PER_BATCH):
        records = [(1_700_000_000_000 + i, b"key-%d" % i, b"order %d" % i) for i in range(number, number + PER_BATCH)]
        await producer.room(MAX_OUTSTANDING_BYTES)
        sent.append(producer.send(PARTITIONS[number // PER_BATCH % len(PARTITIONS)], build_batch(records)))
    await asyncio.gather(*sent)
    producer.close()


async def read(cluster: Cluster) -> int:
    """How many records a consumer from the beginning gets."""
    ends = await list_offsets(cluster, dict.fromkeys(PARTITIONS, LATEST))
    starts = await list_offsets(cluster, dict.fromkeys(PARTITIONS, EARLIEST))
    fetcher = Fetcher(cluster, {partition: found.offset for partition, found in starts.items()})
    count = 0
    # A fetcher reads ahead of what it has handed out, so its position would say too early that all is read.
    left = {partition for partition in PARTITIONS if starts[partition].offset < ends[partition].offset}
    while left:
        for fetched in await fetcher.next():
            count += sum(header.record_count for _, header in headers(fetched.records))
            if fetched.next_offset >= ends[fetched.partition].offset:
                left.discard(fetched.partition)
    fetcher.close()
    return count


async def tour(data: str) -> None:
    table = Table("step", "result", "seconds", title="one broker, as any Kafka client sees it")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = time.perf_counter()

    def tell(step: str, result: str) -> None:
        nonlocal started
        table.add_row(step, result, f"{time.perf_counter() - started:.2f}")
        started = time.perf_counter()

    up = Up(port, data)
    tell("tidelog up", f"a broker listens on 127.0.0.1:{port}")
    cluster = await Cluster.open([("127.0.0.1", port)], random=random.SystemRandom())
    await Admin(cluster).create_topic(TOPIC, partitions=len(PARTITIONS))
    tell("create topic", f"{TOPIC} with {len(PARTITIONS)} partitions")
    await write(cluster)
    tell("produce, acks=all, idempotent", f"{RECORDS:,} records acknowledged")
    tell("consume", f"{await read(cluster):,} records")
    cluster.close()
    up.kill_broker()
    tell("kill -9", "the broker is gone")
    up = Up(port, data)
    tell("tidelog up, again", "the log was recovered")
    cluster = await Cluster.open([("127.0.0.1", port)], random=random.SystemRandom())
    count = await read(cluster)
    tell("consume", f"{count:,} records")
    cluster.close()
    up.stop()
    tell("Ctrl-C", "stopped cleanly, data kept")
    Console().print(table)
    assert count == RECORDS, "every acknowledged record is still there"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(tour(directory))
