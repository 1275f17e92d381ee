"""What a crash may leave in a partition's directory, and what becomes of it.

A cleaning writes .cleaned files, renames them all to .swap, moves what they replace to .deleted and renames
them to their final names, each step synced before the next. So .cleaned is worth nothing; a .swap is complete, and
whatever it replaces may still stand beside it.
"""

from __future__ import annotations

import os

from tidelog.config.topic import TopicConfig
from tidelog.log import names
from tidelog.log.segment import Segment
from tidelog.ports import Disk
from tidelog.types import Offset


def tidy(disk: Disk, directory: str, config: TopicConfig) -> None:
    """Finish or undo what was under way; afterwards only segments, snapshots and checkpoints are there."""
    cleaned = [_base(name) for name in disk.list(directory) if name.endswith(names.CLEANED)]
    changed = False
    for name in disk.list(directory):
        stale = name.endswith((names.DELETED, names.CLEANED, ".tmp"))
        # A .swap beside a .cleaned that starts at or before it belongs to a set that was not complete.
        if name.endswith(names.SWAP) and cleaned and _base(name) >= min(cleaned):
            stale = True
        if stale:
            disk.remove(os.path.join(directory, name))
            changed = True
    swaps = [name for name in disk.list(directory) if name.endswith(names.SWAP)]
    if swaps:
        _finish_swap(disk, directory, config, swaps)
    if changed or swaps:
        disk.sync_directory(directory)


def _finish_swap(disk: Disk, directory: str, config: TopicConfig, swaps: list[str]) -> None:
    covered = [_range(disk, directory, config, _base(name)) for name in swaps if name.endswith(names.LOG + names.SWAP)]
    if covered:
        start, end = min(first for first, _ in covered), max(after for _, after in covered)
        for name in disk.list(directory):
            base_offset = names.base_offset_of(name)
            if base_offset is not None and start <= base_offset < end and name.endswith(names.SEGMENT_SUFFIXES):
                disk.remove(os.path.join(directory, name))
        disk.sync_directory(directory)
    for name in swaps:
        path = os.path.join(directory, name)
        disk.rename(path, path.removesuffix(names.SWAP))


def _range(disk: Disk, directory: str, config: TopicConfig, base_offset: Offset) -> tuple[Offset, Offset]:
    """The offsets that a complete .swap covers, from its own batches: at least the one it is named after."""
    segment = Segment(disk, directory, base_offset, config, 0, stage=names.SWAP)
    segment.size = segment.file.size()
    end = base_offset + 1
    for _, header in segment.headers(0, segment.file.read_at):
        end = header.next_offset
    segment.close()
    return base_offset, end


def _base(name: str) -> Offset:
    base_offset = names.base_offset_of(name)
    return -1 if base_offset is None else base_offset


def remove_orphans(disk: Disk, directory: str, base_offsets: frozenset[Offset]) -> None:
    """Indexes whose segment is gone."""
    for name in disk.list(directory):
        base_offset = names.base_offset_of(name)
        if base_offset is not None and base_offset not in base_offsets and name.endswith(names.SEGMENT_SUFFIXES):
            disk.remove(os.path.join(directory, name))
