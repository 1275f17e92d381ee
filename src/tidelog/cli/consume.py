"""`tidelog consume`: a topic to standard output."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import click

from tidelog.cli.cluster import bootstrap_option, on_cluster
from tidelog.cli.since import parse_since
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.client.addresses import Address
    from tidelog.client.cluster import Cluster
    from tidelog.client.fetch import Fetched
    from tidelog.records.kernel import Record

    Show = Callable[[TopicPartition, Record], bytes]

_ISOLATION = ("read_uncommitted", "read_committed")


class Start(NamedTuple):
    """Where to begin: a time (or EARLIEST, LATEST), an offset, or so many before the end."""

    time_ms: int | None = None
    offset: int | None = None
    last: int | None = None


def _parse_offset(ctx: click.Context, parameter: click.Parameter, text: str | None) -> str | int | None:
    if text is None or text in ("earliest", "latest"):
        return text
    try:
        return int(text)
    except ValueError as failure:
        raise click.BadParameter(f"{text!r} is neither a number nor earliest nor latest") from failure


@click.command("consume")
@click.argument("topic")
@click.option(
    "--partition", "partitions", multiple=True, type=click.IntRange(min=0), help="Only this; may be repeated."
)
@click.option("--from-beginning", is_flag=True, help="From the start of the log; the default.")
@click.option("--offset", callback=_parse_offset, metavar="N|earliest|latest|-N", help="-N: the last N of a partition.")
@click.option("--since", metavar="TIME", help="From this time on: 2026-01-31T12:00, 1767182400000 (ms), or 10m ago.")
@click.option("--max-messages", type=click.IntRange(min=1), help="End after so many.")
@click.option("--follow/--no-follow", help="Go on with what comes; else end with what is there.")
@click.option("--keys", is_flag=True, help="Show keys, with a tab after them.")
@click.option("--headers", is_flag=True, help="Show headers, with a tab after them.")
@click.option("--offsets", is_flag=True, help="Show partition:offset, with a tab after it.")
@click.option("--json", "as_json", is_flag=True, help="One object per line; what is not UTF-8 as key_base64 and so on.")
@click.option(
    "--format", "template", metavar="TEXT", help="Like '{partition}:{offset} {timestamp} {key} {value} {headers}'."
)
@click.option("--isolation", type=click.Choice(_ISOLATION), default="read_uncommitted", show_default=True)
@bootstrap_option
def command(
    topic: str,
    partitions: tuple[int, ...],
    from_beginning: bool,
    offset: str | int | None,
    since: str | None,
    max_messages: int | None,
    follow: bool,
    keys: bool,
    headers: bool,
    offsets: bool,
    as_json: bool,
    template: str | None,
    isolation: str,
    bootstrap: list[Address],
) -> None:
    """Print the records of a topic: what is there, or with --follow also what comes.

    A null key or value is shown as nothing; --json tells the two apart.
    """
    from tidelog.cli.records import as_json_line, as_text, from_template

    if from_beginning + (offset is not None) + (since is not None) > 1:
        raise click.UsageError("pass one of --from-beginning, --offset and --since")
    if as_json + (template is not None) + (keys or headers or offsets) > 1:
        raise click.UsageError("pass one of --json, --format, and --keys with --headers and --offsets")
    show: Show
    if as_json:
        show = as_json_line
    elif template is not None:
        show = from_template(template)
    else:
        show = as_text(keys=keys, headers=headers, offsets=offsets)
    start = _start(offset, since)

    async def work(cluster: Cluster) -> None:
        reading = _Reading(cluster, show, max_messages, isolation)
        await reading.run(topic, partitions, start, follow)

    on_cluster(bootstrap, work)


def _start(offset: str | int | None, since: str | None) -> Start:
    from tidelog.client.offsets import EARLIEST, LATEST

    if since is not None:
        from tidelog.host.clock import SystemClock

        return Start(time_ms=parse_since(since, SystemClock().wall_ms()))
    if isinstance(offset, int):
        return Start(last=-offset) if offset < 0 else Start(offset=offset)
    return Start(time_ms=LATEST if offset == "latest" else EARLIEST)


class _Reading:
    """One run of the command."""

    def __init__(self, cluster: Cluster, show: Show, max_messages: int | None, isolation: str) -> None:
        from tidelog.client.offsets import Isolation

        self._cluster = cluster
        self._show = show
        self._left = max_messages
        self._isolation = Isolation[isolation.upper()]
        self._ends: dict[TopicPartition, int] = {}
        """Where to stop; empty if it goes on for ever."""

    async def run(self, topic: str, numbers: tuple[int, ...], start: Start, follow: bool) -> None:
        from tidelog.client.fetch import Fetcher, FetchSettings
        from tidelog.client.offsets import EARLIEST

        positions = await self._positions(topic, numbers, start, follow)
        if not positions:
            return
        settings = FetchSettings(isolation=self._isolation, out_of_range=EARLIEST)
        fetcher = Fetcher(self._cluster, positions, settings)
        open_partitions = dict.fromkeys(positions)
        stream = sys.stdout.buffer
        try:
            while open_partitions and self._left != 0:
                for fetched in await fetcher.next():
                    stream.write(b"".join(self._lines(fetched)))
                    if not follow and fetched.next_offset >= self._ends[fetched.partition]:
                        open_partitions.pop(fetched.partition, None)
                        fetcher.drop([fetched.partition])
                stream.flush()
        finally:
            fetcher.close()

    def _lines(self, fetched: Fetched) -> Iterator[bytes]:
        from tidelog.client.committed import visible_records
        from tidelog.client.offsets import Isolation

        aborted = fetched.aborted if self._isolation is Isolation.READ_COMMITTED else ()
        end = self._ends.get(fetched.partition)
        for record in visible_records(fetched.records, aborted, fetched.fetch_offset):
            if self._left == 0 or (end is not None and record.offset >= end):
                return
            yield self._show(fetched.partition, record)
            if self._left is not None:
                self._left -= 1

    async def _positions(
        self, topic: str, numbers: tuple[int, ...], start: Start, follow: bool
    ) -> dict[TopicPartition, int]:
        """Where to begin; without those that have nothing to show, unless more is waited for."""
        from tidelog.client.offsets import list_offsets, start_and_end

        known = (await self._cluster.topic(topic)).partitions
        missing = [number for number in numbers if number not in known]
        if missing:
            raise click.ClickException(f"topic {topic} has no partition {missing[0]}; it has 0 to {len(known) - 1}")
        partitions = [TopicPartition(topic, number) for number in (numbers or known)]
        bounds = await start_and_end(self._cluster, partitions, isolation=self._isolation)
        if start.time_ms is not None:
            times = dict.fromkeys(partitions, start.time_ms)
            found = await list_offsets(self._cluster, times, isolation=self._isolation)
            positions = {
                partition: found[partition].offset if found[partition].offset >= 0 else bounds[partition][1]
                for partition in partitions
            }
        elif start.last is not None:
            positions = {partition: max(end - start.last, first) for partition, (first, end) in bounds.items()}
        else:
            positions = _from_offset(start.offset or 0, bounds)
        if follow:
            return positions
        self._ends = {partition: end for partition, (_, end) in bounds.items()}
        return {partition: position for partition, position in positions.items() if position < self._ends[partition]}


def _from_offset(offset: int, bounds: dict[TopicPartition, tuple[int, int]]) -> dict[TopicPartition, int]:
    """What is before the log start is gone, which no one minds; an offset that is nowhere yet is a mistake."""
    if all(end < offset for _, end in bounds.values()):
        there = ", ".join(f"{partition} {start} to {end}" for partition, (start, end) in bounds.items())
        raise click.ClickException(f"no partition has got to offset {offset} yet; there is: {there}")
    return {partition: min(max(offset, start), end) for partition, (start, end) in bounds.items()}
