"""Columns as Arrow lays them out: which buffers there are, and where in them a slice begins."""

from __future__ import annotations

import itertools
import struct
from typing import NamedTuple

from tidelog.types import Buffer


class BinaryBuffers(NamedTuple):
    """A column of byte strings: row i lies between offsets i and i + 1 of its data."""

    offsets: Buffer
    data: Buffer
    validity: Buffer | None
    """A bit per row, the lowest first, set where the row is not null. None: no row is."""

    null_count: int
    start: int = 0
    """The row of the buffers that is row 0 of the column: Arrow's slices share buffers."""

    large: bool = False
    """64-bit offsets: Arrow's large_binary."""


class HeaderBuffers(NamedTuple):
    """The headers of all rows, end to end: row i has those between ends i and i + 1."""

    ends: Buffer
    header_count: int
    keys: BinaryBuffers
    values: BinaryBuffers
    start: int = 0

    def mended(self) -> HeaderBuffers:
        """With keys that are UTF-8, as Arrow's strings must be; what is not becomes U+FFFD, as in Java's consumer."""
        if bytes(self.keys.data).isascii():
            return self
        ends = struct.unpack_from(f"={self.header_count + 1}{'q' if self.keys.large else 'i'}", self.keys.offsets)
        keys = [
            bytes(self.keys.data[start:end]).decode("utf-8", "replace").encode()
            for start, end in itertools.pairwise(ends)
        ]
        offsets = [0]
        for key in keys:
            offsets.append(offsets[-1] + len(key))
        large = offsets[-1] > 2**31 - 1
        packed = struct.pack(f"={len(offsets)}{'q' if large else 'i'}", *offsets)
        return self._replace(keys=BinaryBuffers(packed, b"".join(keys), None, 0, 0, large))


class ColumnBuffers(NamedTuple):
    """Records as columns. Numbers are 64 bits in the machine's byte order."""

    row_count: int
    offsets: Buffer | None
    timestamps: Buffer
    keys: BinaryBuffers
    values: BinaryBuffers
    headers: HeaderBuffers | None
    number_start: int = 0
    """Where offsets and timestamps begin, in rows."""
