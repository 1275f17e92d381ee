"""Compaction of one log (S10.3): the last record of each key stays, at its offset.

The reading and writing runs on a disk thread and spends its time in the kernel, without the GIL, so that
the loop goes on appending. The loop itself only plans, and puts the new segments in their place.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from tidelog.errors import TidelogError
from tidelog.log.cleaning import Cleaning, CleaningAbandonedError
from tidelog.log.compaction_plan import Plan, SegmentSize, groups, plan
from tidelog.log.log import Log
from tidelog.log.names import CLEANED, SWAP
from tidelog.log.rewriting import BatchFilter, batches, rewrite
from tidelog.log.segment import Segment
from tidelog.log.segments import Segments
from tidelog.log.transaction_filter import TransactionFilter
from tidelog.log.transaction_index import AbortedTxn
from tidelog.log.trimming import delete_later
from tidelog.log.work import to_the_end
from tidelog.ports import Random
from tidelog.records.compaction import OffsetMap, index_batch
from tidelog.records.control import control_type
from tidelog.types import Offset

DEDUPE_BUFFER_BYTES = 128 << 20
_SEED_BYTES = 16
_LANE = "clean"


class UncleanableError(TidelogError):
    """This log cannot be cleaned with these settings, now or later."""


class Cleaned(NamedTuple):
    """What one cleaning did."""

    end_offset: Offset
    """The next one starts here."""
    bytes_before: int
    bytes_after: int


async def plan_cleaning(log: Log, first_dirty_offset: Offset) -> Plan:
    """What could be cleaned in this log now: what is stable and synced."""
    segments = list(log.segments)
    facts = await log.work.beside(lambda: [_facts(segment) for segment in segments])
    return plan(
        facts,
        log.config,
        first_dirty_offset=first_dirty_offset,
        log_start_offset=log.log_start_offset,
        stable_offset=min(log.last_stable_offset, log.recovery_point),
        now_ms=log.clock.wall_ms(),
    )


async def clean(log: Log, what: Plan, random: Random, *, buffer_bytes: int = DEDUPE_BUFFER_BYTES) -> Cleaned | None:
    """Carry out a plan. None if it was abandoned, or is out of date: what is done is done, plan the rest anew."""
    async with log.reshaping:
        if what.end_offset > _cleanable_end(log):
            return None  # the log was cut since, and the plan may reach into its active segment
        assert log.cleaning is None, f"{log.partition} is being cleaned already"
        cleaning = log.cleaning = Cleaning()
    try:
        # A .cleaned beside the .swap of the last cleaning would look to a restart as if that had not been complete.
        await log.work.run(lambda: None)
        # Recovery takes a gap between segments for a loss, and cleaning makes gaps: so a restart must know, before
        # there are any, that it need not check this far.
        await log.persist_checkpoints()
        return await _clean(log, what, OffsetMap(buffer_bytes, random.randbytes(_SEED_BYTES)), cleaning)
    except CleaningAbandonedError:
        return None
    finally:
        log.cleaning = None
        cleaning.end()


def _cleanable_end(log: Log) -> Offset:
    return min(log.segments.active.base_offset, log.last_stable_offset, log.recovery_point)


async def _clean(log: Log, what: Plan, offsets: OffsetMap, cleaning: Cleaning) -> Cleaned:
    segments = log.segments.copy()
    aborted = await log.aborted_transactions(log.log_start_offset, what.end_offset)
    end = await log.work.beside(lambda: _index(offsets, segments, what, aborted, cleaning), _LANE)
    sources = [segment for segment in segments if segment.base_offset < end]
    batch_filter = BatchFilter(
        offsets,
        TransactionFilter(aborted),
        {state.producer_id: (state.last_offset, state.epoch) for state in log.producers.states.values()},
        what.end_offset - 1,
        log.clock.wall_ms(),
        log.config.delete_retention_ms,
    )
    before = after = 0
    pending: list[Segment] = []
    new: Segment | None = None
    facts = await log.work.beside(lambda: [_facts(segment) for segment in sources], _LANE)
    for count in groups(facts, log.config):
        old, sources = sources[:count], sources[count:]
        pending += old
        new = await log.work.beside(partial(_rewrite_group, log, old, new, batch_filter, cleaning), _LANE)
        if new.size == 0 and sources:
            continue  # nothing is left of these: what comes next goes to the same segment
        before += sum(segment.size for segment in pending)
        after += new.size
        await to_the_end(_swap_in(log, pending, new, cleaning))
        pending, new = [], None
    return Cleaned(end, before, after)


def _facts(segment: Segment) -> SegmentSize:
    largest_timestamp = segment.largest_timestamp()
    return SegmentSize(segment.base_offset, segment.size, segment.index_bytes, largest_timestamp)


def _index(offsets: OffsetMap, segments: Segments, what: Plan, aborted: list[AbortedTxn], cleaning: Cleaning) -> Offset:
    """Enter the last offset of each key of the dirty part; where it ended, short of the plan if the map is full."""
    transactions = TransactionFilter(aborted)
    for place in range(segments.place_of(what.first_dirty_offset), len(segments)):
        segment = segments[place]
        if segment.base_offset >= what.end_offset:
            break
        for header, buffer, position in batches(segment, cleaning):
            if header.last_offset < what.first_dirty_offset:
                continue
            if header.is_control:
                transactions.marker_is_empty(header, control_type(buffer, header, position))
            elif transactions.drops_data(header):
                offsets.skip_to(header.last_offset)
            elif not index_batch(offsets, buffer, header, position):
                if header.base_offset <= what.first_dirty_offset:
                    raise UncleanableError(
                        f"a batch of {header.record_count} records is more than "
                        "log.cleaner.dedupe.buffer.size has room for"
                    )
                return header.base_offset
    return what.end_offset


def _rewrite_group(
    log: Log, old: list[Segment], new: Segment | None, batch_filter: BatchFilter, cleaning: Cleaning
) -> Segment:
    if new is None:
        new = Segment.new(log.disk, log.directory, old[0].base_offset, log.config, old[0].created_ms, stage=CLEANED)
    try:
        rewrite(old, new, batch_filter, cleaning)
    except BaseException:
        new.remove()
        raise
    return new


async def _swap_in(log: Log, old: list[Segment], new: Segment, cleaning: Cleaning) -> None:
    """Put one segment in the place of those it was made from. The order of the steps is what `leftovers` relies on."""

    def complete() -> None:
        new.move_to(SWAP)
        log.disk.sync_directory(log.directory)

    def finish() -> None:
        log.disk.sync_directory(log.directory)
        new.move_to("")
        log.disk.sync_directory(log.directory)
        # Those of segments that are gone. If one comes back after a crash, loading removes it.
        for base_offset in gone:
            log.snapshots.remove(base_offset)

    def named() -> None:
        """Only now may its indexes go from memory: while it is being renamed nobody could find them on disk."""
        new.sealed = new is not log.segments.active
        new.release_indexes()

    gone = [segment.base_offset for segment in old if segment.base_offset != new.base_offset]
    # Once it is called .swap a restart would put it in, so from here on it is done whoever asks to stop.
    cleaning.check()
    await log.work.run(complete)
    place = log.segments.place_of(old[0].base_offset)
    assert log.segments[place] is old[0]
    log.segments.replace(place, place + len(old), [new])
    delete_later(log, old, finish, named)
