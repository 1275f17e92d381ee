"""The broker beside Apache Kafka 4.1.0: the same clients, the same settings, in turns, in one run.

Both brokers run at once on the same disk and only one is loaded. Where ours stands in the table, BENCH_OURS=kafka
puts a second Kafka there: its ratios are 1 but for the noise of this machine.
"""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench import broker_servers, broker_start
from bench.broker_servers import Kafka, Server, Tidelog
from bench.kafka_recovery import KAFKA_JVM
from bench.log import scratch
from bench.table import Row
from bench.turns import (
    FIRST_RECORDS,
    PRODUCE,
    PRODUCE_SYNC,
    Client,
    Load,
    Pair,
    client_text,
    in_mb,
    in_s,
    in_turns,
    less,
    more,
    produce_row,
    sync_rows,
)
from peers import home
from peers.process import PeerFailedError, java_command

JAVA_PARTITIONS = 100

PRODUCE_LARGE: Client = {"acks": "1", "delivery.report.only.error": "true"}
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


@dataclass(frozen=True)
class Scale:
    """How often and how much; `warm` is what each broker takes before anything is measured."""

    rounds: int = 5
    warm: int = 2_000_000
    small: int = 2_000_000
    large: int = 500_000
    java: int = 2_000_000
    sync: int = 5_000


FULL = Scale()
QUICK = Scale(rounds=1, warm=100_000, small=100_000, large=50_000, java=100_000, sync=500)


def settings() -> dict[str, str]:
    """What was run, for the reader of the table."""
    return broker_servers.settings() | {
        "produce 100 B (librdkafka)": client_text(PRODUCE),
        "produce 1 kB (librdkafka)": client_text(PRODUCE_LARGE),
        "synchronous produce (librdkafka)": client_text(PRODUCE_SYNC),
        "consume (librdkafka)": client_text(CONSUME),
        "producer-perf": f"{_PERF} {home.KAFKA_KRAFT}, java {' '.join(_PERF_JVM)}, --throughput -1, acks=1",
        "each topic": f"new, about {FIRST_RECORDS} unmeasured records per partition first, deleted after its runs",
        "amounts of a full run": str(FULL),
    }


def rows(scale: Scale = FULL) -> list[Row]:
    with scratch() as directory:
        return [*_start_rows(Path(directory) / "start", scale), *_load_rows(Path(directory) / "load", scale)]


def _pair(directory: Path) -> Pair[Server]:
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
            warm(server, scale.warm)
        small, large = Load(scale.small, 100, PRODUCE), Load(scale.large, 1000, PRODUCE_LARGE)
        rows = [
            produce_row(pair, scale.rounds, "100 B, 6 partitions, acks=all", small, 1.3),
            produce_row(pair, scale.rounds, "1 kB, 6 partitions, acks=1", large, 1.5),
            _java_row(pair, scale),
            consume_row(pair, scale.rounds, "1 kB", scale.large, 1000),
            consume_row(pair, scale.rounds, "100 B", scale.small, 100),
            *sync_rows(pair, scale.rounds, "100 B, acks=all", Load(scale.sync, 100, PRODUCE_SYNC), (0.9, 0.5)),
        ]
        return [*rows, *_footprint_rows(pair)]


def warm(server: Server, records: int) -> None:
    """Produced and read once."""
    load = Load(records, 100, PRODUCE)
    with load.new_topic(server, "warm") as topic:
        load.run("produce", server, topic)
        Load(records, 100, CONSUME).run("consume", server, topic)


# The measurements, each in turns


def _start_rows(directory: Path, scale: Scale) -> list[Row]:
    """Each start in a directory of its own; the first of each is not counted: it reads the programs from the disk."""
    turns = []
    for turn in range(1 + scale.rounds):
        pair = _pair(directory / str(turn))
        turns.append([_start_once(server) for server in pair])
    ours, peer = map(list, zip(*turns[1:], strict=True))
    return [less("start to first acknowledged record", ours, peer, 0.3, in_s)]


def _start_once(server: Server) -> float:
    server.prepare()
    try:
        return broker_start.start(server)
    finally:
        server.stop()


def consume_row(pair: Pair[Server], rounds: int, what: str, records: int, size: int, bar: float = 1.0) -> Row:
    written, read = Load(records, size, PRODUCE), Load(records, size, CONSUME)
    with ExitStack() as stack:
        for server in pair:
            topic = stack.enter_context(written.new_topic(server, "consume"))
            written.run("produce", server, topic)
        turns = in_turns(pair, rounds, lambda server: read.rate("consume", server, "consume"))
        return more(f"librdkafka consume from the start, {what}", *turns, bar)


def _java_row(pair: Pair[Server], scale: Scale) -> Row:
    filled = Load(scale.java, 100, {}, JAVA_PARTITIONS)

    def work(server: Server) -> float:
        with filled.new_topic(server, "perf") as topic, server.cpu_counted():
            return _producer_perf(server.bootstrap, topic, scale.java)

    what = f"Java producer-perf, 100 B, {JAVA_PARTITIONS} partitions, acks=1"
    return more(what, *in_turns(pair, scale.rounds, work), 1.5)


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


def _footprint_rows(pair: Pair[Server]) -> list[Row]:
    """Over all measured runs and after the last of them."""
    memory = [server.resident_bytes() / 1e6 for server in pair]
    return [
        less("CPU of the broker over all the runs", [pair.ours.cpu_s], [pair.peer.cpu_s], 0.3, lambda v: f"{v:.1f} s"),
        less("resident memory after the runs", memory[:1], memory[1:], 0.15, in_mb),
    ]
