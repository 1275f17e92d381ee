# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""What compaction remembers: for each key, in bounded memory, the offset of its last record.

Compiled like kernel.py, and works without the GIL: it runs on a disk thread beside the event loop.
Keys are known by a 128-bit keyed hash (SipHash-2-4). A collision would lose a record, so the hash must
be one that nobody can aim at without the seed, and wide enough that chance does not matter.
"""

from __future__ import annotations

import mmap
import struct

import cython

if cython.compiled:
    from cython.cimports.cpython.buffer import Py_buffer, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.libc.string import memcpy
    from cython.cimports.tidelog.records.kernel import Cursor
else:
    from tidelog.records.kernel import Cursor

COMPILED = cython.compiled

SLOT_BYTES = 24
"""Two words of hash, and the offset plus one, so that memory full of zeros is an empty map."""

_WORD = struct.Struct("=Q")
_MASK = 0xFFFFFFFFFFFFFFFF


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _rotated(word: cython.ulonglong, bits: cython.int) -> cython.ulonglong:
    word = (word << bits) | (word >> (64 - bits))
    if not cython.compiled:
        word &= _MASK
    return word


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _sum(one: cython.ulonglong, other: cython.ulonglong) -> cython.ulonglong:
    one += other
    if not cython.compiled:
        one &= _MASK
    return one


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _tail_word(
    data: cython.pointer[cython.const[cython.uchar]], place: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.ulonglong:
    """Up to eight bytes as a little-endian number."""
    word: cython.ulonglong = 0
    byte: cython.ulonglong
    index: cython.Py_ssize_t
    for index in range(size):
        byte = data[place + index]
        word |= byte << (8 * index)
    return word


@cython.final
@cython.cclass
class _KeyHash:
    """SipHash-2-4 with 128 bits of result, in `high` and `low`."""

    start0: cython.ulonglong
    start1: cython.ulonglong
    start2: cython.ulonglong
    start3: cython.ulonglong
    v0: cython.ulonglong
    v1: cython.ulonglong
    v2: cython.ulonglong
    v3: cython.ulonglong
    high: cython.ulonglong
    low: cython.ulonglong

    def __init__(self, seed: bytes):
        if len(seed) != 16:
            raise ValueError(f"the seed of a key hash is 16 bytes, not {len(seed)}")
        seed0 = int.from_bytes(seed[:8], "little")
        seed1 = int.from_bytes(seed[8:], "little")
        self.start0 = seed0 ^ 0x736F6D6570736575
        self.start1 = seed1 ^ 0x646F72616E646F6D ^ 0xEE
        self.start2 = seed0 ^ 0x6C7967656E657261
        self.start3 = seed1 ^ 0x7465646279746573

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def rounds(self, count: cython.int) -> cython.void:
        while count > 0:
            self.v0 = _sum(self.v0, self.v1)
            self.v1 = _rotated(self.v1, 13) ^ self.v0
            self.v0 = _rotated(self.v0, 32)
            self.v2 = _sum(self.v2, self.v3)
            self.v3 = _rotated(self.v3, 16) ^ self.v2
            self.v0 = _sum(self.v0, self.v3)
            self.v3 = _rotated(self.v3, 21) ^ self.v0
            self.v2 = _sum(self.v2, self.v1)
            self.v1 = _rotated(self.v1, 17) ^ self.v2
            self.v2 = _rotated(self.v2, 32)
            count -= 1

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def absorb(self, word: cython.ulonglong) -> cython.void:
        self.v3 ^= word
        self.rounds(2)
        self.v0 ^= word

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def digest(
        self, data: cython.pointer[cython.const[cython.uchar]], place: cython.Py_ssize_t, size: cython.Py_ssize_t
    ) -> cython.void:
        end: cython.Py_ssize_t = place + size - (size & 7)
        last: cython.ulonglong = size & 0xFF
        self.v0 = self.start0
        self.v1 = self.start1
        self.v2 = self.start2
        self.v3 = self.start3
        while place < end:
            self.absorb(_tail_word(data, place, 8))
            place += 8
        self.absorb((last << 56) | _tail_word(data, place, size & 7))
        self.v2 ^= 0xEE
        self.rounds(4)
        self.low = self.v0 ^ self.v1 ^ self.v2 ^ self.v3
        self.v1 ^= 0xDD
        self.rounds(4)
        self.high = self.v0 ^ self.v1 ^ self.v2 ^ self.v3


def key_hash(seed: bytes, key: bytes) -> bytes:
    """The 16 bytes by which a map with that seed knows the key."""
    digest: _KeyHash = _KeyHash(seed)
    digest.digest(key, 0, len(key))
    return digest.low.to_bytes(8, "little") + digest.high.to_bytes(8, "little")


@cython.final
@cython.cclass
class OffsetMap:
    """The last offset of every key added, in an open-addressed table of a fixed number of bytes.

    Always: used <= capacity < slots, so a search ends; no key's offset ever falls.
    """

    if cython.compiled:
        buffer: Py_buffer
    table: cython.p_uchar
    memory: object
    hash: _KeyHash
    slots: cython.ulonglong
    capacity = cython.declare(cython.Py_ssize_t, visibility="readonly")
    used = cython.declare(cython.Py_ssize_t, visibility="readonly")
    latest_offset = cython.declare(cython.longlong, visibility="readonly")
    # What the last `retain` found.
    kept: cython.Py_ssize_t
    tombstones: cython.Py_ssize_t
    kept_bytes: cython.Py_ssize_t
    max_timestamp: cython.longlong

    def __init__(self, size_bytes: int, seed: bytes, load_factor: float = 0.9):
        slots = size_bytes // SLOT_BYTES
        if slots < 2 or not 0 < load_factor < 1:
            raise ValueError(f"no map fits into {size_bytes} bytes at a load factor of {load_factor}")
        self.hash = _KeyHash(seed)
        self.slots = slots
        self.capacity = max(1, int(slots * load_factor))
        self.memory = mmap.mmap(-1, slots * SLOT_BYTES)  # zeros that take no memory until they are written
        self.used = 0
        self.latest_offset = -1
        if cython.compiled:
            PyObject_GetBuffer(self.memory, cython.address(self.buffer), PyBUF_WRITABLE)
            self.table = cython.cast(cython.p_uchar, self.buffer.buf)
        else:
            self.table = self.memory

    def __dealloc__(self):
        if cython.compiled:
            PyBuffer_Release(cython.address(self.buffer))

    def __len__(self):
        return self.used

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def word(self, index: cython.ulonglong) -> cython.ulonglong:
        word: cython.ulonglong
        if cython.compiled:
            word = cython.cast(cython.pointer[cython.ulonglong], self.table)[index]
        else:
            (word,) = _WORD.unpack_from(self.table, index * 8)
        return word

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def set_word(self, index: cython.ulonglong, word: cython.ulonglong) -> cython.void:
        if cython.compiled:
            cython.cast(cython.pointer[cython.ulonglong], self.table)[index] = word
        else:
            _WORD.pack_into(self.table, index * 8, word)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def find(self) -> cython.ulonglong:
        """The first word of the slot that has the hashed key, or of the empty one where it belongs."""
        slot: cython.ulonglong = self.hash.low % self.slots
        first: cython.ulonglong
        while True:
            first = 3 * slot
            if self.word(first + 2) == 0:
                return first
            if self.word(first) == self.hash.low and self.word(first + 1) == self.hash.high:
                return first
            slot += 1
            if slot == self.slots:
                slot = 0

    def add(self, cursor: Cursor, last_offset: cython.longlong) -> bool:
        """Note the keys of a batch that ends at `last_offset`. False if it may not fit: then none is noted.

        After a CorruptBatchError some may have been; the map is then of no more use.
        """
        if self.used + cursor.record_count > self.capacity:
            return False
        cursor.rewind()
        with cython.nogil:
            self.add_all(cursor)
        cursor.close()
        self.skip_to(last_offset)
        return True

    def skip_to(self, last_offset: cython.longlong) -> None:
        """All up to `last_offset` counts as seen, though it brought no keys: control batches, aborted ones."""
        if last_offset > self.latest_offset:
            self.latest_offset = last_offset

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def add_all(self, cursor: Cursor) -> cython.void:
        first: cython.ulonglong
        mark: cython.ulonglong
        while cursor.next():
            if cursor.key_size < 0:
                continue
            self.hash.digest(cursor.data, cursor.key_at, cursor.key_size)
            first = self.find()
            mark = cython.cast(cython.ulonglong, cursor.offset + 1)
            if self.word(first + 2) == 0:
                self.set_word(first, self.hash.low)
                self.set_word(first + 1, self.hash.high)
                self.used += 1
            if mark > self.word(first + 2):
                self.set_word(first + 2, mark)

    def latest(self, key: bytes):
        """The last offset noted for the key, or None."""
        self.hash.digest(key, 0, len(key))
        mark: cython.ulonglong = self.word(self.find() + 2)
        return None if mark == 0 else mark - 1

    def retain(self, cursor: Cursor, drop_tombstones: cython.bint):
        """Which records of a batch stay: (their bytes, count, tombstones among them, largest timestamp).

        Deltas are relative to the batch, so those that stay keep their bytes as they are. The bytes are None
        when all stay: then they are the payload's own. With no record left the timestamp is -1.
        """
        kept: bytearray = bytearray(cursor.end)
        cursor.rewind()
        if cython.compiled:
            target: cython.p_uchar = kept
            with cython.nogil:
                self.retain_all(cursor, drop_tombstones, target)
        else:
            self.retain_all(cursor, drop_tombstones, kept)
        cursor.close()
        if self.kept == cursor.record_count:
            return None, self.kept, self.tombstones, self.max_timestamp
        return memoryview(kept)[: self.kept_bytes], self.kept, self.tombstones, self.max_timestamp

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def retain_all(self, cursor: Cursor, drop_tombstones: cython.bint, target: cython.p_uchar) -> cython.void:
        size: cython.Py_ssize_t
        self.kept = self.tombstones = self.kept_bytes = 0
        self.max_timestamp = -1
        while cursor.next():
            if not self.stays(cursor, drop_tombstones):
                continue
            size = cursor.at - cursor.start
            if cython.compiled:
                memcpy(target + self.kept_bytes, cursor.data + cursor.start, size)
            else:
                target[self.kept_bytes : self.kept_bytes + size] = cursor.data[cursor.start : cursor.at]
            if self.kept == 0 or cursor.timestamp > self.max_timestamp:
                self.max_timestamp = cursor.timestamp
            self.kept_bytes += size
            self.kept += 1
            if cursor.value_size < 0:
                self.tombstones += 1

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def stays(self, cursor: Cursor, drop_tombstones: cython.bint) -> cython.bint:
        if cursor.offset > self.latest_offset:
            return True  # not seen when the map was filled, so nothing is known about it
        if cursor.key_size < 0 or (drop_tombstones and cursor.value_size < 0):
            return False
        self.hash.digest(cursor.data, cursor.key_at, cursor.key_size)
        return cython.cast(cython.ulonglong, cursor.offset + 1) >= self.word(self.find() + 2)
