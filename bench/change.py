"""What a change costs: this checkout beside an earlier one, in turns, in one run.

BENCH_BEFORE names the directory of the other checkout, whose modules are compiled (`setup.py build_ext --inplace`).
Both run in the same environment, so they need the same packages. Run it as `python -m bench change`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench import broker, broker_start, cluster_servers
from bench.broker import CONSUME, PRODUCE_LARGE
from bench.broker_servers import Before, Server, Tidelog
from bench.cluster import COPIES, PARTITIONS
from bench.cluster_servers import Cluster, TidelogMember
from bench.log import scratch
from bench.table import Row
from bench.turns import PRODUCE, PRODUCE_SYNC, SAME, Load, Pair, client_text, less, produce_row, sync_rows

CHECKED = 0.95
"""What a leader checks in each batch may cost 5 %."""
LATER = 1.03


@dataclass(frozen=True)
class Scale:
    rounds: int = 9
    small: int = 2_000_000
    large: int = 500_000
    sync: int = 5_000


class _BeforeMember(Before, TidelogMember):
    pass


def settings() -> dict[str, str]:
    return {
        "produce 100 B (librdkafka)": client_text(PRODUCE),
        "produce 1 kB (librdkafka)": client_text(PRODUCE_LARGE),
        "synchronous produce (librdkafka)": client_text(PRODUCE_SYNC),
        "consume (librdkafka)": client_text(CONSUME),
        "peer": "the checkout of BENCH_BEFORE",
        "amounts": str(FULL),
    }


FULL = Scale()


def rows(scale: Scale = FULL) -> list[Row]:
    with scratch() as directory:
        return [*_alone(Path(directory) / "alone", scale), *_replicated(Path(directory) / "cluster", scale)]


def _alone(directory: Path, scale: Scale) -> list[Row]:
    pair: Pair[Server] = Pair(Tidelog(directory / "now"), Before(directory / "before"))
    with ExitStack() as stack:
        for server in pair:
            server.prepare()
            stack.callback(server.stop)
            broker_start.start(server)
            broker.warm(server, scale.small)
        small, large = Load(scale.small, 100, PRODUCE), Load(scale.large, 1000, PRODUCE_LARGE)
        sync = Load(scale.sync, 100, PRODUCE_SYNC)
        one = "6 partitions, acks"
        return [
            *_with_cpu(pair, lambda: [produce_row(pair, scale.rounds, f"100 B, {one}=all", small, CHECKED)]),
            *_with_cpu(pair, lambda: [produce_row(pair, scale.rounds, f"1 kB, {one}=1", large, CHECKED)]),
            *_with_cpu(pair, lambda: [broker.consume_row(pair, scale.rounds, "100 B", scale.small, 100, SAME)]),
            *_with_cpu(pair, lambda: [broker.consume_row(pair, scale.rounds, "1 kB", scale.large, 1000, SAME)]),
            *_with_cpu(pair, lambda: sync_rows(pair, scale.rounds, "100 B, acks=all", sync, (LATER, LATER))),
        ]


def _with_cpu(pair: Pair[Server], measure: Callable[[], list[Row]]) -> list[Row]:
    """And what of the processor both took for it: on a busy machine that tells more than the time."""
    before = [server.cpu_s for server in pair]
    rows = measure()
    ours, peer = (server.cpu_s - start for server, start in zip(pair, before, strict=True))
    return [*rows, less(f"CPU for: {rows[0].what}", [ours], [peer], LATER, lambda value: f"{value:.2f} s")]


def _replicated(directory: Path, scale: Scale) -> list[Row]:
    ours = cluster_servers.embedded(directory / "now")
    before = cluster_servers.embedded(directory / "before", _BeforeMember)
    with ours, before:
        pair: Pair[Cluster] = Pair(ours, before)
        small = Load(scale.small // 2, 100, PRODUCE, PARTITIONS, COPIES)
        sync = Load(scale.sync // 2, 100, PRODUCE_SYNC, PARTITIONS, COPIES)
        for cluster in pair:
            with small.new_topic(cluster, "warm") as topic:
                small.run("produce", cluster, topic)
        return [
            produce_row(pair, scale.rounds, f"100 B, acks=all, rf={COPIES}", small, CHECKED),
            *sync_rows(pair, scale.rounds, f"100 B, acks=all, rf={COPIES}", sync, (LATER, LATER)),
        ]
