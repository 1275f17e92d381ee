"""Consumer groups beside Apache Kafka 4.1.0: rebalances of real consumers, commits, loading; in turns, in one run."""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from bench import broker_servers, broker_start, group_load, turns
from bench.broker_servers import COMMON, Kafka, Server, Tidelog
from bench.log import scratch
from bench.table import Row
from bench.turns import Pair, in_s, in_turns, less, told
from peers.process import PeerFailedError

GROUP_SETTINGS: dict[str, str | int] = {
    "offsets.topic.replication.factor": 1,
    "transaction.state.log.replication.factor": 1,
    "transaction.state.log.min.isr": 1,
    "group.initial.rebalance.delay.ms": 0,
}
CONSUMER: turns.Client = {
    "heartbeat.interval.ms": 500,
    "session.timeout.ms": 6000,
    "partition.assignment.strategy": "range",
    "enable.auto.commit": "false",
    "auto.offset.reset": "earliest",
}
COMMITS_BAR = 10_000.0
_TOPIC = "shared"
_DEADLINE_S = 60.0


@dataclass(frozen=True)
class Scale:
    """How often and how much."""

    rounds: int = 3
    rebalances: int = 9
    """Rounds of these: Kafka needs a quarter of a second or two, as the consumers happen to come."""
    consumers: int = 50
    partitions: int = 100
    committers: int = 8
    commits: int = 5_000
    """Of each of them."""
    window: int = 32
    groups: int = 10_000


FULL = Scale()
QUICK = Scale(rounds=1, rebalances=1, consumers=5, partitions=10, committers=2, commits=200, groups=50)


def settings() -> dict[str, str]:
    """What was run, for the reader of the table."""
    return broker_servers.settings() | {
        "groups": " ".join(f"{name}={value}" for name, value in GROUP_SETTINGS.items()),
        "consumers (librdkafka)": turns.client_text(CONSUMER),
        "stable": "from the first consumer's start until every partition is assigned, each to one of them, and no "
        "consumer has less than its share",
        "commits": "of one partition each, by clients of their own that have some requests under way at once",
        "loaded": "after kill -9, from the broker's first answer until it lists all groups",
        "amounts of a full run": str(FULL),
    }


def rows(scale: Scale = FULL) -> list[Row]:
    with scratch() as name, ExitStack() as stack:
        pair = Pair[Server](Tidelog(Path(name) / "ours"), Kafka(Path(name) / "kafka"))
        for server in pair:
            server.common = {**COMMON, **GROUP_SETTINGS}  # type: ignore[misc]
            server.prepare()
            stack.callback(server.stop)
            broker_start.start(server)
        return [*_rebalance_rows(pair, scale), _commit_row(pair, scale), _load_row(pair, scale)]


# Rebalances


class _Crowd:
    """Consumers of one group, polled in turns by one thread; librdkafka works in threads of its own."""

    def __init__(self, server: Server, group: str, count: int) -> None:
        self._assigned: dict[int, set[int]] = {}
        self.consumers = [
            Consumer({**CONSUMER, "bootstrap.servers": server.bootstrap, "group.id": group, "client.id": f"c{number}"})
            for number in range(count)
        ]
        for number, consumer in enumerate(self.consumers):
            consumer.subscribe([_TOPIC], on_assign=self._on_assign(number), on_revoke=self._on_revoke(number))

    def _on_assign(self, number: int) -> object:
        def assigned(_: Consumer, partitions: list[TopicPartition]) -> None:
            self._assigned[number] = {one.partition for one in partitions}

        return assigned

    def _on_revoke(self, number: int) -> object:
        def revoked(_: Consumer, partitions: list[TopicPartition]) -> None:
            self._assigned.pop(number, None)

        return revoked

    def is_stable(self, partitions: int) -> bool:
        shares = list(self._assigned.values())
        least = partitions // len(self.consumers)
        return (
            len(shares) == len(self.consumers)
            and sum(map(len, shares)) == partitions == len(set().union(*shares))
            and min(map(len, shares)) >= least
        )

    def until_stable(self, partitions: int) -> float:
        """The time when it was."""
        give_up_at = time.perf_counter() + _DEADLINE_S
        while not self.is_stable(partitions):
            if time.perf_counter() > give_up_at:
                raise PeerFailedError(f"{len(self._assigned)} of {len(self.consumers)} consumers have a share")
            for consumer in self.consumers:
                consumer.poll(0)
            time.sleep(0.005)
        return time.perf_counter()

    def one_leaves(self) -> None:
        self._assigned.pop(len(self.consumers) - 1, None)
        self.consumers.pop().close()

    def close(self) -> None:
        for consumer in self.consumers:
            consumer.close()


def _rebalance_rows(pair: Pair[Server], scale: Scale) -> list[Row]:
    for server in pair:
        turns.create_topic(server, _TOPIC, scale.partitions, 1)
    left: dict[str, list[float]] = {server.bootstrap: [] for server in pair}
    number = 0

    def work(server: Server) -> float:
        nonlocal number
        number += 1
        with server.cpu_counted():
            began = time.perf_counter()
            crowd = _Crowd(server, f"crowd-{number}", scale.consumers)
            try:
                started_s = crowd.until_stable(scale.partitions) - began
                gone = time.perf_counter()
                crowd.one_leaves()
                left[server.bootstrap].append(crowd.until_stable(scale.partitions) - gone)
            finally:
                crowd.close()
        return started_s

    for server in pair:
        work(server)
    for times in left.values():
        times.clear()
    started = in_turns(pair, scale.rebalances, work)
    what = f"{scale.consumers} librdkafka consumers on {scale.partitions} partitions"
    return [
        less(f"{what}, from start to stable", *started, 1.0, in_s),
        less(f"{what}, stable after one leaves", left[pair.ours.bootstrap], left[pair.peer.bootstrap], 1.0, in_s),
    ]


# Commits and loading


def _commit_row(pair: Pair[Server], scale: Scale) -> Row:
    for server in pair:
        turns.create_topic(server, group_load.TOPIC, 1, 1)
    groups = [f"committer-{number}" for number in range(scale.committers)]

    def work(server: Server) -> float:
        return group_load.commits_per_s(server, groups, scale.commits, scale.window)

    for server in pair:
        work(server)
    ours, peer = in_turns(pair, scale.rounds, work)
    bar = max(COMMITS_BAR, statistics.median(peer))
    what = f"offset commits a second (against Kafka's, at least {COMMITS_BAR:g})"
    return Row(what, told(ours, _k_per_s), told(peer, _k_per_s), statistics.median(ours) / bar, 1.0)


def _load_row(pair: Pair[Server], scale: Scale) -> Row:
    for server in pair:
        group_load.fill(server, scale.groups)
    times = in_turns(pair, scale.rounds, lambda server: group_load.load_s(server, scale.groups))
    return less(f"a coordinator with {scale.groups:,} groups loaded", *times, 1.0, in_s)


def _k_per_s(value: float) -> str:
    return f"{value / 1000:.1f} k/s"
