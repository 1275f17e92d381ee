"""The options of format("tidelog"), read and checked once; every complaint names its option. Pure.

Names and meanings are those of Spark's Kafka connector, so that moving is changing the format's name. `group` and
`directRead` are ours.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import NamedTuple, TypeVar

from tidelog.client.addresses import Address
from tidelog.client.fetch import FetchSettings
from tidelog.client.offsets import EARLIEST, LATEST
from tidelog.client.settings import ClientSettings
from tidelog.spark.client_names import PREFIX, READING, WRITING, tell_unused
from tidelog.spark.errors import OptionError
from tidelog.spark.offsets import (
    AtOffsets,
    AtTimestamp,
    AtTimestamps,
    Bound,
    Everywhere,
    check_batch_bounds,
    parse_offsets,
    parse_partitions,
    parse_timestamps,
)
from tidelog.spark.settings import BOOTSTRAP, ClientOptions, ProducerSettings
from tidelog.types import TopicPartition

T = TypeVar("T")

_STRATEGIES = ("subscribe", "subscribePattern", "assign")
_STARTING = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDING = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_NAMES = (
    *_STRATEGIES,
    *_STARTING,
    *_ENDING,
    BOOTSTRAP,
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "includeHeaders",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "groupIdPrefix",
    "group",
    "directRead",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "topic",
)
_STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "group")
_WRITE_ONLY = ("topic",)
_READ_ONLY = tuple(name for name in _NAMES if name not in (BOOTSTRAP, *_WRITE_ONLY))
_BY_LOWER = {name.lower(): name for name in _NAMES}
_ALIKE = 0.88
"""How much an unknown option must look like a known one to be taken for a slip. Others are somebody else's."""

_UNITS_MS = {"us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+)\s*([a-z]*)")
_DEFAULT_DELAY_MS = 15 * 60_000
_DEFAULT_POLL_MS = 120_000
_DEFAULT_ATTEMPTS = 3
_DEFAULT_INTERVAL_MS = 1000
_MAX_LONG = 2**63 - 1


class Subscription(NamedTuple):
    """Which partitions are read: those of topics, of all topics that match, or just these. One of the three is set."""

    option: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()


class DirectReading(Enum):
    """Whether records are read from the files of their leader, where a task can see them, rather than fetched."""

    AUTO = "auto"
    """Where it can be done."""
    ON = "true"
    """A task that cannot see the files fails. What is not in a sealed segment is fetched all the same."""
    OFF = "false"


class ReadOptions(NamedTuple):
    """What a query reads, and how."""

    addresses: list[Address]
    client: ClientSettings
    fetch: FetchSettings
    subscription: Subscription
    start: Bound
    end: Bound
    """Of a batch; a stream has no end."""
    latest_if_no_match: bool
    """Where no record is as late as a starting timestamp, begin at the end; else that is an error."""
    fail_on_data_loss: bool
    include_headers: bool
    max_offsets: int | None
    min_offsets: int | None
    max_delay_ms: int
    min_partitions: int | None
    max_records: int | None
    group: str | None
    direct_read: DirectReading
    poll_timeout_ms: int
    """How long a task waits for records that were there when it was planned."""
    offset_attempts: int
    offset_interval_ms: int
    """How often the ends of logs are asked for that lie before what was read already, and the rest in between."""


class WriteOptions(NamedTuple):
    """Where rows are written, and how; `topic` is for rows that do not name one."""

    addresses: list[Address]
    client: ClientSettings
    producer: ProducerSettings
    topic: str | None


