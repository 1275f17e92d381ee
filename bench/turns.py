"""Two brokers, or two clusters, loaded in turns by the same librdkafka client; and what their turns say."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.calls import until
from bench.table import Row
from peers.librdkafka import rdkafka_bench

SAME = 0.97
"""Beside an earlier checkout, nothing may be slower by more than 3 %."""
FIRST_RECORDS = 20
"""Per partition on average, before a topic is measured; spread at random, so that none is left out."""

Client = Mapping[str, str | int]
"""Settings of librdkafka; what is not named is at its default."""

PRODUCE: Client = {"acks": "all", "linger.ms": 5, "delivery.report.only.error": "true"}
PRODUCE_SYNC: Client = {"acks": "all", "linger.ms": 0}
_TOPIC_DEADLINE_S = 120.0
_PATIENCE = {"operation_timeout": _TOPIC_DEADLINE_S, "request_timeout": _TOPIC_DEADLINE_S}


class Loaded(Protocol):
    """A broker or a cluster."""

    name: str
    bootstrap: str

    def cpu_counted(self) -> AbstractContextManager[None]: ...

    def has_files_of(self, topic: str) -> bool: ...


Side = TypeVar("Side", bound=Loaded)


class Pair(NamedTuple, Generic[Side]):
    ours: Side
    peer: Side


@dataclass(frozen=True)
class Load:
    """What one run of the client sends or reads."""

    records: int
    size: int
    client: Client
    partitions: int = 6
    replication_factor: int = 1

    def run(self, mode: str, side: Loaded, topic: str) -> dict[str, float]:
        return rdkafka_bench(
            mode,
            side.bootstrap,
            topic,
            partitions=self.partitions,
            records=self.records,
            size=self.size,
            settings=self.client,
        )

    def rate(self, mode: str, side: Loaded, topic: str) -> float:
        """Records per second, the broker's CPU time counted."""
        with side.cpu_counted():
            return self.records / self.run(mode, side, topic)["seconds"]

    @contextmanager
    def new_topic(self, side: Loaded, name: str) -> Iterator[str]:
        """A topic with a few records of that size in each partition, on both sides: the first seconds of a new topic
        of a hundred partitions were seen to be slow on Kafka, and are not what the table is about. Left, its files are
        gone, so that no deletion runs while the other side is measured."""
        create_topic(side, name, self.partitions, self.replication_factor)
        first: Client = {"sticky.partitioning.linger.ms": 0}
        Load(self.partitions * FIRST_RECORDS, self.size, first, self.partitions).run("produce", side, name)
        yield name
        delete_topic(side, name)


def create_topic(side: Loaded, name: str, partitions: int, replication_factor: int) -> None:
    """Returns when the topic exists."""
    new = NewTopic(name, num_partitions=partitions, replication_factor=replication_factor)
    admin = _admin(side)
    admin.create_topics([new], **_PATIENCE)[name].result()


def delete_topic(side: Loaded, name: str) -> None:
    """Returns when its files are gone."""
    admin = _admin(side)
    admin.delete_topics([name], **_PATIENCE)[name].result()
    what = f"{side.name} without files of {name}"
    until(lambda: not side.has_files_of(name), what, deadline_s=_TOPIC_DEADLINE_S, poll_s=0.05)


def _admin(side: Loaded) -> AdminClient:
    return AdminClient({"bootstrap.servers": side.bootstrap, "log_level": 0})


# The measurements


def in_turns(pair: Pair[Side], rounds: int, work: Callable[[Side], float]) -> tuple[list[float], list[float]]:
    ours, peer = [], []
    for _ in range(rounds):
        ours.append(work(pair.ours))
        peer.append(work(pair.peer))
    return ours, peer


def produce_row(pair: Pair[Side], rounds: int, what: str, load: Load, bar: float) -> Row:
    def work(side: Side) -> float:
        with load.new_topic(side, "produce") as topic:
            return load.rate("produce", side, topic)

    return more(f"librdkafka produce, {what}", *in_turns(pair, rounds, work), bar)


def sync_rows(pair: Pair[Side], rounds: int, what: str, load: Load, bars: tuple[float, float]) -> list[Row]:
    """One record, its acknowledgement, the next; the p50 and p99 of each turn."""
    p99: dict[str, list[float]] = {pair.ours.bootstrap: [], pair.peer.bootstrap: []}

    def work(side: Side) -> float:
        with load.new_topic(side, "sync") as topic, side.cpu_counted():
            done = load.run("sync", side, topic)
        p99[side.bootstrap].append(done["p99_us"] / 1000)
        return done["p50_us"] / 1000

    p50 = in_turns(pair, rounds, work)
    return [
        less(f"synchronous produce, {what}, p50", *p50, bars[0], in_ms),
        less(f"synchronous produce, {what}, p99", p99[pair.ours.bootstrap], p99[pair.peer.bootstrap], bars[1], in_ms),
    ]


# What they say


def more(what: str, ours: list[float], peer: list[float], bar: float) -> Row:
    ratio = statistics.median(ours) / statistics.median(peer)
    return Row(what, told(ours, _k_per_s), told(peer, _k_per_s), ratio, bar)


def less(what: str, ours: list[float], peer: list[float], bar: float, text: Callable[[float], str]) -> Row:
    ratio = statistics.median(ours) / statistics.median(peer)
    return Row(what, told(ours, text), told(peer, text), ratio, bar, at_most=True)


def told(values: list[float], text: Callable[[float], str]) -> str:
    """The median, and how far the turns lie apart."""
    middle = text(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({text(min(values))} to {text(max(values))})"


def in_ms(value: float) -> str:
    return f"{value:.2f} ms"


def in_s(value: float) -> str:
    return f"{value:.2f} s"


def in_mb(value: float) -> str:
    return f"{value:.0f} MB"


def _k_per_s(value: float) -> str:
    return f"{value / 1000:.0f} k/s"


def client_text(given: Client) -> str:
    return " ".join(f"{name}={value}" for name, value in given.items())
