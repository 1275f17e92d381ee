"""How `tidelog consume` reads: from where, up to where, alone or as a member of a group."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import click

from tidelog.cli.starting_points import Find, StartingPoints
from tidelog.client.committed import visible_records
from tidelog.client.errors import BrokerError, DeadlineError
from tidelog.client.fetch import Fetched, Fetcher, FetchSettings
from tidelog.client.membership import Assignment, Member
from tidelog.client.offsets import EARLIEST, Isolation, list_offsets, start_and_end
from tidelog.errors import ErrorCode
from tidelog.types import Offset, TopicPartition

if TYPE_CHECKING:
    from tidelog.cli.records import Show
    from tidelog.client.cluster import Cluster

_GONE_ON = (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)
"""The group has gone on, and who has the partition now begins where this member committed last."""

_ONCE_MS = 0
"""How long a question is asked again: `StartingPoints` does so, when it knows who leads."""

_Bounds = dict[TopicPartition, tuple[Offset, Offset]]


class Start(NamedTuple):
    """Where to begin: a time (or EARLIEST, LATEST), an offset, or so many before the end."""

    time_ms: int | None = None
    offset: int | None = None
    last: int | None = None


class Limits(NamedTuple):
    """Where to end."""

    time_ms: int | None
    offset: int | None
    max_messages: int | None
    follow: bool
    """Go on with what comes, as far as the others allow."""


class Reading:
    """One run of the command."""

    def __init__(self, cluster: Cluster, show: Show, limits: Limits, isolation: str) -> None:
        self._cluster = cluster
        self._show = show
        self._limits = limits
        self._left = limits.max_messages
        self.printed = 0
        """How many records."""
        self._isolation = Isolation[isolation.upper()]
        self._settings = FetchSettings(isolation=self._isolation, out_of_range=EARLIEST)
        self._bounds: _Bounds = {}
        self._ends: dict[TopicPartition, Offset] = {}
        """Where to stop; a partition without an end goes on for ever."""
        self._shown: dict[TopicPartition, Offset] = {}
        """The offset behind what was printed last."""

    # Alone

    async def run(self, topics: Sequence[str], numbers: tuple[int, ...], start: Start) -> None:
        partitions = await self._partitions(topics, numbers)
        await self._read(partitions, lambda some: self._positions(some, start, len(partitions)))

    async def _partitions(self, topics: Sequence[str], numbers: tuple[int, ...]) -> list[TopicPartition]:
        found: list[TopicPartition] = []
        for topic in topics:
            known = (await self._cluster.topic(topic, led=False)).partitions
            missing = [number for number in numbers if number not in known]
            if missing:
                raise click.ClickException(f"topic {topic} has no partition {missing[0]}; it has 0 to {len(known) - 1}")
            found += [TopicPartition(topic, number) for number in (numbers or known)]
        return found

    async def _positions(
        self, partitions: Sequence[TopicPartition], start: Start, count: int
    ) -> dict[TopicPartition, Offset]:
        """Where to begin; `count` is how many partitions are read in all."""
        bounds = await self._find_bounds(partitions)
        if start.time_ms is not None:
            positions = await self._at(start.time_ms, bounds)
        elif start.last is not None:
            positions = {partition: max(end - start.last, first) for partition, (first, end) in bounds.items()}
        else:
            self._bounds |= bounds
            if len(self._bounds) == count:
                _check_offset(start.offset or 0, self._bounds)
            positions = _from_offset(start.offset or 0, bounds)
        return await self._with_something(positions, bounds)

    async def _find_bounds(self, partitions: Sequence[TopicPartition]) -> _Bounds:
        return await start_and_end(self._cluster, partitions, isolation=self._isolation, timeout_ms=_ONCE_MS)

    async def _with_something(
        self, positions: dict[TopicPartition, Offset], bounds: _Bounds
    ) -> dict[TopicPartition, Offset]:
        """Without those that have nothing to show, unless more is waited for."""
        self._ends |= await self._find_ends(bounds)
        return {
            partition: position
            for partition, position in positions.items()
            if partition not in self._ends or position < self._ends[partition]
        }

    async def _at(self, time_ms: int, bounds: _Bounds) -> dict[TopicPartition, Offset]:
        """The first offset at or after a time; the end where no record is that late."""
        times = dict.fromkeys(bounds, time_ms)
        found = await list_offsets(self._cluster, times, isolation=self._isolation, timeout_ms=_ONCE_MS)
        return {
            partition: found[partition].offset if found[partition].offset >= 0 else end
            for partition, (_, end) in bounds.items()
        }

    async def _find_ends(self, bounds: _Bounds) -> dict[TopicPartition, Offset]:
        limits = self._limits
        ends = {} if limits.follow else {partition: end for partition, (_, end) in bounds.items()}
        if limits.offset is not None:
            return {partition: min(limits.offset, ends.get(partition, limits.offset)) for partition in bounds}
        if limits.time_ms is not None:
            at = await self._at(limits.time_ms, bounds)
            # If nothing is that late yet, --follow waits for it, and sees by the records' times when it is there.
            return at if not limits.follow else {part: end for part, end in at.items() if end < bounds[part][1]}
        return ends

    # Reading

    async def _read(
        self,
        partitions: Sequence[TopicPartition],
        find: Find,
        member: Member | None = None,
        coming: asyncio.Future[Assignment] | None = None,
    ) -> bool:
        """Until there is nothing more to read; False if the group assigns anew before."""
        patience_ms = None if self._limits.follow else self._cluster.settings.default_api_timeout_ms
        starts = StartingPoints(self._cluster, partitions, find, patience_ms)
        fetcher = Fetcher(self._cluster, {}, self._settings)
        reading: set[TopicPartition] = set()
        overdue: DeadlineError | None = None
        starting: asyncio.Future[dict[TopicPartition, Offset]] | None = None
        fetching: asyncio.Future[list[Fetched]] | None = None
        try:
            while self._left != 0 and (reading or (starts.are_missing and overdue is None)):
                starting = starting or (asyncio.create_task(starts.next()) if overdue is None else None)
                fetching = fetching or asyncio.create_task(fetcher.next())
                waited_for = [future for future in (starting, fetching, coming) if future is not None]
                await asyncio.wait(waited_for, return_when=asyncio.FIRST_COMPLETED)
                if coming is not None and coming.done():
                    return False
                if starting is not None and starting.done():
                    try:
                        found = starting.result()
                        fetcher.add(found)
                        reading.update(found)
                    except DeadlineError as failure:  # once the others are read, it is an error
                        overdue = failure
                    starting = None
                if fetching.done():
                    self._print(fetching.result(), fetcher, reading)
                    fetching = None
                    if member is not None:
                        await self._commit(member)
        finally:
            for future in (starting, fetching):
                if future is not None:
                    future.cancel()
            starts.close()
            fetcher.close()
        if overdue is not None and self._left != 0:
            raise overdue
        return True

    # In a group

    async def run_in_group(self, group: str, topics: Sequence[str], start: Start) -> None:
        for topic in topics:
            await self._cluster.topic(topic, led=False)
        async with Member(self._cluster, group, topics) as member:
            coming = asyncio.create_task(member.next_assignment())
            try:
                is_done = False
                while not is_done:
                    assignment = await coming
                    coming = asyncio.create_task(member.next_assignment())
                    is_done = await self._read_assigned(member, assignment, start, coming)
            finally:
                coming.cancel()

    async def _read_assigned(
        self, member: Member, assignment: Assignment, start: Start, coming: asyncio.Future[Assignment]
    ) -> bool:
        """Until the group assigns anew; True if there is nothing more to read."""
        partitions = assignment.partitions
        self._ends.clear()
        is_read = await self._read(partitions, lambda some: self._group_positions(member, some, start), member, coming)
        if partitions or not is_read or not self._limits.follow:
            return is_read
        await asyncio.wait((coming,))  # nothing is assigned: others read all of it
        return False

    async def _group_positions(
        self, member: Member, partitions: Sequence[TopicPartition], start: Start
    ) -> dict[TopicPartition, Offset]:
        committed = await member.committed(partitions)
        bounds = await self._find_bounds(partitions)
        assert start.time_ms is not None
        fresh = await self._at(start.time_ms, {p: b for p, b in bounds.items() if p not in committed})
        positions = {**fresh, **{partition: found.offset for partition, found in committed.items()}}
        return await self._with_something(positions, bounds)

    async def _commit(self, member: Member) -> None:
        shown, self._shown = self._shown, {}
        if not shown:
            return
        try:
            await member.commit(shown)
        except BrokerError as failure:
            if failure.code not in _GONE_ON:
                raise

    # Printing

    def _print(self, answers: Sequence[Fetched], fetcher: Fetcher, reading: set[TopicPartition]) -> None:
        """Print what came, and leave out partitions that have come to their end."""
        stream = sys.stdout.buffer
        for fetched in answers:
            partition = fetched.partition
            stream.write(b"".join(self._lines(fetched)))
            end = self._ends.get(partition)
            if end is not None and fetched.next_offset >= end:
                reading.discard(partition)
                fetcher.drop([partition])
        stream.flush()

    def _lines(self, fetched: Fetched) -> Iterator[bytes]:
        partition = fetched.partition
        aborted = fetched.aborted if self._isolation is Isolation.READ_COMMITTED else ()
        end = self._ends.get(partition)
        for record in visible_records(fetched.records, aborted, fetched.fetch_offset):
            if self._left == 0 or (end is not None and record.offset >= end):
                return
            if end is None and self._limits.time_ms is not None and record.timestamp >= self._limits.time_ms:
                self._ends[partition] = record.offset
                return
            yield self._show(partition, record)
            self.printed += 1
            self._shown[partition] = record.offset + 1
            if self._left is not None:
                self._left -= 1
        if fetched.next_offset > fetched.fetch_offset:
            self._shown[partition] = fetched.next_offset  # with what is not shown: markers, and what was aborted


def _check_offset(offset: Offset, bounds: _Bounds) -> None:
    """An offset that no partition has yet is a mistake."""
    if all(end < offset for _, end in bounds.values()):
        there = ", ".join(f"{partition} {start} to {end}" for partition, (start, end) in sorted(bounds.items()))
        raise click.ClickException(f"no partition has got to offset {offset} yet; there is: {there}")


def _from_offset(offset: Offset, bounds: _Bounds) -> dict[TopicPartition, Offset]:
    """What is before the log start is gone, and begins there."""
    return {partition: min(max(offset, start), end) for partition, (start, end) in bounds.items()}
