# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Which partition the rows of a key column go to: Kafka's murmur2, by which all clients put a key in the same place.

Compiled like kernel.py, on whose columns' sources it stands.
"""

from __future__ import annotations

import struct

import cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING
    from cython.cimports.tidelog.records.column_source import BinarySource
else:
    from tidelog.records.column_source import BinarySource

COMPILED = cython.compiled

_SEED = cython.declare(cython.uint, 0x9747B28C)
_M = cython.declare(cython.uint, 0x5BD1E995)
_MASK = cython.declare(cython.uint, 0xFFFFFFFF)
_NUMBER = struct.Struct("=i")


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _times_m(number: cython.uint) -> cython.uint:
    """In 32 bits, which C does by itself."""
    return number * _M if cython.compiled else number * _M & _MASK


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _murmur2(
    data: cython.pointer[cython.const[cython.uchar]], place: cython.Py_ssize_t, size: cython.Py_ssize_t
) -> cython.uint:
    h: cython.uint = _SEED ^ cython.cast(cython.uint, size & _MASK)
    k: cython.uint
    end: cython.Py_ssize_t = place + (size & ~3)
    left: cython.Py_ssize_t = size & 3
    while place < end:
        k = data[place]
        k |= cython.cast(cython.uint, data[place + 1]) << 8
        k |= cython.cast(cython.uint, data[place + 2]) << 16
        k |= cython.cast(cython.uint, data[place + 3]) << 24
        k = _times_m(k)
        k ^= k >> 24
        h = _times_m(h) ^ _times_m(k)
        place += 4
    if left:
        k = data[place]
        if left > 1:
            k |= cython.cast(cython.uint, data[place + 1]) << 8
        if left > 2:
            k |= cython.cast(cython.uint, data[place + 2]) << 16
        h = _times_m(h ^ k)
    h ^= h >> 13
    h = _times_m(h)
    return h ^ (h >> 15)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _fill(
    keys: BinarySource, rows: cython.Py_ssize_t, partitions: cython.int, keyless: cython.int, into: cython.p_uchar
) -> cython.Py_ssize_t:
    """The first row whose offsets do not lie within the column, or `rows`."""
    row: cython.Py_ssize_t
    number: cython.int
    for row in range(rows):
        if not keys.locate(row):
            return row
        number = keyless
        if keys.size >= 0:
            number = cython.cast(
                cython.int, (_murmur2(keys.bytes.data, keys.place, keys.size) & 0x7FFFFFFF) % partitions
            )
        if cython.compiled:
            cython.cast(cython.pointer[cython.int], into)[row] = number
        else:
            _NUMBER.pack_into(into, row * 4, number)
    return rows


def key_partitions(column, rows: cython.Py_ssize_t, partitions: cython.int, keyless: cython.int = -1) -> bytearray:
    """A 32-bit number per row of the column: its key's partition among so many, or `keyless` where it has none."""
    if partitions <= 0:
        raise ValueError(f"a topic has at least one partition, not {partitions}")
    keys: BinarySource = BinarySource(column, rows)
    found: bytearray = bytearray(4 * rows)
    into: cython.p_uchar
    if cython.compiled:
        into = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(found))
    else:
        into = found
    done: cython.Py_ssize_t
    with cython.nogil:
        done = _fill(keys, rows, partitions, keyless, into)
    if done < rows:
        raise ValueError(f"row {done} of the key column lies outside of its data")
    return found
