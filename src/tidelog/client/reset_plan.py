"""Where a reset of a group's offsets leads: the seven ways (S9.3), as a rule. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from tidelog.types import Offset, TopicPartition


class Way(Enum):
    """The ways, by the options of Kafka's tool; a file brings an offset for each partition."""

    EARLIEST = "to-earliest"
    LATEST = "to-latest"
    CURRENT = "to-current"
    OFFSET = "to-offset"
    SHIFT = "shift-by"
    TIME = "to-datetime"
    DURATION = "by-duration"
    FILE = "from-file"


class Reset(NamedTuple):
    """A way and what it takes: an offset, a number to shift by, ms since 1970, or the offsets of a file."""

    way: Way
    number: int = 0
    offsets: Mapping[TopicPartition, Offset] = {}


class Log(NamedTuple):
    """What of a partition's log matters here: its start, its end for readers, and the offset of the time asked for."""

    start: Offset
    end: Offset
    at_time: Offset | None = None


class Planned(NamedTuple):
    """Where a partition goes. Either it has a new offset, maybe with a warning, or `refusal` says why it has none."""

    current: Offset | None
    new: Offset | None
    warning: str | None = None
    refusal: str | None = None


def plan(
    reset: Reset, current: Mapping[TopicPartition, Offset], logs: Mapping[TopicPartition, Log]
) -> dict[TopicPartition, Planned]:
    """For each partition that has a log, sorted. `current` lacks those without a committed offset."""
    return {
        partition: _planned(reset, partition, current.get(partition), log) for partition, log in sorted(logs.items())
    }


def _planned(reset: Reset, partition: TopicPartition, current: Offset | None, log: Log) -> Planned:
    match reset.way:
        case Way.EARLIEST:
            return Planned(current, log.start)
        case Way.LATEST:
            return Planned(current, log.end)
        case Way.CURRENT if current is not None:
            return Planned(current, current)
        case Way.CURRENT:
            return Planned(current, log.end, "it has no committed offset: it is set to the end")
        case Way.SHIFT if current is not None:
            return _within(current, current + reset.number, log)
        case Way.SHIFT:
            return Planned(current, None, refusal="it has no committed offset to shift")
        case Way.OFFSET:
            return _within(current, reset.number, log)
        case Way.FILE:
            return _within(current, reset.offsets[partition], log)
        case Way.TIME | Way.DURATION if log.at_time is not None:
            return Planned(current, log.at_time)
        case Way.TIME | Way.DURATION:
            return Planned(current, log.end, "no record is that late: it is set to the end")


def _within(current: Offset | None, wanted: Offset, log: Log) -> Planned:
    """An offset outside of the log would be reset by its reader anyhow, in a way nobody asked for."""
    if wanted < log.start:
        return Planned(current, log.start, f"{wanted} is below the log start: it is set to {log.start}")
    if wanted > log.end:
        return Planned(current, log.end, f"{wanted} is above the end of the log: it is set to {log.end}")
    return Planned(current, wanted)


class Chosen(NamedTuple):
    """Partitions of a topic; no numbers are all of it."""

    topic: str
    numbers: tuple[int, ...] = ()
