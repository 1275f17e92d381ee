"""Opening a log: tidy what a crash left behind, recover what may be torn, rebuild what is derived (S10.4).

All of it runs on a disk thread, before anybody else sees the log.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tidelog.config.topic import TopicConfig
from tidelog.errors import CorruptBatchError
from tidelog.log import names
from tidelog.log.checkpoints import read_epoch_checkpoint, write_epoch_checkpoint
from tidelog.log.epochs import LeaderEpochCache
from tidelog.log.leftovers import remove_orphans, tidy
from tidelog.log.producer_silence import FileTimes
from tidelog.log.producer_snapshot import ProducerSnapshots
from tidelog.log.producers import Producers
from tidelog.log.recovery import first_unchecked, load_producers, recover
from tidelog.log.replay import batches_between
from tidelog.log.segment import Segment
from tidelog.log.segments import Segments
from tidelog.log.transaction_index import CorruptIndexError
from tidelog.ports import Clock, Disk
from tidelog.types import Offset


class Opening(NamedTuple):
    """What is known of a log before it is opened."""

    clean: bool
    """The last owner closed it, so nothing needs checking. Else all from the recovery point on is checked and written
    anew: the last owner may have died of a sync that failed, and then the page cache alone shows it."""
    recovery_point: Offset
    log_start_offset: Offset
    high_watermark: Offset
    on_loss: Callable[[], None]
    """Called on the disk thread before anything is cut that a killed process does not leave, or when records are
    missing that were on the device."""


class LoadedLog(NamedTuple):
    """All that a log holds in memory, as found on disk."""

    segments: Segments
    epochs: LeaderEpochCache
    producers: Producers
    snapshots: ProducerSnapshots
    log_start_offset: Offset
    durable_log_start: Offset
    log_end_offset: Offset
    recovery_point: Offset


def load(disk: Disk, clock: Clock, directory: str, config: TopicConfig, state: Opening) -> LoadedLog:
    """The log as it stands in its directory; a new one if there is none."""
    clean, recovery_point, log_start_offset, high_watermark, on_loss = state
    now_ms = clock.wall_ms()
    segments = _find_segments(disk, directory, config, now_ms)
    if segments:
        log_start_offset = max(log_start_offset, segments[0].base_offset)
    epochs_path = os.path.join(directory, names.LEADER_EPOCHS)
    epochs = LeaderEpochCache(read_epoch_checkpoint(disk, epochs_path))
    snapshots = ProducerSnapshots(disk, directory)
    times = FileTimes(disk, clock)
    producers_at = partial(
        load_producers, snapshots=snapshots, config=config, high_watermark=high_watermark, times=times
    )
    producers: Producers | None = None

    if clean and not _is_whole(segments, recovery_point):
        on_loss()
        clean = False
    damaged = _first_bad_transaction_index(disk, segments)
    untouched = clean and damaged is None
    if segments and not untouched:
        synced_offset = max(recovery_point, segments[-1].base_offset) if clean else recovery_point
        first = first_unchecked(segments, synced_offset, snapshots)
        if damaged is not None:
            first = min(first, segments.index(damaged))
        base_offset = segments[first].base_offset
        producers = producers_at(segments[:first], log_start_offset=log_start_offset, end_offset=base_offset)
        known = (epochs, producers, snapshots, times)
        segments = recover(segments, first, synced_offset, *known, write_anew=not clean, on_loss=on_loss)
    elif segments:
        segments[-1].resume()

    log_end_offset = segments[-1].find_end() if segments else -1
    if max(log_end_offset, log_start_offset) < recovery_point:
        on_loss()  # whoever cuts a log writes its recovery point down first
    if log_end_offset < log_start_offset:
        # The log start is a fact about what was deleted: records below it must not come back.
        segments, producers = _start_anew(disk, directory, config, segments, log_start_offset, now_ms), None
        log_end_offset = log_start_offset
    for segment in segments[:-1]:
        segment.sealed = True
    snapshots.remove_after(log_end_offset)
    snapshots.remove_strays(segment.base_offset for segment in segments)
    if producers is None:
        producers = producers_at(
            segments, log_start_offset=log_start_offset, end_offset=log_end_offset, was_closed=untouched
        )
    if not untouched:
        epochs = _with_forgotten(epochs, Segments(segments), log_start_offset, log_end_offset)
    if _cut(epochs, log_start_offset, log_end_offset) or not untouched:
        write_epoch_checkpoint(disk, epochs_path, epochs.entries)
    checked = log_end_offset if clean else min(recovery_point, log_end_offset)
    starts = (log_start_offset, state.log_start_offset)
    return LoadedLog(Segments(segments), epochs, producers, snapshots, *starts, log_end_offset, checked)


def _cut(epochs: LeaderEpochCache, log_start_offset: Offset, log_end_offset: Offset) -> bool:
    """Drop what the log does not hold; whether there was any."""
    from_end = epochs.truncate_from_end(log_end_offset)
    return epochs.truncate_from_start(log_start_offset) or from_end


def _is_whole(segments: list[Segment], recovery_point: Offset) -> bool:
    """Whether a log that was closed still goes as far as it did. Who copied its directory may have run out of space."""
    if not segments:
        return recovery_point == 0
    last = segments[-1]
    try:
        end, end_offset = _end_of(last)
    except CorruptBatchError:
        try:  # the index may be wrong, and not the batches
            last.rebuild_indexes()
            end, end_offset = _end_of(last)
        except CorruptBatchError:
            return False
    return end == last.size and end_offset >= recovery_point


def _end_of(segment: Segment) -> tuple[int, Offset]:
    """The position and the offset after the last batch: a walk from the last entry of the index."""
    end, end_offset = 0, segment.base_offset
    start = segment.offsets[len(segment.offsets) - 1][1] if len(segment.offsets) else 0
    for position, header in segment.headers(start, segment.file.read_at):
        end, end_offset = position + header.size_bytes, header.next_offset
    return end, end_offset


def _start_anew(
    disk: Disk, directory: str, config: TopicConfig, segments: list[Segment], offset: Offset, now_ms: int
) -> list[Segment]:
    for segment in segments:
        segment.remove()
    return [Segment.new(disk, directory, offset, config, now_ms)]


def _with_forgotten(epochs: LeaderEpochCache, segments: Segments, start: Offset, end: Offset) -> LeaderEpochCache:
    """The file is cut as the log start moves, which itself is written down later: after a crash in between, records
    are there again whose terms the file does not know. They are learnt from the batches before the first that it does.
    """
    known = [entry for entry in epochs.entries if entry.start_offset < end]
    first_known = known[0].start_offset if known else end
    if first_known <= start:
        return epochs
    learnt = LeaderEpochCache()
    for _, _, header in batches_between(segments, segments[0].base_offset, first_known):
        if header.partition_leader_epoch > learnt.latest_epoch:
            learnt.assign(header.partition_leader_epoch, header.base_offset)
    for epoch, start_offset in epochs.entries:
        if epoch > learnt.latest_epoch:
            learnt.assign(epoch, start_offset)
    return learnt


def _find_segments(disk: Disk, directory: str, config: TopicConfig, now_ms: int) -> list[Segment]:
    """The segments by their .log files, of a tidied directory. Their indexes are not read before they are needed."""
    if not disk.exists(directory):
        disk.make_directory(directory)
        disk.sync_directory(os.path.dirname(directory))
    tidy(disk, directory, config)
    segments: list[Segment] = []
    for name in disk.list(directory):
        base_offset = names.base_offset_of(name)
        if base_offset is not None and name.endswith(names.LOG):
            segment = Segment(disk, directory, base_offset, config, now_ms)
            segment.size = disk.file_size(segment.file.path)
            segments.append(segment)
    remove_orphans(disk, directory, frozenset(segment.base_offset for segment in segments))
    return segments


def _first_bad_transaction_index(disk: Disk, segments: list[Segment]) -> Segment | None:
    """Few segments have one. What it lacks would make aborted records visible, so it is checked before it is used."""
    for segment in segments:
        if disk.exists(segment.transactions.path):
            try:
                segment.transactions.check(segment.base_offset)
            except CorruptIndexError:
                return segment
    return None
