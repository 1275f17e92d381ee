"""Finding out what survived a crash (S10.4): batches are checked one by one, the torn tail is cut.

Everything derived from the checked batches is made anew on the way: indexes, epochs, producers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tidelog.config.topic import TopicConfig
from tidelog.log.epochs import LeaderEpochCache
from tidelog.log.producer_silence import FileTimes
from tidelog.log.producer_snapshot import ProducerSnapshots
from tidelog.log.producers import Producers
from tidelog.log.replay import has_control_batch, note_producer, replay
from tidelog.log.segment import MAX_RELATIVE_OFFSET, Segment
from tidelog.log.segments import Segments
from tidelog.records.header import BatchHeader
from tidelog.records.scan import Scan, scan
from tidelog.types import Buffer, Offset

_log = logging.getLogger(__name__)

_CHUNK_BYTES = 4 << 20
_TORN_BATCH = "torn batch"


def recover(
    segments: list[Segment],
    first: int,
    synced_offset: Offset,
    epochs: LeaderEpochCache,
    producers: Producers,
    snapshots: ProducerSnapshots,
    times: FileTimes,
    *,
    write_anew: bool = False,
    on_loss: Callable[[], None] = lambda: None,
) -> list[Segment]:
    """Check all segments from the place `first` on; the first bad byte ends the log.

    `on_loss` is called before more is cut than what a killed process leaves: the log may have had records there.

    `producers` know everything before the first of those segments, and afterwards everything.
    Returns the segments that stay, all but the last of them synced. With `write_anew` every batch that reaches past
    `synced_offset` is written once more, to where it stands, before that: a sync may have failed, and the kernel then
    takes for clean what it could not write, so that a later sync succeeds without writing it.
    """
    next_offset = None
    for place in range(first, len(segments)):
        segment = segments[place]
        sealed_before = segment.base_offset <= synced_offset or segment.base_offset in snapshots.offsets
        if next_offset is not None and not _goes_on(segment.base_offset, next_offset, sealed_before):
            # The tail of the one before is gone, and was lost so neatly that no batch is torn.
            on_loss()
            return _cut(
                segments, place, f"{segment.file.path} does not go on at {next_offset}, where the one before it ends"
            )
        is_last, anew_from = place + 1 == len(segments), synced_offset if write_anew else None
        problem, next_offset = _recover_segment(segment, epochs, producers, times, anew_from, is_last, on_loss)
        if problem is not None:
            return _cut(segments, place + 1, f"{segment.file.path}: {problem}; cut at byte {segment.size}")
        if not is_last:
            segment.complete_time_index()
            segment.save(sync=True)()
            if segments[place + 1].base_offset == next_offset:
                snapshots.write(next_offset, producers.snapshot())
    return segments


def _goes_on(base_offset: Offset, next_offset: Offset, sealed_before: bool) -> bool:
    """Whether a segment can follow one that ends at `next_offset`.

    It starts there, unless compaction took the end of the one before, which it only does to what was sealed.
    """
    return base_offset == next_offset or (base_offset > next_offset and sealed_before)


def _cut(segments: list[Segment], place: int, why: str) -> list[Segment]:
    """Go without the segments from `place` on."""
    dropped = segments[place:]
    _log.warning("%s%s", why, f", with the {len(dropped)} segments after it" if dropped else "")
    for segment in reversed(dropped):
        segment.remove()
    return segments[:place]


def first_unchecked(segments: list[Segment], synced_offset: Offset, snapshots: ProducerSnapshots) -> int:
    """The place of the first segment that may hold unsynced bytes or lack its last index entries.

    When a segment is sealed, a snapshot is written at the start of the next one, last of all.
    """
    place = max(0, sum(segment.base_offset <= synced_offset for segment in segments) - 1)
    while place > 0 and segments[place].base_offset not in snapshots.offsets:
        place -= 1
    return place


def load_producers(
    segments: list[Segment],
    snapshots: ProducerSnapshots,
    config: TopicConfig,
    log_start_offset: Offset,
    end_offset: Offset,
    high_watermark: Offset,
    times: FileTimes,
    was_closed: bool = False,
) -> Producers:
    """The producers as they were at `end_offset`: the newest fitting snapshot up to there, and what came after it.

    A snapshot does not tell of transactions that were complete when it was written. Where a marker is not yet
    committed, its transaction must still be known (edge case 14), so then an older snapshot is taken and the
    marker is met again.

    DeleteRecords leaves the log start within a segment. All batches of that segment are there, so what came before the
    log start counts as well: its producers may send it again.

    `was_closed`: the last owner has closed the log, and left a snapshot at its end.
    """
    producers = Producers(config.producer_id_expiration_ms, config.producer_ids_max)
    oldest = min(log_start_offset, segments[0].base_offset if segments else end_offset)
    newest = snapshots.load_latest(oldest, end_offset)
    if newest is not None and segments and has_control_batch(Segments(segments), high_watermark, newest[0]):
        newest = snapshots.load_latest(oldest, high_watermark)
    start = oldest
    if newest is not None:
        start, entries = newest
        producers.load(entries, times.heard_before(snapshots.path(start), was_closed and start == end_offset))
    if segments:
        replay(producers, Segments(segments), start, end_offset, times)
    return producers


def _recover_segment(
    segment: Segment,
    epochs: LeaderEpochCache,
    producers: Producers,
    times: FileTimes,
    anew_from: Offset | None,
    is_last: bool,
    on_loss: Callable[[], None],
) -> tuple[str | None, Offset]:
    """Check it, cut it after the last good batch. What was wrong, if anything, and the offset that would come next.

    Batches that reach past `anew_from` are written again. A process that is killed in a write leaves the beginning of a
    batch at the very end; anything else that is wrong is a loss.
    """
    file_bytes, written_ms = segment.size, times.written_ms(segment.file.path)
    segment.reset_indexes()
    segment.transactions.reset()
    segment.size = 0
    position, want, next_offset = 0, _CHUNK_BYTES, segment.base_offset
    problem: str | None = None
    while position < file_bytes:
        chunk = segment.file.read_at(position, want)
        found = scan(chunk, min_offset=next_offset)
        for at, header in found.batches:
            if header.last_offset - segment.base_offset > MAX_RELATIVE_OFFSET:
                problem = f"offset {header.last_offset} does not belong to this segment"
                break
            _note(segment, header, position + at, epochs, producers, written_ms, chunk, at)
            next_offset = header.next_offset
            segment.size = position + at + header.size_bytes
        if anew_from is not None:
            _write_anew(segment, position, chunk, found, anew_from)
        if problem is not None or (found.reason not in (None, "torn")):
            problem = problem or found.reason
            break
        if found.end == 0 and len(chunk) < max(found.needed, want):
            problem = _TORN_BATCH
            break
        position += found.end
        want = max(_CHUNK_BYTES, found.needed)
    if segment.size < file_bytes:
        if problem != _TORN_BATCH or not is_last:
            on_loss()
        segment.file.truncate(segment.size)
    return problem, next_offset


def _write_anew(segment: Segment, position: int, chunk: Buffer, found: Scan, anew_from: Offset) -> None:
    """The good batches of a chunk that reach past `anew_from`, to where they stand: so their pages are dirty again."""
    for at, header in found.batches:
        if header.next_offset > anew_from and position + at < segment.size:
            good = memoryview(chunk)[at : segment.size - position]
            segment.file.write_at(position + at, [good])
            return


def _note(
    segment: Segment,
    header: BatchHeader,
    position: int,
    epochs: LeaderEpochCache,
    producers: Producers,
    written_ms: int,
    chunk: Buffer,
    at: int,
) -> None:
    segment.note(header, header.base_offset, position)
    epoch = header.partition_leader_epoch
    if epoch > epochs.latest_epoch:
        epochs.assign(epoch, header.base_offset)
    if header.producer_id >= 0:
        note_producer(producers, header, header.base_offset, chunk, at, segment.transactions, written_ms)
