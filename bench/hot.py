"""The hot path beside Apache Kafka 4.1.0 and beside a bare server: prebuilt frames from a client that costs nothing.

Eight plain connections from one process, each to a partition of its own; the three take turns. The floor is what one
process in Python reaches over bare sockets (bench/hot_floor.py), so `of floor` is how much of that a broker keeps.
BENCH_HOT=fetch measures only the rows with this text. With BENCH_BEFORE, the directory of another checkout, the peer
is that one in place of Kafka, as in bench/change.py; BENCH_OURS=kafka puts a second Kafka in our place.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench import broker_servers, broker_start, hot_frames
from bench.broker_servers import Before, Kafka, Server, Tidelog
from bench.hot_client import Job
from bench.hot_servers import Floor, Measured, filled, measure, produce_once
from bench.log import scratch
from bench.table import Row
from bench.turns import SAME, told

TOPIC = "hot"
MB = 1 << 20
_CPU_BAR_US = 35


class Case(NamedTuple):
    """One row. A bar of None: the figure is told and not judged."""

    what: str
    job: Job
    bar: float | None
    cpu_bar_us: float | None = None


class Sides(NamedTuple):
    """Three servers, or what is known of each."""

    ours: Server
    peer: Server
    floor: Floor


@dataclass(frozen=True)
class Scale:
    """How often and how long. A produce ends earlier when it has written `most_bytes`."""

    rounds: int = 5
    seconds: float = 3.0
    warm_s: float = 1.0
    most_bytes: int = 1 << 30
    first_s: float = 12.0
    """Of each kind before anything is measured, in as many turns as it takes: the JVM compiles what is hot. After one
    turn of a second, Kafka was seen to take half of the 0.5 MB batches that it took later."""


FULL = Scale()
QUICK = Scale(rounds=1, seconds=0.5, warm_s=0.2, most_bytes=256 << 20, first_s=0.5)


def cases(scale: Scale) -> list[Case]:
    produce, fetch = _job(scale, 5), _job(scale, 1)
    small = replace(produce, record_bytes=100)
    medium = replace(small, batch_bytes=16 * 1024)
    large = replace(small, batch_bytes=MB // 2)
    ten_kb = replace(fetch, record_bytes=100, batch_bytes=10_000, fetched=1, positions=500)
    one_mb = replace(fetch, record_bytes=100, batch_bytes=16 * 1024, fetched=64, positions=16)
    return [
        Case("produce, 1 record of 100 B", _bounded(small, scale), None),
        Case("produce, 16 kB batches of 100 B records", _bounded(medium, scale), None),
        Case("produce, 0.5 MB batches of 100 B records", _bounded(large, scale), 1.0),
        Case("produce, 0.5 MB batches of 1 kB records", _bounded(replace(large, record_bytes=1000), scale), 1.0),
        Case("fetch, 10 kB answers of one batch", ten_kb, 1.0, _CPU_BAR_US),
        Case("fetch, 1 MB answers of 64 batches", one_mb, 0.9),
    ]


def _job(scale: Scale, in_flight: int) -> Job:
    now_ms = int(time.time() * 1000)
    return Job(0, TOPIC, now_ms, 0, None, in_flight=in_flight, warm_s=scale.warm_s, seconds=scale.seconds)


def _bounded(job: Job, scale: Scale) -> Job:
    return replace(job, most=scale.most_bytes // len(job.batch.data) // job.connections)


def settings() -> dict[str, str]:
    """What was run, for the reader of the table."""
    some = cases(FULL)
    produce, fetch = some[0].job, some[-1].job
    return broker_servers.settings() | {
        "peer": "the checkout of BENCH_BEFORE" if "BENCH_BEFORE" in os.environ else Kafka.name,
        "client": f"one process, {produce.connections} connections, each to its own partition; all frames prebuilt",
        "produce": f"v{hot_frames.PRODUCE_VERSION}, acks=1, not idempotent, {produce.in_flight} requests in flight on "
        "each connection, a new topic for each turn, where all that was acknowledged must be at the end",
        "fetch": f"v{hot_frames.FETCH_VERSION}, max_wait 0, no session, {fetch.in_flight} request in flight on each "
        "connection, from the page cache; one answer to each frame is compared with what was written",
        "floor": "bench/hot_floor.py: one process in Python; recv, CRC and writev, or sendmsg of a mapped file",
        "no bar": "4.7 x and 2.4 x were measured for 1 x 100 B and 16 kB before; they are told and not judged",
        "memory": "as much as a produce writes is filled and freed just before it (bench/hot_memory.py says why)",
        "CPU": "of the server's process, user and system; client: the share of one core that its process took",
        "amounts of a full run": str(FULL),
    }


def rows(scale: Scale = FULL) -> list[Row]:
    with scratch() as name, ExitStack() as stack:
        sides = _sides(Path(name))
        for server in (sides.ours, sides.peer):
            server.prepare()
            stack.callback(server.stop)
            broker_start.start(server)
        return [row for case in _wanted(scale) for row in _case_rows(sides, case, scale)]


def _wanted(scale: Scale) -> list[Case]:
    wanted = [case for case in cases(scale) if os.environ.get("BENCH_HOT", "") in case.what]
    return [case._replace(bar=SAME, cpu_bar_us=None) for case in wanted] if "BENCH_BEFORE" in os.environ else wanted


def _sides(directory: Path) -> Sides:
    ours = Kafka if os.environ.get("BENCH_OURS") == "kafka" else Tidelog
    peer = Before if "BENCH_BEFORE" in os.environ else Kafka
    return Sides(ours(directory / "ours"), peer(directory / "peer"), Floor(directory / "floor"))


# The measurements, in turns


def _case_rows(sides: Sides, case: Case, scale: Scale) -> list[Row]:
    with ExitStack() as stack:
        if case.job.fetched:
            for server in sides:
                stack.enter_context(filled(server, case.job))
        work = measure if case.job.fetched else produce_once
        for server in sides[:2]:
            _warm(partial(work, server, case.job), scale.first_s)
        turns = [[work(server, case.job) for server in sides] for _ in range(scale.rounds)]
    return _rows_of(case, *map(list, zip(*turns, strict=True)))


def _warm(turn: Callable[[], Measured], first_s: float) -> None:
    while first_s > 0:
        first_s -= turn().result.seconds


def _rows_of(case: Case, ours: list[Measured], peer: list[Measured], floor: list[Measured]) -> list[Row]:
    sides = (ours, peer, floor)
    rate = [_median(side, lambda turn: turn.rate) for side in sides]
    columns = {
        "floor": _rates(floor),
        "of floor": f"{rate[0] / rate[2]:.2f} x",
        "CPU us per request: tidelog, peer, floor": _three(sides, lambda turn: turn.cpu_us_per_request, ".0f"),
        "CPU s per GB": _three(sides, lambda turn: turn.cpu_s_per_gb, ".2f"),
        "cores of the server": _three(sides, lambda turn: turn.server_share, ".2f"),
        "cores of the client": _three(sides, lambda turn: turn.client_share, ".2f"),
    }
    rows = [Row(case.what, _rates(ours), _rates(peer), rate[0] / rate[1], case.bar, columns=columns)]
    if case.cpu_bar_us is not None:
        rows.append(_cpu_row(case, ours, peer))
    return rows


def _cpu_row(case: Case, ours: list[Measured], peer: list[Measured]) -> Row:
    """Our own figure, and not a ratio, is what its bar is about."""

    def text(turns: list[Measured]) -> str:
        return told([turn.cpu_us_per_request for turn in turns], lambda value: f"{value:.0f} us")

    what = f"{case.what}, CPU of the broker per request"
    figure = _median(ours, lambda turn: turn.cpu_us_per_request)
    return Row(what, text(ours), text(peer), figure, case.cpu_bar_us, at_most=True, unit="us")


def _rates(turns: list[Measured]) -> str:
    bytes_per_s = _median(turns, lambda turn: turn.bytes_per_s)
    return f"{told([turn.rate for turn in turns], _k_per_s)}, {bytes_per_s / 1e6:.0f} MB/s"


def _three(sides: tuple[list[Measured], ...], figure: Callable[[Measured], float], form: str) -> str:
    return ", ".join(format(_median(side, figure), form) for side in sides)


def _median(turns: list[Measured], figure: Callable[[Measured], float]) -> float:
    return statistics.median(map(figure, turns))


def _k_per_s(value: float) -> str:
    return f"{value / 1000:.1f} k/s" if value < 100_000 else f"{value / 1000:.0f} k/s"
