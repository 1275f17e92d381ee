"""Ten thousand partitions on one disk, with far fewer descriptors than files."""

import asyncio
import os
import random

import pytest

from tests.kits.logkit import batch, values
from tidelog.config.topic import default_topic
from tidelog.host.clock import SystemClock
from tidelog.host.disk import RealDisk
from tidelog.host.limits import raise_open_file_limit
from tidelog.log.directory import LogDirectory
from tidelog.types import TopicPartition

PARTITIONS = 10_000
DESCRIPTORS = 2_000


@pytest.mark.long
@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_ten_thousand_partitions_open_within_the_file_limit(directory: str, clean: bool):
    partitions = [TopicPartition("many", number) for number in range(PARTITIONS)]

    async def opened(disk: RealDisk) -> LogDirectory:
        return await LogDirectory.open(
            disk, SystemClock(), random.SystemRandom(), directory + "/data", lambda topic: default_topic()
        )

    async def write(disk: RealDisk) -> None:
        logs = await opened(disk)
        await asyncio.gather(*(logs.create(partition) for partition in partitions))
        for log in logs.logs.values():
            log.append_as_leader(batch([b"%d" % log.partition.partition]), 0)
        assert len(os.listdir("/proc/self/fd")) < DESCRIPTORS + 100
        if clean:
            await logs.close()
        else:
            logs._lock.release()

    async def read(disk: RealDisk) -> None:
        logs = await opened(disk)
        assert logs.was_clean is clean
        assert len(logs.logs) == PARTITIONS
        assert all(log.log_end_offset == 1 for log in logs.logs.values())
        assert await values(logs.logs[partitions[-1]]) == [b"%d" % (PARTITIONS - 1)]
        assert len(os.listdir("/proc/self/fd")) < DESCRIPTORS + 100
        await logs.close()

    raise_open_file_limit()
    for phase in (write, read):
        disk = RealDisk(max_open=DESCRIPTORS)
        asyncio.run(phase(disk))
        disk.close()
