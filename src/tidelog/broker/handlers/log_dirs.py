"""DescribeLogDirs (35): 1 throttle time; 2 flexible; 3 an error for all; 4 the size of the volumes.

Asked for everything, it names strays too, as topics called `<topic>-<partition>.<unique>-stray`. Kafka does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.broker.pacing import Pace
from tidelog.errors import ErrorCode, StorageError
from tidelog.log.directory import LogDirectory
from tidelog.net.channel import Call
from tidelog.types import TopicPartition
from tidelog.wire.messages.topics import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker


async def describe_log_dirs(broker: Broker, request: DescribeLogDirsRequest, call: Call) -> DescribeLogDirsResponse:
    """Which logs there are is decided before the first slice; the size of each is told as it is in its slice."""
    pace = Pace(broker.lane)
    wanted: set[TopicPartition] | None = None
    if request.topics is not None:
        wanted = set()
        async for topic in pace.each(request.topics):
            async for part in pace.slices(topic.partitions):
                wanted.update(TopicPartition(topic.topic, index) for index in part)
    left_out = [
        DescribeLogDirsResult(log_dir=path, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
        for path in broker.storage.left_out
    ]
    return DescribeLogDirsResponse(
        results=[await _describe(broker, one, wanted, pace) for one in broker.storage.directories] + left_out
    )


async def _describe(
    broker: Broker, directory: LogDirectory, wanted: set[TopicPartition] | None, pace: Pace
) -> DescribeLogDirsResult:
    result = DescribeLogDirsResult(log_dir=directory.path)
    if directory.offline is not None:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return result
    topics: dict[str, DescribeLogDirsTopic] = {}
    async for name, log in pace.each(list(directory.logs.items())):
        if wanted is not None and name not in wanted:
            continue
        topic = topics.setdefault(name.topic, DescribeLogDirsTopic(name=name.topic))
        lag = max(log.high_watermark - log.log_end_offset, 0)
        topic.partitions.append(
            DescribeLogDirsPartition(partition_index=name.partition, partition_size=log.size_bytes, offset_lag=lag)
        )
    result.topics = list(topics.values())
    if wanted is None:
        result.topics += await _strays(directory)
    disk, path = broker.disk, directory.path
    try:
        result.total_bytes, result.usable_bytes = await disk.submit(
            f"{path} space", lambda: (disk.total_bytes(path), disk.free_bytes(path))
        )
    except (StorageError, FileNotFoundError):
        return DescribeLogDirsResult(log_dir=path, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    return result


async def _strays(directory: LogDirectory) -> list[DescribeLogDirsTopic]:
    """Each as a topic with the name of its directory: it uses space like one."""
    await directory.look_for_strays()
    return [
        DescribeLogDirsTopic(
            name=stray.name,
            partitions=[
                DescribeLogDirsPartition(partition_index=stray.partition.partition, partition_size=stray.size_bytes)
            ],
        )
        for stray in directory.strays.values()
    ]