class _Given:
    """Options by name, whatever their case."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value.strip() for name, value in options.items()}
        for name in self._values:
            if name in _BY_LOWER or name.startswith(PREFIX):
                continue
            meant = difflib.get_close_matches(name, _BY_LOWER, 1, _ALIKE)
            if meant:
                raise OptionError(name, f"it is unknown; '{_BY_LOWER[meant[0]]}' is meant?")

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def has(self, name: str) -> bool:
        return name.lower() in self._values

    def tell_unused(self, names: Iterable[str], doing: str) -> None:
        for name in names:
            if self.has(name):
                tell_unused(name, doing)

    def parsed(self, name: str, parse: Callable[[str, str], T], usual: T) -> T:
        text = self.text(name)
        return usual if text is None else parse(name, text)


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    given = _Given(options)
    client = ClientOptions(options, READING)
    given.tell_unused(_WRITE_ONLY, READING.doing)
    if not streaming:
        given.tell_unused(_STREAM_ONLY, "reading a batch")
    start = _bound(given, _STARTING, LATEST if streaming else EARLIEST)
    if streaming:
        ending = next((name for name in _ENDING if given.has(name)), None)
        if ending is not None:
            raise OptionError(ending, "a streaming query has no end")
    end = _bound(given, _ENDING, LATEST)
    if not streaming:
        check_batch_bounds(start, end)
    read = ReadOptions(
        addresses=client.addresses(given.text(BOOTSTRAP)),
        client=client.client(given.text("groupIdPrefix") or "tidelog-spark-source"),
        fetch=client.fetch(),
        subscription=_subscription(given),
        start=start,
        end=end,
        latest_if_no_match=given.parsed("startingOffsetsByTimestampStrategy", _strategy, False),
        fail_on_data_loss=given.parsed("failOnDataLoss", _flag, True),
        include_headers=given.parsed("includeHeaders", _flag, False),
        max_offsets=given.parsed("maxOffsetsPerTrigger", _positive, None),
        min_offsets=given.parsed("minOffsetsPerTrigger", _positive, None),
        max_delay_ms=given.parsed("maxTriggerDelay", _duration_ms, _DEFAULT_DELAY_MS),
        min_partitions=given.parsed("minPartitions", _positive, None),
        max_records=given.parsed("maxRecordsPerPartition", _positive, None),
        group=given.parsed("group", _not_empty, None),
        direct_read=given.parsed("directRead", _direct_reading, DirectReading.AUTO),
        poll_timeout_ms=given.parsed("kafkaConsumer.pollTimeoutMs", _positive, _DEFAULT_POLL_MS),
        offset_attempts=given.parsed("fetchOffset.numRetries", _positive, _DEFAULT_ATTEMPTS),
        offset_interval_ms=given.parsed("fetchOffset.retryIntervalMs", _not_negative, _DEFAULT_INTERVAL_MS),
    )
    if read.min_offsets is not None and read.max_offsets is not None and read.min_offsets > read.max_offsets:
        raise OptionError(
            "minOffsetsPerTrigger", f"{read.min_offsets} is above maxOffsetsPerTrigger's {read.max_offsets}"
        )
    return read


def write_options(options: Mapping[str, str]) -> WriteOptions:
    given = _Given(options)
    client = ClientOptions(options, WRITING)
    given.tell_unused(_READ_ONLY, WRITING.doing)
    return WriteOptions(
        client.addresses(given.text(BOOTSTRAP)),
        client.client("tidelog-spark-sink"),
        client.producer(),
        given.parsed("topic", _not_empty, None),
    )


def includes_headers(options: Mapping[str, str]) -> bool:
    """All that the columns depend on."""
    return _Given(options).parsed("includeHeaders", _flag, False)


def _subscription(given: _Given) -> Subscription:
    chosen = [name for name in _STRATEGIES if given.has(name)]
    if not chosen:
        raise OptionError("subscribe", "what to read must be told by one of subscribe, subscribePattern and assign")
    if len(chosen) > 1:
        raise OptionError(chosen[1], f"only one of subscribe, subscribePattern and assign; '{chosen[0]}' is set too")
    option = chosen[0]
    text = given.text(option) or ""
    if option == "assign":
        return Subscription(option, partitions=tuple(parse_partitions(option, text)))
    if option == "subscribe":
        topics = sorted({name.strip() for name in text.split(",") if name.strip()})
        if not topics:
            raise OptionError(option, "it names no topic")
        return Subscription(option, topics=tuple(topics))
    if not text:
        raise OptionError(option, "it is empty")
    try:
        re.compile(text)
    except re.error as failure:
        raise OptionError(option, f"{text!r} is not a regular expression: {failure}") from failure
    return Subscription(option, pattern=text)


def _bound(given: _Given, names: tuple[str, str, str], usual: int) -> Bound:
    """A time for all goes before a time for each, and that before offsets, as in Spark's connector."""
    for_all, by_timestamp, by_offset = names
    text = given.text(for_all)
    if text is not None:
        if not text.isdecimal() or int(text) > _MAX_LONG:
            raise OptionError(for_all, f"{text!r} is not a time in milliseconds")
        return AtTimestamp(for_all, int(text))
    text = given.text(by_timestamp)
    if text is not None:
        return AtTimestamps(by_timestamp, parse_timestamps(by_timestamp, text))
    text = given.text(by_offset)
    if text is None:
        return Everywhere(by_offset, usual)
    special = {"earliest": EARLIEST, "latest": LATEST}.get(text.lower())
    if special is not None:
        return Everywhere(by_offset, special)
    if not text.startswith("{"):
        raise OptionError(by_offset, f"{text!r} is neither earliest nor latest nor JSON")
    return AtOffsets(by_offset, parse_offsets(by_offset, text))


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise OptionError(name, f"{text!r} is neither true nor false")
    return text.lower() == "true"


def _strategy(name: str, text: str) -> bool:
    if text.lower() not in ("error", "latest"):
        raise OptionError(name, f"{text!r} is neither error nor latest")
    return text.lower() == "latest"


def _direct_reading(name: str, text: str) -> DirectReading:
    try:
        return DirectReading(text.lower())
    except ValueError:
        values = ", ".join(one.value for one in DirectReading)
        raise OptionError(name, f"{text!r} is not one of {values}") from None


def _positive(name: str, text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= _MAX_LONG:
        raise OptionError(name, f"{text!r} is not a positive number")
    return int(text)


def _not_negative(name: str, text: str) -> int:
    if not text.isdecimal() or int(text) > _MAX_LONG:
        raise OptionError(name, f"{text!r} is not a number from 0 on")
    return int(text)


def _not_empty(name: str, text: str) -> str:
    if not text:
        raise OptionError(name, "it is empty")
    return text


def _duration_ms(name: str, text: str) -> int:
    """As Spark writes times: 500ms, 30s, 15m, 1h; a bare number is milliseconds."""
    found = _DURATION.fullmatch(text.lower())
    unit = None if found is None else _UNITS_MS.get(found[2] or "ms")
    if found is None or unit is None:
        raise OptionError(name, f"{text!r} is not a time; write 500ms, 30s, 15m or 1h")
    return int(int(found[1]) * unit)
