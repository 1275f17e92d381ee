"""A million orders through a cluster and a Spark pipeline, with a leader killed half-way, and the proof: `make demo`.

Three brokers, orders out of order and late and malformed, the pipeline of `tidelog pipeline init`, minutes by
event-time watermark in a Parquet table and in a topic. At the end every acknowledged order was counted once, or it
exits with 1.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from examples.demo.chart import draw
from examples.demo.cluster import BrokerProcesses, broker_processes
from examples.demo.ledger import Found, Ledger, Line, prove
from examples.demo.load import Load
from examples.demo.orders import PARTITIONS, Plan
from examples.demo.results import minute_of, record_count, table_rows, topic_values
from tidelog.client.addresses import parse_bootstrap
from tidelog.client.admin import Admin
from tidelog.client.cluster import Cluster
from tidelog.errors import TidelogError
from tidelog.pipeline.display import WIDTH_WITHOUT_TERMINAL, run_table, time_text
from tidelog.pipeline.needs import check_needs
from tidelog.pipeline.project import Project, create, read_project
from tidelog.pipeline.run import Run
from tidelog.pipeline.running import run_pipeline
from tidelog.pipeline.starting import spark_connect
from tidelog.pipeline.templates import TOPICS

RAW, DEAD_LETTERS, MINUTES = TOPICS
NAME = "orders"
FLOW = "minutes"
GROUP = f"{NAME}-minutes"
_PER_MICRO_BATCH = 100_000
_LINE_S = 5.0
_SHOWN_MINUTES = 12


class Demo:
    """What has happened so far, shown while it happens."""

    def __init__(self, plan: Plan, console: Console) -> None:
        self.plan = plan
        self.dropped = 0
        self.runs = 0
        self.has_watermark = False
        self.events: list[str] = []
        self._console = console
        self._started = time.monotonic()
        self._line_due_s = 0.0
        self.load: Load | None = None
        self.live: Live | None = None

    def tell(self, text: str) -> None:
        self.events.append(f"{time.monotonic() - self._started:6.1f} s  {text}")
        if self.live is None or not self._console.is_terminal:
            self._console.print(Text(self.events[-1]))

    def see(self, run: Run) -> None:
        """Called at every event of a run."""
        flow = run.flows.get(FLOW)
        if flow is not None and flow.watermark_ms is not None:
            self.has_watermark = True
        if self.live is not None and self._console.is_terminal:
            self.live.update(Group(*map(Text, self.events), self._load_line(), run_table(run)))
        elif time.monotonic() - self._started >= self._line_due_s:
            self._line_due_s = time.monotonic() - self._started + _LINE_S
            watermark = time_text(None if flow is None else flow.watermark_ms)
            self.tell(f"run {self.runs + 1}: {self._load_line()}, watermark {watermark}")

    def _load_line(self) -> Text:
        assert self.load is not None
        sample = self.load.samples[-1] if self.load.samples else None
        if sample is None:
            return Text("nothing written yet")
        lag = max(0, sample.written - sample.processed)
        return Text(f"written {sample.written:,} of {self.plan.orders:,}, processed {sample.processed:,}, lag {lag:,}")

    def run(self, project: Project, session: Any, master: str) -> None:
        done = run_pipeline(project, session, master, on_change=self.see)
        self.dropped += done.flow(FLOW).dropped
        self.runs += 1


def play(demo: Demo, brokers: BrokerProcesses, project: Project, master: str, rate: int) -> None:
    """The pipeline runs again and again beside the load, then once for the rest, and once to close the last minute."""

    def kill(leader: int) -> None:
        demo.tell(f"kill -9 of broker {leader} (process {brokers.kill(leader)}), a leader")

    load = demo.load = Load(
        brokers.bootstrap, RAW, GROUP, demo.plan, rate=rate, kill=kill, has_watermark=lambda: demo.has_watermark
    )
    with spark_connect(project, master) as session:
        demo.tell(f"Spark is up on {master}; the load begins")
        load.start()
        try:
            is_rest = False
            while not is_rest:
                is_rest = load.is_loaded
                demo.run(project, session, master)
            demo.tell(f"all orders are processed, in {demo.runs} runs; one of the next day closes the last minute")
            load.close_minutes()
            demo.run(project, session, master)
        finally:
            load.end()


async def create_topics(bootstrap: str) -> None:
    async with await Cluster.open(parse_bootstrap(bootstrap), random=random.SystemRandom()) as cluster:
        for topic in TOPICS:
            count = PARTITIONS if topic == RAW else 2
            configs = {"min.insync.replicas": "2"}
            await Admin(cluster).create_topic(topic, partitions=count, replication_factor=3, configs=configs)


async def find(bootstrap: str, project: Project, dropped: int) -> Found:
    async with await Cluster.open(parse_bootstrap(bootstrap), random=random.SystemRandom()) as cluster:
        return Found(
            records=await record_count(cluster, RAW),
            table=table_rows(project.warehouse / FLOW),
            topic=[minute_of(value) for value in await topic_values(cluster, MINUTES)],
            dead_letters=await topic_values(cluster, DEAD_LETTERS),
            dropped=dropped,
        )


def show(console: Console, found: Found, lines: list[Line]) -> None:
    rows = Table(title="orders by the minute", title_justify="left", box=SIMPLE_HEAD)
    for name in ("minute", "orders", "sum"):
        rows.add_column(name, justify="left" if name == "minute" else "right")
    for minute, count, cents in found.table[:_SHOWN_MINUTES]:
        rows.add_row(time_text(minute), f"{count:,}", f"{cents / 100:,.2f}")
    if more := len(found.table) - _SHOWN_MINUTES:
        rows.add_row(f"and {more} more" if more > 0 else "", "", "")
    proof = Table(title="the proof", title_justify="left", box=SIMPLE_HEAD)
    for name in ("what", "expected", "found", ""):
        proof.add_column(name, justify="left" if name == "what" else "right")
    for line in lines:
        verdict = Text("ok", "green") if line.is_right else Text("WRONG", "red")
        proof.add_row(line.what, f"{line.expected:,}", f"{line.found:,}", verdict)
    console.print(rows)
    console.print(proof)


def conclude(console: Console, ledger: Ledger, found: Found) -> int:
    lines = prove(ledger, found)
    show(console, found, lines)
    wrong = [line for line in lines if not line.is_right]
    again = len(found.topic) - len(set(found.topic)), len(found.dead_letters) - len(set(found.dead_letters))
    console.print(
        f"{ledger.records:,} acknowledged = {ledger.orders:,} counted + {len(ledger.malformed):,} malformed + "
        f"{ledger.late:,} too late + {ledger.closing:,} that closed the last minute; "
        f"written again to topics (at least once): {again[0]} minutes, {again[1]} dead letters"
    )
    if wrong:
        console.print(Text(f"{len(wrong)} figures are off", "red"))
        return 1
    console.print(Text("every acknowledged order was counted once", "green"))
    return 0


def demo(arguments: argparse.Namespace, console: Console, directory: Path) -> int:
    told = Demo(Plan(arguments.orders, arguments.seed), console)
    with broker_processes(directory) as brokers:
        told.tell(f"three brokers are up: {brokers.bootstrap}")
        asyncio.run(create_topics(brokers.bootstrap))
        spec = create(directory, NAME, brokers.bootstrap, _PER_MICRO_BATCH)[0]
        project = read_project(spec)
        # All runs share one Spark here, so its catalog need not outlive it.
        project.configuration["spark.sql.catalogImplementation"] = "in-memory"
        with Live(console=console, refresh_per_second=4) as told.live:
            play(told, brokers, project, arguments.master, arguments.rate)
        assert told.load is not None
        found = asyncio.run(find(brokers.bootstrap, project, told.dropped))
        status = conclude(console, told.load.ledger, found)
        title = f"{arguments.orders:,} orders, three brokers, one killed, Spark on {arguments.master}"
        draw(told.load.samples, told.load.killed_s, arguments.png, title)
        console.print(f"throughput and lag over time: {arguments.png}")
    return status


def main(given: list[str] | None = None, run: Callable[..., int] = demo) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=8)
    parser.add_argument("--rate", type=int, default=25_000, help="orders a second, at most")
    parser.add_argument("--master", default="local[*]", help="where Spark runs")
    parser.add_argument("--png", type=Path, default=Path("orders_demo.png"))
    arguments = parser.parse_args(given)
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH_WITHOUT_TERMINAL
    try:
        check_needs()
        with tempfile.TemporaryDirectory(prefix="tidelog-demo-") as directory:
            return run(arguments, console, Path(directory))
    except TidelogError as failure:
        Console(stderr=True).print(Text(str(failure)))
        return 1


if __name__ == "__main__":
    sys.exit(main())
