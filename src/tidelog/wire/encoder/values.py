# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# ruff: noqa: RET505 - Cython takes what stands behind a branch on cython.compiled for unreachable
"""Writes single values: bytes that grow, and a codec for each type but the struct.

The methods of Writer and the codecs that call them stand in one module, for the reason that
`tidelog.wire.decoder.values` gives.
"""

from __future__ import annotations

import struct

import cython

if cython.compiled:
    from cython.cimports.cpython.buffer import Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.cpython.mem import PyMem_Free, PyMem_Realloc
    from cython.cimports.cpython.unicode import PyUnicode_AsUTF8AndSize
    from cython.cimports.libc.string import memcpy

_COPY_BELOW = cython.declare(cython.int, 1024)
"""Records and bytes smaller than this are copied between their neighbours: one more buffer in a gathered write costs as
much."""

_INITIAL_CAPACITY = cython.declare(cython.int, 256)
_MAX_STRING = cython.declare(cython.int, 32767)
_FLOAT64 = struct.Struct(">d")


@cython.final
@cython.cclass
class Writer:
    """Bytes that grow. Where it gathers, large records and large bytes objects, which never change, are not copied but
    remembered with the place they belong to."""

    def __init__(self, gather: cython.bint) -> None:
        self.gather = gather
        self.places = []
        self.apart = []
        self.pos = 0
        if cython.compiled:
            self.capacity = 0
        else:
            self.data = bytearray(_INITIAL_CAPACITY)
            self.capacity = _INITIAL_CAPACITY

    if cython.compiled:

        def __dealloc__(self) -> None:
            PyMem_Free(self.data)

    @cython.cfunc
    @cython.exceptval(-1)
    def room(self, size: cython.Py_ssize_t) -> cython.int:
        if self.capacity - self.pos < size:
            self.grow(size)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def grow(self, size: cython.Py_ssize_t) -> cython.int:
        capacity: cython.Py_ssize_t = max(2 * self.capacity, self.pos + size, _INITIAL_CAPACITY)
        if cython.compiled:
            larger: cython.p_uchar = cython.cast(cython.p_uchar, PyMem_Realloc(self.data, capacity))
            if not larger:
                raise MemoryError
            self.data = larger
        else:
            self.data.extend(bytes(capacity - self.capacity))
        self.capacity = capacity
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def put8(self, value: cython.longlong) -> cython.int:
        self.room(1)
        self.data[self.pos] = value & 0xFF
        self.pos += 1
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def put16(self, value: cython.longlong) -> cython.int:
        self.room(2)
        data: cython.p_uchar = self.data
        pos: cython.Py_ssize_t = self.pos
        data[pos] = (value >> 8) & 0xFF
        data[pos + 1] = value & 0xFF
        self.pos = pos + 2
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def put32(self, value: cython.longlong) -> cython.int:
        self.room(4)
        data: cython.p_uchar = self.data
        pos: cython.Py_ssize_t = self.pos
        data[pos] = (value >> 24) & 0xFF
        data[pos + 1] = (value >> 16) & 0xFF
        data[pos + 2] = (value >> 8) & 0xFF
        data[pos + 3] = value & 0xFF
        self.pos = pos + 4
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def uvarint(self, value: cython.longlong) -> cython.int:
        self.room(5)
        while value > 0x7F:
            self.data[self.pos] = (value & 0x7F) | 0x80
            self.pos += 1
            value >>= 7
        self.data[self.pos] = value
        self.pos += 1
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def length(self, size: cython.longlong, compact: cython.bint, narrow: cython.bint) -> cython.int:
        """A length or count; -1 stands for null."""
        if compact:
            return self.uvarint(size + 1)
        if narrow:
            return self.put16(size)
        if size > 0x7FFFFFFF:
            raise OverflowError(f"a length of {size}")
        return self.put32(size)

    @cython.cfunc
    @cython.exceptval(-1)
    def null(self, nullable: cython.bint, compact: cython.bint, narrow: cython.bint) -> cython.int:
        if not nullable:
            raise TypeError("is None, which this version does not allow")
        return self.length(-1, compact, narrow)

    @cython.cfunc
    @cython.exceptval(-1)
    def copy(self, value: object) -> cython.int:
        if cython.compiled:
            view = cython.declare(Py_buffer)
            PyObject_GetBuffer(value, cython.address(view), PyBUF_SIMPLE)
            try:
                self.room(view.len)
                memcpy(self.data + self.pos, view.buf, view.len)
                self.pos += view.len
            finally:
                PyBuffer_Release(cython.address(view))
        else:
            size = len(value)
            self.room(size)
            self.data[self.pos : self.pos + size] = value
            self.pos += size
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def set_apart(self, value: object) -> cython.int:
        self.places.append(self.pos)
        self.apart.append(value)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def insert_size(self, mark: cython.Py_ssize_t) -> cython.int:
        """Write the size of all that was written since `mark`, which has one free byte, in front of it."""
        size: cython.Py_ssize_t = self.pos - mark - 1
        extra: cython.Py_ssize_t = 0
        while size >> (7 * (extra + 1)):
            extra += 1
        if extra:
            self.room(extra)
            place: cython.Py_ssize_t = self.pos - 1
            while place > mark:
                self.data[place + extra] = self.data[place]
                place -= 1
        self.pos = mark
        self.uvarint(size)
        self.pos = mark + 1 + extra + size
        return 0

    @cython.cfunc
    def piece(self, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> object:
        if cython.compiled:
            return PyBytes_FromStringAndSize(cython.cast(cython.p_char, self.data + start), end - start)
        else:
            return bytes(self.data[start:end])

    @cython.cfunc
    def take(self) -> list:
        """All that was written since the last time, in order; the room is used again."""
        result: list = self.pieces()
        self.places = []
        self.apart = []
        self.pos = 0
        return result

    @cython.cfunc
    def pieces(self) -> list:
        """All of it in order, what was set apart in its place."""
        result: list = []
        start: cython.Py_ssize_t = 0
        i: cython.Py_ssize_t
        for i in range(len(self.apart)):
            place: cython.Py_ssize_t = self.places[i]
            if place > start:
                result.append(self.piece(start, place))
            result.append(self.apart[i])
            start = place
        if start < self.pos:
            result.append(self.piece(start, self.pos))
        return result


@cython.cfunc
def bytes_of(value: object) -> object:
    """The value, or a view of it, whose length is that of its bytes; None if it has none."""
    if isinstance(value, (bytes, bytearray)):
        return value
    try:
        view = memoryview(value)
    except TypeError:
        return None
    if view.format == "B" and view.ndim == 1:
        return value if isinstance(value, memoryview) else view
    return view.cast("B")


@cython.cclass
class Codec:
    """Writes one value."""

    @cython.cfunc
    @cython.exceptval(-1)
    def write(self, w: Writer, value: object) -> cython.int:
        raise NotImplementedError


@cython.final
@cython.cclass
class Bool(Codec):
    @cython.cfunc
    @cython.exceptval(-1)
    def write(self, w: Writer, value: object) -> cython.int:
        return w.put8(1 if value else 0)


@cython.final
@cython.cclass
class Int(Codec):
    """Any of the integers."""

    size: cython.Py_ssize_t
    low: cython.longlong
    high: cython.longlong

    def __init__(self, size: cython.Py_ssize_t, low: cython.longlong, high: cython.longlong) -> None:
        self.size = size
        self.low = low
        self.high = high

    @cython.cfunc
    @cython.exceptval(-1)
    def write(self, w: Writer, value: object) -> cython.int:
        number: cython.longlong = value
        if number < self.low or number > self.high:
            raise OverflowError(f"{value} is not within {self.low} and {self.high}")
        if self.size == 4:
            return w.put32(number)
        if self.size == 2:
            return w.put16(number)
        if self.size == 1:
            return w.put8(number)
        w.put32(number >> 32)
        return w.put32(number)


@cython.final
@cython.cclass
class Float64(Codec):
    @cython.cfunc
    @cython.exceptval(-1)
    def write(self, w: Writer, value: object) -> cython.int:
        return w.copy(_FLOAT64.pack(float(value)))


@cython.final
@cython.cclass
class Uuid(Codec):
    @cython.cfunc
    @cython.exceptval(-1)
    def write(self, w: Writer, value: object) -> cython.int:
        if not isinstance(value, bytes) or len(value) != 16:
            raise TypeError(f"{value!r} is not a UUID, which is 16 bytes")
        return w.copy(value)


@cython.cclass
class Sized(Codec):
    """What has a length before it: compact or not, and perhaps null."""

    def __init__(self, compact: cython.bint, nullable: cython.bint) -> None:
        self.compact = compact
        self.nullable = nullable


@cython.final
@cython.cclass
class String(Sized):
    @cython.cfunc
    @cython.exceptval(-1)
    def write(self, w: Writer, value: object) -> cython.int:
        if value is None:
            return w.null(self.nullable, self.compact, True)
        if not isinstance(value, str):
            raise TypeError(f"{value!r} is not a string")
        size: cython.Py_ssize_t = 0
        if cython.compiled:
            text: cython.p_const_char = PyUnicode_AsUTF8AndSize(value, cython.address(size))
        else:
            encoded = value.encode()
            size = len(encoded)
        if size > _MAX_STRING:
            raise OverflowError(f"a string of {size} bytes, above {_MAX_STRING}")
        w.length(size, self.compact, True)
        if not cython.compiled:
            return w.copy(encoded)
        w.room(size)
        memcpy(w.data + w.pos, text, size)
        w.pos += size
        return 0


@cython.final
@cython.cclass
class Bytes(Sized):
    @cython.cfunc
    @cython.exceptval(-1)
    def write(self, w: Writer, value: object) -> cython.int:
        if value is None:
            return w.null(self.nullable, self.compact, False)
        value = bytes_of(value)
        if value is None:
            raise TypeError("is not made of bytes")
        w.length(len(value), self.compact, False)
        is_apart: cython.bint = w.gather and len(value) >= _COPY_BELOW and type(value) is bytes
        return w.set_apart(value) if is_apart else w.copy(value)


@cython.final
@cython.cclass
class Records(Sized):
    """Bytes that are not copied. What has a length but no bytes yet is set apart too, for the sender to fill in."""

    @cython.cfunc
    @cython.exceptval(-1)
    def write(self, w: Writer, value: object) -> cython.int:
        if value is None:
            return w.null(self.nullable, self.compact, False)
        content = bytes_of(value)
        if content is None:
            if not w.gather:
                raise TypeError(f"{type(value).__name__} has no bytes yet: only encode_parts leaves them to the sender")
            w.length(len(value), self.compact, False)
            return w.set_apart(value)
        w.length(len(content), self.compact, False)
        return w.set_apart(content) if w.gather and len(content) >= _COPY_BELOW else w.copy(content)


@cython.final
@cython.cclass
class Int32Array(Sized):
    @cython.cfunc
    @cython.exceptval(-1)
    def write(self, w: Writer, value: object) -> cython.int:
        if value is None:
            return w.null(self.nullable, self.compact, False)
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"{type(value).__name__} is neither list nor tuple")
        w.length(len(value), self.compact, False)
        w.room(4 * len(value))
        for element in value:
            number: cython.longlong = element
            if number < -0x80000000 or number > 0x7FFFFFFF:
                raise OverflowError(f"{number} is not an int32")
            w.put32(number)
        return 0


@cython.final
@cython.cclass
class Array(Sized):
    """Elements of one kind, structs among them."""

    def __init__(self, compact: cython.bint, nullable: cython.bint, element: Codec) -> None:
        self.compact = compact
        self.nullable = nullable
        self.element = element

    @cython.cfunc
    @cython.exceptval(-1)
    def begin(self, w: Writer, value: object) -> cython.int:
        """What stands before the elements."""
        if value is None:
            return w.null(self.nullable, self.compact, False)
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"{type(value).__name__} is neither list nor tuple")
        return w.length(len(value), self.compact, False)

    @cython.cfunc
    @cython.exceptval(-1)
    def write(self, w: Writer, value: object) -> cython.int:
        self.begin(w, value)
        if value is None:
            return 0
        codec: Codec = self.element
        for element in value:
            codec.write(w, element)
        return 0
