"""A partition on disk, from the first record to recovery after a crash: `.venv/bin/python examples/log_tour.py`."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from tidelog.config.topic import default_topic
from tidelog.host.clock import SystemClock
from tidelog.host.disk import RealDisk
from tidelog.log.cleaner import clean, plan_cleaning
from tidelog.log.log import Log
from tidelog.records.batch import decode
from tidelog.records.build import build_batch
from tidelog.records.header import headers
from tidelog.types import TopicPartition

RECORDS = 1_000_000
PER_BATCH = 500
KEYS = 10_000
PARTITION = TopicPartition("orders", 0)
CONFIG = default_topic(segment_bytes=16 << 20, cleanup_policy=("delete", "compact"))


class Tour:
    """Steps, each timed and told in one line."""

    def __init__(self) -> None:
        self.table = Table("step", "result", "seconds", title="one partition, in Kafka's files")
        self._start = time.perf_counter()

    def tell(self, step: str, result: str) -> None:
        self.table.add_row(step, result, f"{time.perf_counter() - self._start:.2f}")
        self._start = time.perf_counter()


async def read_everything(log: Log) -> int:
    offset = count = 0
    while offset < log.log_end_offset:
        data = (await log.read(offset, 1 << 20)).read()
        count += len(decode(data))
        offset = max(header.next_offset for _, header in headers(data))
    return count


async def tour(directory: str) -> Table:
    disk, clock, told = RealDisk(), SystemClock(), Tour()
    path = f"{directory}/{PARTITION}"
    now_ms = clock.wall_ms()
    log = await Log.open(disk, clock, path, PARTITION, CONFIG)
    for first in range(0, RECORDS, PER_BATCH):
        records = [
            (now_ms + i, b"customer-%d" % (i % KEYS), b"order %d " % i + bytes(60))
            for i in range(first, first + PER_BATCH)
        ]
        log.append_as_leader(build_batch(records), leader_epoch=0)
    log.high_watermark = log.log_end_offset
    told.tell("write", f"{log.log_end_offset:,} records, {log.size_bytes >> 20} MB, {len(log.segments)} segments")

    count = await read_everything(log)
    assert count == RECORDS
    told.tell("read it all", f"{count:,} records")

    found = await log.find_offset(now_ms + 777_777)
    assert found is not None
    assert found.offset == 777_777
    told.tell("find by time", f"offset {found.offset:,}")

    await log.flush()
    cleaned = await clean(log, await plan_cleaning(log, 0), random.SystemRandom())
    assert cleaned is not None
    told.tell("compact", f"{cleaned.bytes_before >> 10:,} kB became {cleaned.bytes_after >> 10:,} kB")

    end = log.log_end_offset
    log.append_as_leader(build_batch([(now_ms, b"last", b"word")]), leader_epoch=1)
    await log.flush()
    active = log.segments.active
    active.file.truncate(active.size - 1)
    again = await Log.open(disk, clock, path, PARTITION, replace(CONFIG, cleanup_policy=("delete",)), clean=False)
    assert again.log_end_offset == end
    told.tell("tear the last batch, recover", f"the log ends at {again.log_end_offset:,} again")
    return told.table


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="tidelog-") as directory:
        Console().print(asyncio.run(tour(directory)))


if __name__ == "__main__":
    main()
