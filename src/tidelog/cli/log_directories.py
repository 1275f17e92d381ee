"""What brokers say of their log directories: how much each replica and each directory holds, and which have failed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.output import Size, path_parts
from tidelog.types import BrokerId, TopicPartition

if TYPE_CHECKING:
    from tidelog.client.admin import Admin
    from tidelog.wire.messages.topics import DescribeLogDirsResult

    Directories = Sequence[tuple[BrokerId, DescribeLogDirsResult]]

_ANSWER_WITHIN_S = 5.0


async def ask(admin: Admin, brokers: Iterable[BrokerId]) -> Directories:
    """All log directories of these brokers. A broker that cannot be asked is named on stderr."""
    from tidelog.errors import TidelogError

    async def of_broker(broker: BrokerId) -> list[tuple[BrokerId, DescribeLogDirsResult]]:
        try:
            found = await asyncio.wait_for(admin.describe_log_dirs(broker), _ANSWER_WITHIN_S)
        except (TidelogError, TimeoutError) as failure:
            why = str(failure) or "it does not answer"
            click.echo(f"broker {broker} cannot be asked for its log directories: {why}", err=True)
            return []
        return [(broker, directory) for directory in found]

    return [found for of_one in await asyncio.gather(*map(of_broker, brokers)) for found in of_one]


def strays(directories: Directories) -> Iterator[dict[str, Any]]:
    """Replicas that a broker keeps although the cluster does not name them there."""
    from tidelog.log.names import is_stray

    for broker, directory in directories:
        for topic in directory.topics:
            if is_stray(topic.name):
                yield {
                    "broker": broker,
                    "log_directory": directory.log_dir,
                    "stray": topic.name,
                    "bytes": sum(partition.partition_size for partition in topic.partitions),
                }


def failed(directories: Directories) -> Iterator[dict[str, Any]]:
    """Those that their broker has put offline: what they hold counts neither for a leader nor for an ISR."""
    for broker, directory in directories:
        if directory.error_code:
            yield {"broker": broker, "log_directory": directory.log_dir, "error": _error(directory)}


def rows(directories: Directories) -> Iterator[dict[str, Any]]:
    """A row for each directory: what its replicas take, and the volume that it is on. Old brokers do not tell that."""
    for broker, directory in directories:
        partitions = [partition for topic in directory.topics for partition in topic.partitions]
        yield {
            "broker": broker,
            "log_directory": directory.log_dir,
            "replicas": len(partitions),
            "bytes": sum(partition.partition_size for partition in partitions),
            "volume_bytes": directory.total_bytes if directory.total_bytes >= 0 else None,
            "free_bytes": directory.usable_bytes if directory.usable_bytes >= 0 else None,
            "error": _error(directory),
        }


def for_people(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same rows with sizes that can be read, and paths that break before slashes."""
    return [{name: _for_people(name, value) for name, value in row.items()} for row in rows]


def _for_people(name: str, value: Any) -> Any:
    if name == "log_directory":
        return path_parts(value)
    return Size(value) if name.endswith("bytes") and value is not None else value


def replica_sizes(directories: Directories) -> dict[TopicPartition, list[dict[str, Any]]]:
    """By partition, each replica that is on a disk: where, how large, and how far behind."""
    found: dict[TopicPartition, list[dict[str, Any]]] = {}
    for broker, directory in directories:
        for topic in directory.topics:
            for partition in topic.partitions:
                found.setdefault(TopicPartition(topic.name, partition.partition_index), []).append(
                    {
                        "broker": broker,
                        "log_directory": directory.log_dir,
                        "bytes": partition.partition_size,
                        "offset_lag": partition.offset_lag,
                        "is_future": partition.is_future_key,
                    }
                )
    return found


def _error(directory: DescribeLogDirsResult) -> str | None:
    from tidelog.errors import error_code

    return error_code(directory.error_code).name if directory.error_code else None
