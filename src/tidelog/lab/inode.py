"""Files and directories that remember what of them is on the platter.

Each keeps its present state, as the page cache shows it, and the changes since the last sync. A power loss
goes back to the synced state and lets chance decide how much of the changes made it. After a sync that failed, the
page cache takes the bytes that it could not write for clean: it shows them, and no later sync writes them.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

from tidelog.types import Buffer

if TYPE_CHECKING:
    from tidelog.lab.disk import SimFile

_BLOCK_BYTES = 512
"""What a device writes as a whole or not at all; pages are made of these and reach it in any order."""


class _Change(NamedTuple):
    """One unsynced write or truncation: enough to undo it and to do it again in part."""

    position: int
    replaced: bytes
    """What stood at `position` before: for a truncation all that was cut off."""
    size_before: int
    data: bytes | None
    """What was written; None for a truncation to `position`."""


class Inode:
    """The contents of one file."""

    def __init__(self, now_ms: int) -> None:
        self.content = bytearray()
        self.modified_ms = now_ms
        self.handles: list[SimFile] = []
        self._changes: list[_Change] = []
        self._platter: bytearray | None = None
        """What the platter holds below the changes, where a failed sync made that another thing than they undo to."""

    def write(self, position: int, data: Buffer) -> None:
        size = len(self.content)
        replaced = bytes(self.content[position : position + len(data)])
        self._changes.append(_Change(position, replaced, size, bytes(data)))
        _put(self.content, position, data)

    def truncate(self, size: int) -> None:
        before = len(self.content)
        if size > before:
            self.write(before, bytes(size - before))
        elif size < before:
            self._changes.append(_Change(size, bytes(self.content[size:]), before, None))
            del self.content[size:]

    def sync(self) -> None:
        if self._platter is not None:
            self._redo(self._platter)
            if self._platter == self.content:
                self._platter = None
        self._changes.clear()

    def failed_sync(self, chance: random.Random) -> None:
        """Chance decides what of each write reached the platter. All of it counts as clean from now on.

        Sizes are kept by the journal of the file system, which a failed write of data does not touch: a truncation is
        not forgotten.
        """
        platter = self._synced()
        for change in self._changes:
            if change.data is None:
                del platter[change.position :]
            else:
                size = len(change.data)
                _put(platter, change.position, change.data[: chance.choice((0, size, chance.randrange(size + 1)))])
        self._platter = platter
        self._changes.clear()

    def power_loss(self, chance: random.Random) -> None:
        """Keep what was synced, and of the rest an unlucky part; what is left is on the platter now."""
        if not self._changes and self._platter is None:
            return
        synced, self._platter = self._synced(), None
        self.content[:] = synced
        if not self._changes:
            return
        self._redo(synced)
        latest = bytes(synced)
        fate = chance.randrange(4)
        if fate == 1:
            self.content[:] = latest
        elif fate == 2:
            self._redo_prefix(chance)
        elif fate == 3:
            self._mix_blocks(latest, chance)
        self._changes.clear()

    def _synced(self) -> bytearray:
        """What the platter holds for sure."""
        if self._platter is not None:
            return bytearray(self._platter)
        content = bytearray(self.content)
        for change in reversed(self._changes):
            if change.data is not None:
                del content[change.size_before :]
            _put(content, change.position, change.replaced)
        return content

    def _redo(self, content: bytearray) -> None:
        for change in self._changes:
            _redo_one(content, change)

    def _redo_prefix(self, chance: random.Random) -> None:
        """The changes in their order up to some moment, the write of that moment torn at any byte."""
        count = chance.randrange(len(self._changes))
        for change in self._changes[:count]:
            _redo_one(self.content, change)
        torn = self._changes[count].data
        if torn:
            _put(self.content, self._changes[count].position, torn[: chance.randrange(len(torn))])

    def _mix_blocks(self, latest: bytes, chance: random.Random) -> None:
        """Written back in no order: the size is one of the two, each block is either old or new, zero where never was.

        A truncation may have freed blocks that later writes did not reach: those are old.
        """
        synced = bytes(self.content)
        size = len(latest) if chance.random() < 0.5 else max(len(synced), chance.randrange(len(latest) + 1))
        for start in range(0, size, _BLOCK_BYTES):
            end = min(start + _BLOCK_BYTES, size)
            source = synced if chance.random() < 0.5 else latest
            block = source[start:end]
            _put(self.content, start, block + bytes(end - start - len(block)))
        del self.content[size:]


class _NameChange(NamedTuple):
    """One unsynced change of a directory: `node` gets the name `added`, the name `removed` goes; as one step."""

    removed: str | None
    added: str | None
    node: Node


class Directory:
    """Names and what they stand for. Unsynced changes are lost from the last one back: a journal keeps their order."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        """Tells it from all others of its disk."""
        self.entries: dict[str, Node] = {}
        self._synced: dict[str, Node] = {}
        self._changes: list[_NameChange] = []

    def add(self, name: str, node: Node) -> None:
        self._change(_NameChange(None, name, node))

    def remove(self, name: str) -> None:
        self._change(_NameChange(name, None, self.entries[name]))

    def rename(self, source: str, target: str) -> None:
        """One change: after a power loss there is the old name or the new one, never none."""
        self._change(_NameChange(source, target, self.entries[source]))

    def sync(self) -> None:
        self._synced = dict(self.entries)
        self._changes.clear()

    def power_loss(self, chance: random.Random) -> None:
        self.entries = dict(self._synced)
        for change in self._changes[: chance.randrange(len(self._changes) + 1)]:
            _apply(self.entries, change)
        self.sync()
        for name in sorted(self.entries):
            self.entries[name].power_loss(chance)

    def _change(self, change: _NameChange) -> None:
        _apply(self.entries, change)
        self._changes.append(change)


Node = Inode | Directory


def _apply(entries: dict[str, Node], change: _NameChange) -> None:
    if change.removed is not None:
        del entries[change.removed]
    if change.added is not None:
        entries[change.added] = change.node


def _redo_one(content: bytearray, change: _Change) -> None:
    if change.data is None:
        del content[change.position :]
    else:
        _put(content, change.position, change.data)


def _put(content: bytearray, position: int, data: Buffer) -> None:
    """Write into it, with zeros in between if that starts past its end. Nothing to write changes nothing."""
    if not data:
        return
    if position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data
