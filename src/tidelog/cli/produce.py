"""`tidelog produce`: standard input into a topic."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import click

from tidelog.cli.commands import INT32
from tidelog.cli.completion import topic_names
from tidelog.cli.on_cluster import bootstrap_option, given_timeout_s, key_values, on_cluster, timeout_option
from tidelog.cli.waiting import Ends

if TYPE_CHECKING:
    from tidelog.cli.lines import Input, JsonLines, TextLines
    from tidelog.client.addresses import Address
    from tidelog.client.batching import Batcher
    from tidelog.client.cluster import Cluster
    from tidelog.client.produce import Produced, Producer
    from tidelog.records.header import Codec

_ACKS = {"0": 0, "1": 1, "all": -1, "-1": -1}
_LONGEST_COMPRESSED = 64 * 1024 * 1024
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@click.command("produce")
@click.argument("topic", shell_complete=topic_names)
@click.option("--key-separator", metavar="TEXT", help=r"What stands before it in a line is the key; \t is a tab.")
@click.option("--null-marker", metavar="TEXT", help="A key or value that is exactly this is null.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", callback=key_values, help="On every record.")
@click.option("--partition", type=INT32, help="Where all records go; else by key, or in turn.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Each line is an object with key, value, headers, partition, timestamp; key_base64, value_base64 for bytes.",
)
@click.option("--acks", type=click.Choice(list(_ACKS)), default="all", show_default=True, help="Who must have it.")
@click.option("--compression", type=click.Choice(_CODECS), default="none", show_default=True)
@timeout_option("Give a record up if it is not written after so long. By default 120 s.")
@bootstrap_option
def command(
    topic: str,
    key_separator: str | None,
    null_marker: str | None,
    headers: dict[str, str],
    partition: int | None,
    as_json: bool,
    acks: str,
    compression: str,
    bootstrap: list[Address],
) -> None:
    """Write the lines of standard input to a topic, a record each. Blank lines are left out.

    What went where is told on standard error. Exits with 1 if anything was not written.
    """
    from tidelog.cli.lines import JsonLines, TextLines

    if as_json and (key_separator is not None or null_marker is not None):
        raise click.UsageError("--json says what is key and what is null; leave out --key-separator and --null-marker")
    if key_separator == "":
        raise click.UsageError("the key separator is empty")
    on_all = [(name, value.encode()) for name, value in headers.items()]
    lines: JsonLines | TextLines
    if as_json:
        lines = JsonLines([*on_all], partition)
    else:
        separator = None if key_separator is None else unescape(key_separator).encode()
        lines = TextLines(separator, None if null_marker is None else null_marker.encode(), [*on_all], partition)
    outcome = _Outcome(topic)
    try:
        on_cluster(
            bootstrap, lambda cluster: _produce(cluster, outcome, lines, _ACKS[acks], compression), Ends.BY_ITSELF
        )
    finally:
        outcome.report()


def unescape(text: str) -> str:
    r"""\t, \n and \0 as a shell user types them."""
    return text.replace(r"\t", "\t").replace(r"\n", "\n").replace(r"\0", "\0")


async def _produce(
    cluster: Cluster, outcome: _Outcome, lines: JsonLines | TextLines, acks: int, compression: str
) -> None:
    from tidelog.cli.lines import read_lines
    from tidelog.client.batching import Batcher, BatchingSettings
    from tidelog.client.produce import DEFAULT_DELIVERY_TIMEOUT_MS, Producer
    from tidelog.host.clock import SystemClock
    from tidelog.records.header import Codec

    if lines.partition is None:
        await cluster.led_somewhere(outcome.topic)
    else:
        await cluster.topic(outcome.topic, led=False)
    codec = Codec[compression.upper()]
    longest_bytes = lines.longest(await _longest_record(cluster, outcome.topic, codec))
    timeout_s = given_timeout_s()
    timeout_ms = DEFAULT_DELIVERY_TIMEOUT_MS if timeout_s is None else max(int(timeout_s * 1000), 1)
    producer = Producer(cluster, acks=acks, delivery_timeout_ms=timeout_ms)
    batcher = Batcher(cluster, producer, outcome.topic, BatchingSettings(compression=codec))
    clock = SystemClock()
    number = 0
    outcome.is_reading = True
    try:
        async for some in _until(outcome.failed, read_lines(sys.stdin.buffer, longest_bytes)):
            now_ms = clock.wall_ms()
            for line in some:
                number += 1
                if not line:
                    outcome.blank += 1
                else:
                    await _add(batcher, lines.parse(number, line), now_ms, outcome)
            if outcome.failure is not None:
                break
        else:
            outcome.is_at_end = True
    finally:
        await _end(batcher, producer, outcome)
    if outcome.failure is not None:
        raise outcome.failure


async def _until(over: asyncio.Event, lines: AsyncIterator[list[bytes]]) -> AsyncIterator[list[bytes]]:
    """The lines, until the event is set: whoever waits for the next line hears at once that records are lost."""
    ending = asyncio.create_task(over.wait())
    coming: asyncio.Future[list[bytes]] | None = None
    try:
        while not over.is_set():
            coming = asyncio.ensure_future(anext(lines))  # what anext gives is awaited, but no coroutine
            await asyncio.wait((coming, ending), return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                return
            try:
                some = coming.result()
            except StopAsyncIteration:
                return
            yield some
    finally:
        ending.cancel()
        if coming is not None:
            coming.cancel()


async def _longest_record(cluster: Cluster, topic: str, codec: Codec) -> int:
    """A topic takes no longer one. If records are compressed, only their batch is known to be too long, once it is."""
    from tidelog.client.admin import Admin, Resource, ResourceType
    from tidelog.errors import TidelogError
    from tidelog.records.header import Codec

    if codec is not Codec.NONE:
        return _LONGEST_COMPRESSED
    try:
        entries = await Admin(cluster).describe_configs(Resource(ResourceType.TOPIC, topic), ["max.message.bytes"])
        return next(int(entry.value) for entry in entries if entry.value is not None)
    except (TidelogError, StopIteration, ValueError):
        return _LONGEST_COMPRESSED  # the broker decides


async def _end(batcher: Batcher, producer: Producer, outcome: _Outcome) -> None:
    await batcher.flush()
    producer.close()
    await outcome.all_done()


async def _add(batcher: Batcher, record: Input, now_ms: int, outcome: _Outcome) -> None:
    timestamp = now_ms if record.timestamp is None else record.timestamp
    outcome.expect(await batcher.add(timestamp, record.key, record.value, record.headers, record.partition))


class _Outcome:
    """How many records went where; batches are counted when they are done."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.failure: BaseException | None = None
        self.failed = asyncio.Event()
        self.is_reading = False
        """Whether the input was looked at."""
        self.is_at_end = False
        """Whether all of it was read, and each line became a record or was blank."""
        self.blank = 0
        """Blank lines, which make no records."""
        self._counts: dict[asyncio.Future[Produced], int] = {}
        self._written: dict[int, tuple[int, int, int]] = {}
        """By partition: records, the first offset, the one after the last."""
        self._lost = 0

    def expect(self, batch: asyncio.Future[Produced]) -> None:
        if batch not in self._counts:
            self._counts[batch] = 0
            batch.add_done_callback(self._done)
        self._counts[batch] += 1

    async def all_done(self) -> None:
        """Wait until every batch is counted. A batch that is written or given up tells its futures a moment later."""
        while self._counts:
            await asyncio.wait(list(self._counts))

    def _done(self, batch: asyncio.Future[Produced]) -> None:
        from tidelog.client.sending import PartlyWrittenError

        count = self._counts.pop(batch)
        failure = batch.exception()
        if failure is None:
            self._add(batch.result(), count)
            return
        self.failure = self.failure or failure
        self.failed.set()
        if isinstance(failure, PartlyWrittenError):
            self._add(failure.produced, count - failure.lost_count)
            count = failure.lost_count
        self._lost += count

    def _add(self, produced: Produced, count: int) -> None:
        before, first, end = self._written.get(produced.partition.partition, (0, produced.base_offset, -1))
        self._written[produced.partition.partition] = (
            before + count,
            min(first, produced.base_offset),
            max(end, produced.last_offset + 1),
        )

    def report(self) -> None:
        total = sum(count for count, _, _ in self._written.values())
        if total:
            click.echo(f"{_records(total)} written to {self.topic}:", err=True)
        for partition, (count, first, end) in sorted(self._written.items()):
            where = f", offsets {first} to {end - 1}" if first >= 0 else ""
            click.echo(f"  partition {partition}: {_records(count)}{where}", err=True)
        lost = self._lost + sum(self._counts.values())
        if lost:
            click.echo(f"{_records(lost)} not written, or not known to be", err=True)
        if self.is_reading and not total and not lost:
            why = ": the input had none" if self.is_at_end else ""
            click.echo(f"no records written to {self.topic}{why}", err=True)
        if self.blank:
            click.echo("1 blank line left out" if self.blank == 1 else f"{self.blank} blank lines left out", err=True)


def _records(count: int) -> str:
    return "1 record" if count == 1 else f"{count} records"
