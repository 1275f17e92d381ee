"""Three brokers beside three of Apache Kafka 3.9.1 in ZooKeeper mode: the same clients, the same settings, in turns.

The clusters run at once on the same disk and only one is loaded. Ours runs twice: agreed in a directory, which is the
default and what the load is measured on, and on ZooKeeper, where only what depends on it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench import cluster_servers, turns
from bench.calls import until
from bench.cluster_servers import SESSION_TIMEOUT_S, Cluster
from bench.log import scratch
from bench.table import Row
from bench.turns import Client, Load, Pair
from peers.librdkafka import SteadyProducer
from peers.zookeeper import ZooKeeper

PARTITIONS, COPIES = 6, 3
STEADY: Client = {"acks": "all", "enable.idempotence": "true", "linger.ms": 5}
STEADY_RATE, STEADY_SIZE, STEADY_S = 1_000, 100, 1.0
"""Records a second to each partition, their bytes, and how long they flow before a broker is killed."""
_DEADLINE_S = 120.0
_POLL_S = 0.05


@dataclass(frozen=True)
class Scale:
    """How often and how much; `warm` is what a cluster takes before anything is measured. Of the partitions in `many`
    there is one round: Kafka takes minutes for it."""

    rounds: int = 3
    warm: int = 1_000_000
    small: int = 1_000_000
    large: int = 300_000
    sync: int = 2_000
    many: int = 1_000


FULL = Scale()
QUICK = Scale(rounds=1, warm=50_000, small=50_000, large=20_000, sync=200, many=60)


class Clusters(NamedTuple):
    ours: Cluster
    on_zookeeper: Cluster
    kafka: Cluster


def settings() -> dict[str, str]:
    """What was run, for the reader of the table."""
    return cluster_servers.settings() | {
        "produce (librdkafka)": turns.client_text(turns.PRODUCE),
        "synchronous produce (librdkafka)": turns.client_text(turns.PRODUCE_SYNC),
        "each topic of these": f"new, about {turns.FIRST_RECORDS} unmeasured records per partition first, then deleted",
        "memory": "resident, of the broker processes and all that they started, after the produce runs",
        "gap (librdkafka)": f"{turns.client_text(STEADY)}; {STEADY_RATE} records of {STEADY_SIZE} B a second to each "
        f"of {PARTITIONS} partitions; the longest time between two acknowledgements of a partition that the killed "
        "broker led; the bar holds for every round; every second one kills the controller",
        "many partitions": "created: until all brokers tell of a leader and a full ISR for each, and the leaders "
        "answer for them; led again: until both others tell of a leader that lives, and the leaders answer; counted "
        "on ZooKeeper from the end of the dead broker's session, else from kill -9",
        "amounts of a full run": str(FULL),
    }


def rows(scale: Scale = FULL) -> list[Row]:
    with scratch() as name, ExitStack() as stack:
        directory = Path(name)
        zookeeper = stack.enter_context(ZooKeeper(directory / "zookeeper"))
        clusters = Clusters(
            cluster_servers.embedded(directory / "ours"),
            cluster_servers.on_zookeeper(directory / "on-zookeeper", zookeeper),
            cluster_servers.kafka(directory / "kafka", zookeeper),
        )
        for cluster in (clusters.ours, clusters.kafka):
            stack.enter_context(cluster)
        load = _load_rows(Pair(clusters.ours, clusters.kafka), scale)
        stack.enter_context(clusters.on_zookeeper)
        return [*load, *_gap_rows(clusters, scale.rounds), *_many_rows(clusters, scale.many)]


# Load


def _load_rows(pair: Pair[Cluster], scale: Scale) -> list[Row]:
    def load(records: int, size: int, client: Client = turns.PRODUCE) -> Load:
        return Load(records, size, client, PARTITIONS, COPIES)

    for cluster in pair:
        with load(scale.warm, 100).new_topic(cluster, "warm") as topic:
            load(scale.warm, 100).run("produce", cluster, topic)
    what = f"{PARTITIONS} partitions, acks=all, rf={COPIES}, min.insync=2"
    sync = load(scale.sync, 100, turns.PRODUCE_SYNC)
    rows = [
        turns.produce_row(pair, scale.rounds, f"100 B, {what}", load(scale.small, 100), 1.3),
        turns.produce_row(pair, scale.rounds, f"1 kB, {what}", load(scale.large, 1000), 1.3),
        *turns.sync_rows(pair, scale.rounds, f"100 B, acks=all, rf={COPIES}", sync, (0.7, 0.4)),
    ]
    memory = [[cluster.resident_bytes() / 1e6] for cluster in pair]
    return [
        *rows,
        turns.less("resident memory of three brokers after the runs", memory[0], memory[1], 0.2, turns.in_mb),
    ]


# The death of a leader


def _gap_rows(clusters: Clusters, rounds: int) -> list[Row]:
    turns = [[_gap_s(cluster, turn) for cluster in clusters] for turn in range(rounds)]
    ours, on_zookeeper, kafka = (list(gaps) for gaps in zip(*turns, strict=True))
    what = "longest gap in acknowledgements when a leader is killed"
    session = f"ZooKeeper, session of {SESSION_TIMEOUT_S:g} s"
    return [
        _gap_row(f"{what}, embedded (Kafka: {session})", ours, kafka, 1.0),
        _gap_row(f"{what}, {session}", on_zookeeper, kafka, SESSION_TIMEOUT_S + 1.0),
    ]


def _gap_row(what: str, ours: list[float], peer: list[float], bar_s: float) -> Row:
    return Row(
        what, turns.told(ours, turns.in_s), turns.told(peer, turns.in_s), max(ours), bar_s, at_most=True, unit="s"
    )


def _gap_s(cluster: Cluster, turn: int) -> float:
    """Of one death; all brokers are up again afterwards. The topic stays: a broker of Kafka deletes no files in the
    first half minute after its start."""
    topic = f"gap-{turn}"
    turns.create_topic(cluster, topic, PARTITIONS, COPIES)
    _wait_in_sync(cluster, topic, PARTITIONS)
    leaders = cluster.view().leaders(topic)
    victim = _victim(cluster, is_controller=turn % 2 == 1)
    with SteadyProducer(
        cluster.bootstrap, topic, partitions=PARTITIONS, rate=STEADY_RATE, size=STEADY_SIZE, settings=STEADY
    ) as producer:
        producer.longest_gaps_s()
        time.sleep(STEADY_S)
        producer.longest_gaps_s()
        known_at = cluster.kill(victim)
        gaps = producer.longest_gaps_s()
    known_at()
    cluster.restart(victim)
    _wait_in_sync(cluster, topic, PARTITIONS)
    return max(gaps[partition] for partition, leader in leaders.items() if leader == victim)


def _victim(cluster: Cluster, *, is_controller: bool) -> int:
    controller = cluster.view().controller()
    return controller if is_controller else next(number for number in cluster.members if number != controller)


def _wait_in_sync(cluster: Cluster, topic: str, partitions: int) -> None:
    view = cluster.view()
    what = f"{cluster.name} with all replicas of {topic} in sync"
    until(lambda: view.is_in_sync(topic, partitions), what, deadline_s=_DEADLINE_S, poll_s=_POLL_S)


# Many partitions


class Many(NamedTuple):
    """Seconds until all partitions were there, and until all were led again after each of two deaths."""

    created: float
    other_died: float
    controller_died: float


def _many_rows(clusters: Clusters, partitions: int) -> list[Row]:
    ours, on_zookeeper, kafka = [_many(cluster, partitions) for cluster in clusters]
    return [
        *_many_rows_of("", partitions, ours, kafka),
        *_many_rows_of(", on ZooKeeper", partitions, on_zookeeper, kafka),
    ]


def _many_rows_of(where: str, partitions: int, ours: Many, kafka: Many) -> Iterable[Row]:
    events = ("created", "led again after a broker's death", "led again after the controller's death")
    for event, our_s, kafka_s in zip(events, ours, kafka, strict=True):
        yield turns.less(f"{partitions:,} partitions, rf={COPIES}{where}: {event}", [our_s], [kafka_s], 1.0, turns.in_s)


def _many(cluster: Cluster, partitions: int) -> Many:
    """Its brokers are killed afterwards: what idle partitions cost must not weigh on the next cluster."""
    topic = "many"
    with ExitStack() as stack:
        stack.callback(cluster.kill_all)
        began = time.perf_counter()
        turns.create_topic(cluster, topic, partitions, COPIES)
        _wait_in_sync(cluster, topic, partitions)
        created_s = time.perf_counter() - began
        victim = _victim(cluster, is_controller=False)
        other_died_s = _led_again_s(cluster, victim, topic, partitions)
        cluster.restart(victim)
        _wait_in_sync(cluster, topic, partitions)
        victim = _victim(cluster, is_controller=True)
        return Many(created_s, other_died_s, _led_again_s(cluster, victim, topic, partitions))


def _led_again_s(cluster: Cluster, victim: int, topic: str, partitions: int) -> float:
    known_at = cluster.kill(victim)
    view = cluster.view()
    what = f"{cluster.name} with a leader for all of {topic}"
    until(lambda: view.is_led(topic, partitions), what, deadline_s=_DEADLINE_S, poll_s=_POLL_S)
    led_at = time.perf_counter()
    return led_at - known_at()
