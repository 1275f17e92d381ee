"""What a client of Kafka's can do, in one shape for all clients, so that each case is written once.

A driver only translates: it hands the client what a case asks for and shows what the client showed. It never repairs
an answer, and where a client has no such call, it says so in `lacks`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

Headers = tuple[tuple[str, bytes | None], ...]
Place = tuple[str, int, int]
"""Topic, partition, and the offset to start at, which may be EARLIEST or LATEST."""

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
"""As ListOffsets has them."""

DEADLINE_S = 15.0

UNKNOWN_TOPIC_OR_PARTITION = 3
OFFSET_OUT_OF_RANGE = 1
MESSAGE_TOO_LARGE = 10
INVALID_TOPIC = 17
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_REPLICATION_FACTOR = 38
INVALID_CONFIG = 40


@dataclass(frozen=True, slots=True)
class Record:
    """To be sent, or read. The client or the broker sets the timestamp if there is none."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp: int | None = None
    partition: int = 0
    offset: int = -1
    topic: str = ""
    log_append_time: bool = False

    @property
    def content(self) -> tuple[bytes | None, bytes | None, Headers]:
        return self.key, self.value, self.headers


@dataclass(frozen=True, slots=True)
class Sending:
    """How a producer is set up."""

    codec: str = "none"
    acks: str = "all"
    idempotent: bool = False
    linger_ms: int = 20


@dataclass(frozen=True, slots=True)
class Reading:
    """How a consumer is set up. `reset` is what it does with an offset that the log has not: none, earliest, latest."""

    reset: str = "none"
    isolation: str = "read_uncommitted"
    max_bytes: int = 1024 * 1024
    max_wait_ms: int = 200


@dataclass(frozen=True, slots=True)
class Listed:
    """What ListOffsets answered; -1 is none."""

    offset: int
    timestamp: int = -1


@dataclass(frozen=True, slots=True)
class Partition:
    partition: int
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Setting:
    """A value and where it comes from: 1 topic, 2 broker (dynamic), 3 all brokers, 4 the file, 5 default."""

    value: str | None
    source: int


@dataclass(frozen=True, slots=True)
class Cluster:
    cluster_id: str
    controller: int
    brokers: tuple[tuple[int, str, int], ...]


class ClientError(Exception):
    """What a client raised, with the number that Kafka's protocol has for it (-1 if it has none)."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{message} ({code})")
        self.code = code


class Driver:
    """One client. `lacks` names the cases that it cannot be asked for, each with the reason."""

    name: ClassVar[str]
    lacks: ClassVar[Mapping[str, str]] = {}
    bootstrap: str

    def version(self) -> str:
        raise NotImplementedError

    def close(self) -> None:
        """Ends what the driver started."""

    def produce(self, topic: str, records: Sequence[Record], sending: Sending = Sending()) -> list[int]:  # noqa: B008
        """The offset of each record, -1 where the client learns none. ClientError for the first that failed."""
        raise NotImplementedError

    def consume(self, places: Sequence[Place], count: int, reading: Reading = Reading()) -> list[Record]:  # noqa: B008
        """At least `count` records, from all places with one consumer that belongs to no group."""
        raise NotImplementedError

    def list_offsets(self, topic: str, partition: int, timestamp: int) -> Listed:
        raise NotImplementedError

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replication_factor: int = 1,
        config: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        raise NotImplementedError

    def delete_topic(self, topic: str) -> None:
        raise NotImplementedError

    def list_topics(self) -> list[str]:
        raise NotImplementedError

    def describe_topic(self, topic: str) -> list[Partition]:
        raise NotImplementedError

    def create_partitions(self, topic: str, count: int) -> None:
        raise NotImplementedError

    def describe_configs(self, resource: str, name: str) -> dict[str, Setting]:
        """`resource` is topic or broker."""
        raise NotImplementedError

    def alter_configs(self, resource: str, name: str, changes: Sequence[tuple[str, str, str | None]]) -> None:
        """Incremental; a change is SET, DELETE, APPEND or SUBTRACT, the name and the value."""
        raise NotImplementedError

    def replace_configs(self, resource: str, name: str, config: Mapping[str, str]) -> None:
        """AlterConfigs, which forgets what it is not told."""
        raise NotImplementedError

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        """The new start of the log."""
        raise NotImplementedError

    def describe_cluster(self) -> Cluster:
        raise NotImplementedError

    def log_dirs(self) -> dict[str, dict[str, int]]:
        """Of each directory, the size of each partition."""
        raise NotImplementedError


def partitions_of(entries: Sequence[Sequence[Any]]) -> list[Partition]:
    """From lists of number, leader, replicas and in-sync replicas."""
    found = [Partition(number, leader, tuple(replicas), tuple(isr)) for number, leader, replicas, isr in entries]
    return sorted(found, key=lambda partition: partition.partition)
