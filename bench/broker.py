"""The broker beside Apache Kafka 4.1.0: the same clients, the same settings, in turns, in one run.

Both brokers run at once on the same disk and only one is loaded. Where ours stands in the table, BENCH_OURS=kafka
puts a second Kafka there: its ratios are 1 but for the noise of this machine.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from confluent_kafka.admin import AdminClient

from bench import broker_servers, broker_start
from bench.broker_servers import Kafka, Server, Tidelog
from bench.kafka_recovery import KAFKA_JVM
from bench.log import scratch
from bench.table import Row
from peers import home
from peers.clients import create_topic
from peers.librdkafka import rdkafka_bench
from peers.process import PeerFailedError, java_command

PARTITIONS, JAVA_PARTITIONS = 6, 100
FIRST_RECORDS = 20
"""Per partition on average, before a topic is measured; spread at random, so that none is left out."""

Client = Mapping[str, str | int]
"""Settings of librdkafka; what is not named is at its default."""

PRODUCE_SMALL: Client = {"acks": "all", "linger.ms": 5, "delivery.report.only.error": "true"}
PRODUCE_LARGE: Client = {"acks": "1", "delivery.report.only.error": "true"}
PRODUCE_SYNC: Client = {"acks": "all", "linger.ms": 0}
CONSUME: Client = {
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 1_048_576,
    "fetch.queue.backoff.ms": 1,
    "fetch.wait.max.ms": 10,
}
"""Deep queues: with its defaults, librdkafka pauses a partition for a second when the reader falls behind. Short waits:
with the default of 500 ms a short run was seen to stall for about that long."""

_PERF = "org.apache.kafka.tools.ProducerPerformance"
_PERF_JVM = [option for option in KAFKA_JVM if not option.startswith("-Xm")] + ["-Xmx512M"]
"""As kafka-producer-perf-test.sh runs it."""
_PERF_RESULT = re.compile(r"^\d+ records sent, (?P<rate>[\d.]+) records/sec .* 50th", re.MULTILINE)
_DEADLINE_S = 300.0
_DELETE_DEADLINE_S = 60.0


@dataclass(frozen=True)
class Scale:
    """How often and how much; `warm` is what each broker takes before anything is measured."""

    rounds: int = 5
    warm: int = 2_000_000
    small: int = 2_000_000
    large: int = 500_000
    java: int = 2_000_000
    sync: int = 5_000


QUICK = Scale(rounds=1, warm=100_000, small=100_000, large=50_000, java=100_000, sync=500)


class Pair(NamedTuple):
    ours: Server
    peer: Server


def rows() -> list[Row]:
    return _rows(Scale())


def quick_rows() -> list[Row]:
    """All of it once and small: shows that everything works, and nothing about speed."""
    return _rows(QUICK)


def settings() -> dict[str, str]:
    """What was run, for the reader of the table."""
    return broker_servers.settings() | {
        "produce 100 B (librdkafka)": _text(PRODUCE_SMALL),
        "produce 1 kB (librdkafka)": _text(PRODUCE_LARGE),
        "synchronous produce (librdkafka)": _text(PRODUCE_SYNC),
        "consume (librdkafka)": _text(CONSUME),
        "producer-perf": f"{_PERF} {home.KAFKA_KRAFT}, java {' '.join(_PERF_JVM)}, --throughput -1, acks=1",
        "each topic": f"new, about {FIRST_RECORDS} unmeasured records per partition first, deleted after its runs",
        "amounts of a full run": str(Scale()),
    }


def _text(given: Client) -> str:
    return " ".join(f"{name}={value}" for name, value in given.items())


def _rows(scale: Scale) -> list[Row]:
    with scratch() as directory:
        return [*_start_rows(Path(directory) / "start", scale), *_load_rows(Path(directory) / "load", scale)]


def _pair(directory: Path) -> Pair:
    ours = Kafka if os.environ.get("BENCH_OURS") == "kafka" else Tidelog
    return Pair(ours(directory / "ours"), Kafka(directory / "peer"))


def _load_rows(directory: Path, scale: Scale) -> list[Row]:
    pair = _pair(directory)
    with ExitStack() as stack:
        for server in pair:
            server.prepare()
            stack.callback(server.stop)
            broker_start.start(server)
        for server in pair:
            _warm(server, scale.warm)
        rows = [
            _produce_row(pair, scale.rounds, "100 B, 6 partitions, acks=all", scale.small, 100, PRODUCE_SMALL, 1.3),
            _produce_row(pair, scale.rounds, "1 kB, 6 partitions, acks=1", scale.large, 1000, PRODUCE_LARGE, 1.5),
            _java_row(pair, scale),
            _consume_row(pair, scale.rounds, "1 kB", scale.large, 1000),
            _consume_row(pair, scale.rounds, "100 B", scale.small, 100),
            *_sync_rows(pair, scale),
        ]
        return [*rows, *_footprint_rows(pair)]


def _warm(server: Server, records: int) -> None:
    """Produced and read once."""
    with _topic(server, "warm") as topic:
        for mode, client in (("produce", PRODUCE_SMALL), ("consume", CONSUME)):
            rdkafka_bench(
                mode, server.bootstrap, topic, partitions=PARTITIONS, records=records, size=100, settings=client
            )


@contextmanager
def _topic(server: Server, name: str, size: int = 100, partitions: int = PARTITIONS) -> Iterator[str]:
    """A new topic, with a few records of that size in each partition, on both sides: the first seconds of a new topic
    of a hundred partitions were seen to be slow on Kafka, and are not what the table is about. Left, its files are
    gone, so that no deletion runs while the other broker is measured."""
    create_topic(server.bootstrap, name, partitions=partitions)
    rdkafka_bench(
        "produce",
        server.bootstrap,
        name,
        partitions=partitions,
        records=partitions * FIRST_RECORDS,
        size=size,
        settings={"sticky.partitioning.linger.ms": 0},
    )
    yield name
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    admin.delete_topics([name], operation_timeout=_DELETE_DEADLINE_S)[name].result()
    give_up_at = time.monotonic() + _DELETE_DEADLINE_S
    while any(server.log_dir.glob(f"{name}-*")):
        if time.monotonic() > give_up_at:
            raise PeerFailedError(f"{server.name} still has files of {name} {_DELETE_DEADLINE_S} s after its deletion")
        time.sleep(0.05)


# The measurements, each in turns


def _in_turns(pair: Pair, rounds: int, work: Callable[[Server], float]) -> tuple[list[float], list[float]]:
    ours, peer = [], []
    for _ in range(rounds):
        ours.append(work(pair.ours))
        peer.append(work(pair.peer))
    return ours, peer


def _start_rows(directory: Path, scale: Scale) -> list[Row]:
    """Each start in a directory of its own; the first of each is not counted: it reads the programs from the disk."""
    turns = []
    for turn in range(1 + scale.rounds):
        pair = _pair(directory / str(turn))
        turns.append([_start_once(server) for server in pair])
    ours, peer = map(list, zip(*turns[1:], strict=True))
    return [_less("start to first acknowledged record", ours, peer, 0.3, lambda value: f"{value:.2f} s")]


def _start_once(server: Server) -> float:
    server.prepare()
    try:
        return broker_start.start(server)
    finally:
        server.stop()


def _produce_row(pair: Pair, rounds: int, what: str, records: int, size: int, client: Client, bar: float) -> Row:
    def work(server: Server) -> float:
        with _topic(server, "produce", size) as topic:
            return _rate(server, "produce", topic, records, size, client)

    return _more(f"librdkafka produce, {what}", *_in_turns(pair, rounds, work), bar)


def _consume_row(pair: Pair, rounds: int, what: str, records: int, size: int) -> Row:
    def work(server: Server) -> float:
        return _rate(server, "consume", "consume", records, size, CONSUME)

    with ExitStack() as stack:
        for server in pair:
            topic = stack.enter_context(_topic(server, "consume", size))
            rdkafka_bench(
                "produce",
                server.bootstrap,
                topic,
                partitions=PARTITIONS,
                records=records,
                size=size,
                settings=PRODUCE_SMALL,
            )
        return _more(f"librdkafka consume from the start, {what}", *_in_turns(pair, rounds, work), 1.0)


def _rate(server: Server, mode: str, topic: str, records: int, size: int, client: Client) -> float:
    with server.cpu_counted():
        done = rdkafka_bench(
            mode, server.bootstrap, topic, partitions=PARTITIONS, records=records, size=size, settings=client
        )
    return records / float(done["seconds"])


def _java_row(pair: Pair, scale: Scale) -> Row:
    def work(server: Server) -> float:
        with _topic(server, "perf", partitions=JAVA_PARTITIONS) as topic, server.cpu_counted():
            return _producer_perf(server.bootstrap, topic, scale.java)

    what = f"Java producer-perf, 100 B, {JAVA_PARTITIONS} partitions, acks=1"
    return _more(what, *_in_turns(pair, scale.rounds, work), 1.5)


def _producer_perf(bootstrap: str, topic: str, records: int) -> float:
    """Records per second, as the tool itself counts them."""
    arguments = ["--topic", topic, "--num-records", str(records), "--record-size", "100", "--throughput", "-1"]
    arguments += ["--producer-props", f"bootstrap.servers={bootstrap}", "acks=1"]
    command = java_command(home.KAFKA_KRAFT, _PERF, arguments, _PERF_JVM)
    done = subprocess.run(command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False)
    result = _PERF_RESULT.search(done.stdout)
    if done.returncode != 0 or result is None:
        raise PeerFailedError(f"{_PERF} ended with status {done.returncode}\n{done.stdout}\n{done.stderr}")
    return float(result["rate"])


def _sync_rows(pair: Pair, scale: Scale) -> list[Row]:
    """One record, its acknowledgement, the next; the p50 and p99 of each turn."""
    p99: dict[str, list[float]] = {pair.ours.bootstrap: [], pair.peer.bootstrap: []}

    def work(server: Server) -> float:
        with _topic(server, "sync") as topic, server.cpu_counted():
            done = rdkafka_bench(
                "sync",
                server.bootstrap,
                topic,
                partitions=PARTITIONS,
                records=scale.sync,
                size=100,
                settings=PRODUCE_SYNC,
            )
        p99[server.bootstrap].append(float(done["p99_us"]) / 1000)
        return float(done["p50_us"]) / 1000

    p50 = _in_turns(pair, scale.rounds, work)
    what = "synchronous produce, 100 B, acks=all"
    return [
        _less(f"{what}, p50", *p50, 0.9, _ms),
        _less(f"{what}, p99", p99[pair.ours.bootstrap], p99[pair.peer.bootstrap], 0.5, _ms),
    ]


def _footprint_rows(pair: Pair) -> list[Row]:
    """Over all measured runs and after the last of them."""
    memory = [server.resident_bytes() / 1e6 for server in pair]
    return [
        _less("CPU of the broker over all the runs", [pair.ours.cpu_s], [pair.peer.cpu_s], 0.3, lambda v: f"{v:.1f} s"),
        _less("resident memory after the runs", memory[:1], memory[1:], 0.15, lambda v: f"{v:.0f} MB"),
    ]


def _ms(value: float) -> str:
    return f"{value:.2f} ms"


def _more(what: str, ours: list[float], peer: list[float], bar: float) -> Row:
    ratio = statistics.median(ours) / statistics.median(peer)
    return Row(what, _told(ours, _k_per_s), _told(peer, _k_per_s), ratio, bar)


def _less(what: str, ours: list[float], peer: list[float], bar: float, text: Callable[[float], str]) -> Row:
    ratio = statistics.median(ours) / statistics.median(peer)
    return Row(what, _told(ours, text), _told(peer, text), ratio, bar, at_most=True)


def _k_per_s(value: float) -> str:
    return f"{value / 1000:.0f} k/s"


def _told(values: list[float], text: Callable[[float], str]) -> str:
    """The median, and how far the turns lie apart."""
    middle = text(statistics.median(values))
    return middle if len(values) == 1 else f"{middle} ({text(min(values))} to {text(max(values))})"
