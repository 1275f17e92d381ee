# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# ruff: noqa: RET505 - Cython takes what stands behind a branch on cython.compiled for unreachable
"""Runs compiled message plans over bytes.

A plan is a tree of codecs, one tree for each message and version (`tidelog.wire.plan` builds them). Written in Cython's
pure Python mode: the same source runs as plain Python, where only the branches on `cython.compiled` differ. Those use
the C API to make instances and reach their slots without attribute lookup. It is one module, long as it is, so that
the C compiler sees all of it and inlines; its types are C's, and `engine.pyi` says what they are to Python.

Decoding trusts nothing: every length is compared with the bytes that are left before anything is made of it.
"""

from __future__ import annotations

import struct
from typing import Any

import cython

from tidelog.errors import UnsupportedVersionError, WireError

if cython.compiled:
    from cython.cimports.cpython.buffer import Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.cpython.mem import PyMem_Free, PyMem_Realloc
    from cython.cimports.cpython.unicode import PyUnicode_AsUTF8AndSize, PyUnicode_DecodeUTF8
    from cython.cimports.libc.string import memcpy
    from cython.cimports.tidelog.wire.capi import new_instance, slot_get, slot_is_set, slot_offset, slot_set

_COPY_BELOW = cython.declare(cython.int, 1024)
"""Records smaller than this are copied between their neighbours: one more buffer in a gathered write costs as much."""

_2_TO_32 = cython.declare(cython.longlong, 0x100000000)
_FLOAT64 = struct.Struct(">d")
_MAX_STRING = cython.declare(cython.int, 32767)
_INITIAL_CAPACITY = cython.declare(cython.int, 256)


class MalformedError(Exception):
    """Why bytes cannot be read. The struct that meets it adds where, and makes it a WireError."""


@cython.final
@cython.cclass
class Reader:
    """A position in bytes that are being decoded. Holds on to the buffer for as long as it lives."""

    source: object
    whole: object
    data: cython.p_uchar
    view: Py_buffer
    pos: cython.Py_ssize_t
    end: cython.Py_ssize_t

    def __init__(self, source: Any, pos: cython.Py_ssize_t) -> None:
        self.source = source
        self.whole = None
        self.pos = pos
        if cython.compiled:
            PyObject_GetBuffer(source, cython.address(self.view), PyBUF_SIMPLE)
            self.data = cython.cast(cython.p_uchar, self.view.buf)
            self.end = self.view.len
        else:
            self.data = memoryview(source).cast("B")
            self.end = len(self.data)

    if cython.compiled:

        def __dealloc__(self) -> None:
            PyBuffer_Release(cython.address(self.view))

    @cython.cfunc
    @cython.exceptval(-1)
    def need(self, size: cython.Py_ssize_t) -> cython.int:
        if self.end - self.pos < size:
            self.fall_short(size)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def fall_short(self, size: cython.Py_ssize_t) -> cython.int:
        raise MalformedError(f"{size} bytes wanted where {self.end - self.pos} are left")

    @cython.cfunc
    @cython.exceptval(-129)
    def int8(self) -> cython.int:
        self.need(1)
        value: cython.int = self.data[self.pos]
        self.pos += 1
        return value - 256 if value > 127 else value

    @cython.cfunc
    @cython.exceptval(-1)
    def uint16(self) -> cython.int:
        self.need(2)
        data: cython.p_uchar = self.data
        pos: cython.Py_ssize_t = self.pos
        value: cython.int = (data[pos] << 8) | data[pos + 1]
        self.pos = pos + 2
        return value

    @cython.cfunc
    @cython.exceptval(-1)
    def uint32(self) -> cython.longlong:
        self.need(4)
        data: cython.p_uchar = self.data
        pos: cython.Py_ssize_t = self.pos
        high: cython.uint = data[pos]
        value: cython.uint = (high << 24) | (data[pos + 1] << 16) | (data[pos + 2] << 8) | data[pos + 3]
        self.pos = pos + 4
        return value

    @cython.cfunc
    @cython.exceptval(-0x8001)
    def int16(self) -> cython.int:
        value: cython.int = self.uint16()
        return value - 0x10000 if value > 0x7FFF else value

    @cython.cfunc
    @cython.exceptval(-0x80000001)
    def int32(self) -> cython.longlong:
        value: cython.longlong = self.uint32()
        return value - _2_TO_32 if value > 0x7FFFFFFF else value

    @cython.cfunc
    @cython.exceptval(-0x7FFFFFFFFFFFFFFF, check=True)
    def int64(self) -> cython.longlong:
        high: cython.longlong = self.int32()
        return high * _2_TO_32 + self.uint32()

    @cython.cfunc
    @cython.exceptval(-1)
    def uvarint(self) -> cython.longlong:
        value: cython.longlong = 0
        shift: cython.int = 0
        while True:
            self.need(1)
            byte: cython.longlong = self.data[self.pos]
            self.pos += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 28:
                raise MalformedError("a varint of more than five bytes")
        if value > 0xFFFFFFFF:
            raise MalformedError("a varint of more than 32 bits")
        return value

    @cython.cfunc
    @cython.exceptval(-2)
    def length(self, compact: cython.bint, nullable: cython.bint, narrow: cython.bint) -> cython.longlong:
        """A length or count before what it counts; -1 for null."""
        size: cython.longlong
        if compact:
            size = self.uvarint() - 1
        elif narrow:
            size = self.int16()
        else:
            size = self.int32()
        if size >= 0:
            return size
        if size != -1:
            raise MalformedError(f"a length of {size}")
        if not nullable:
            raise MalformedError("null, which this version does not allow")
        return -1

    @cython.cfunc
    def copy(self, size: cython.Py_ssize_t) -> object:
        self.need(size)
        pos: cython.Py_ssize_t = self.pos
        self.pos = pos + size
        if cython.compiled:
            return PyBytes_FromStringAndSize(cython.cast(cython.p_char, self.data + pos), size)
        else:
            return bytes(self.data[pos : pos + size])

    @cython.cfunc
    def cut(self, size: cython.Py_ssize_t) -> object:
        """A view of the bytes: they stay where they are."""
        self.need(size)
        if self.whole is None:
            whole = memoryview(self.source)
            self.whole = whole if whole.format == "B" else whole.cast("B")
        pos: cython.Py_ssize_t = self.pos
        self.pos = pos + size
        return self.whole[pos : pos + size]


@cython.final
@cython.cclass
class Writer:
    """Bytes that grow. Where it gathers, large records are not copied but remembered with the place they belong to."""

    data: cython.p_uchar
    pos: cython.Py_ssize_t
    capacity: cython.Py_ssize_t
    gather: cython.bint
    places: list
    apart: list

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


@cython.cclass
class Codec:
    """Reads and writes one value. `min_size` is what its shortest encoding takes."""

    min_size: cython.Py_ssize_t

    def __init__(self, min_size: cython.Py_ssize_t) -> None:
        self.min_size = min_size

    @cython.cfunc
    def read(self, r: Reader) -> object:
        raise NotImplementedError

    @cython.cfunc
    @cython.exceptval(-1)
    def write(self, w: Writer, value: object) -> cython.int:
        raise NotImplementedError


@cython.final
@cython.cclass
class Bool(Codec):
    @cython.cfunc
    def read(self, r: Reader) -> object:
        return r.int8() != 0

    @cython.cfunc
    @cython.exceptval(-1)
    def write(self, w: Writer, value: object) -> cython.int:
        return w.put8(1 if value else 0)


@cython.final
@cython.cclass
class Int(Codec):
    """Any of the integers; `min_size` tells how wide."""

    low: cython.longlong
    high: cython.longlong

    def __init__(self, size: cython.Py_ssize_t, low: cython.longlong, high: cython.longlong) -> None:
        self.min_size = size
        self.low = low
        self.high = high

    @cython.cfunc
    def read(self, r: Reader) -> object:
        if self.min_size == 4:
            return r.int32() if self.low else r.uint32()
        if self.min_size == 8:
            return r.int64()
        if self.min_size == 2:
            return r.int16() if self.low else r.uint16()
        return r.int8()

    @cython.cfunc
    @cython.exceptval(-1)
    def write(self, w: Writer, value: object) -> cython.int:
        number: cython.longlong = value
        if number < self.low or number > self.high:
            raise OverflowError(f"{value} is not within {self.low} and {self.high}")
        if self.min_size == 4:
            return w.put32(number)
        if self.min_size == 2:
            return w.put16(number)
        if self.min_size == 1:
            return w.put8(number)
        w.put32(number >> 32)
        return w.put32(number)


@cython.final
@cython.cclass
class Float64(Codec):
    @cython.cfunc
    def read(self, r: Reader) -> object:
        return _FLOAT64.unpack(r.copy(8))[0]

    @cython.cfunc
    @cython.exceptval(-1)
    def write(self, w: Writer, value: object) -> cython.int:
        return w.copy(_FLOAT64.pack(float(value)))


@cython.final
@cython.cclass
class Uuid(Codec):
    @cython.cfunc
    def read(self, r: Reader) -> object:
        return r.copy(16)

    @cython.cfunc
    @cython.exceptval(-1)
    def write(self, w: Writer, value: object) -> cython.int:
        if not isinstance(value, bytes) or len(value) != 16:
            raise TypeError(f"{value!r} is not a UUID, which is 16 bytes")
        return w.copy(value)


@cython.cclass
class Sized(Codec):
    """What has a length before it: compact or not, and perhaps null."""

    compact: cython.bint
    nullable: cython.bint

    def __init__(self, min_size: cython.Py_ssize_t, compact: cython.bint, nullable: cython.bint) -> None:
        self.min_size = min_size
        self.compact = compact
        self.nullable = nullable


@cython.final
@cython.cclass
class String(Sized):
    @cython.cfunc
    def read(self, r: Reader) -> object:
        size: cython.Py_ssize_t = r.length(self.compact, self.nullable, True)
        if size < 0:
            return None
        if size > _MAX_STRING:
            raise MalformedError(f"a string of {size} bytes")
        r.need(size)
        pos: cython.Py_ssize_t = r.pos
        r.pos = pos + size
        if cython.compiled:
            return PyUnicode_DecodeUTF8(cython.cast(cython.p_char, r.data + pos), size, cython.NULL)
        else:
            return str(r.data[pos : pos + size], "utf-8")

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
    def read(self, r: Reader) -> object:
        size: cython.Py_ssize_t = r.length(self.compact, self.nullable, False)
        return r.copy(size) if size >= 0 else None

    @cython.cfunc
    @cython.exceptval(-1)
    def write(self, w: Writer, value: object) -> cython.int:
        if value is None:
            return w.null(self.nullable, self.compact, False)
        view = memoryview(value)
        w.length(view.nbytes, self.compact, False)
        return w.copy(view if view.format == "B" else view.cast("B"))


@cython.final
@cython.cclass
class Records(Sized):
    """Bytes that are not copied. What has a length but no bytes yet is set apart too, for the sender to fill in."""

    @cython.cfunc
    def read(self, r: Reader) -> object:
        size: cython.Py_ssize_t = r.length(self.compact, self.nullable, False)
        return r.cut(size) if size >= 0 else None

    @cython.cfunc
    @cython.exceptval(-1)
    def write(self, w: Writer, value: object) -> cython.int:
        if value is None:
            return w.null(self.nullable, self.compact, False)
        size: cython.Py_ssize_t = len(value)
        if isinstance(value, (bytes, bytearray)) or (isinstance(value, memoryview) and value.format == "B"):
            w.length(size, self.compact, False)
            return w.set_apart(value) if w.gather and size >= _COPY_BELOW else w.copy(value)
        if not w.gather:
            raise TypeError(f"{type(value).__name__} has no bytes yet: only encode_parts leaves them to the sender")
        w.length(size, self.compact, False)
        return w.set_apart(value)


@cython.final
@cython.cclass
class Int32Array(Sized):
    """The array that metadata is full of."""

    @cython.cfunc
    def read(self, r: Reader) -> object:
        count: cython.Py_ssize_t = r.length(self.compact, self.nullable, False)
        if count < 0:
            return None
        if count > (r.end - r.pos) // 4:
            raise MalformedError(f"{count} elements in {r.end - r.pos} bytes")
        result: list = [None] * count
        i: cython.Py_ssize_t
        for i in range(count):
            result[i] = r.int32()
        return result

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
    element: Codec
    element_size: cython.Py_ssize_t

    def __init__(
        self, min_size: cython.Py_ssize_t, compact: cython.bint, nullable: cython.bint, element: Codec
    ) -> None:
        self.min_size = min_size
        self.compact = compact
        self.nullable = nullable
        self.element = element
        # An element that takes no bytes could be claimed without end; none is declared, and none would be believed.
        self.element_size = max(element.min_size, 1)

    @cython.cfunc
    def read(self, r: Reader) -> object:
        count: cython.Py_ssize_t = r.length(self.compact, self.nullable, False)
        if count < 0:
            return None
        if count > (r.end - r.pos) // self.element_size:
            raise MalformedError(f"{count} elements in {r.end - r.pos} bytes")
        element: Codec = self.element
        result: list = [None] * count
        i: cython.Py_ssize_t
        for i in range(count):
            result[i] = element.read(r)
        return result

    @cython.cfunc
    @cython.exceptval(-1)
    def write(self, w: Writer, value: object) -> cython.int:
        if value is None:
            return w.null(self.nullable, self.compact, False)
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"{type(value).__name__} is neither list nor tuple")
        w.length(len(value), self.compact, False)
        codec: Codec = self.element
        for element in value:
            codec.write(w, element)
        return 0


@cython.final
@cython.cclass
class Slot:
    """One field of a struct in one version: where its value is kept, how it is coded, what it is by default."""

    name: str
    codec: Codec
    tag: cython.longlong
    offset: cython.Py_ssize_t
    default: object
    is_list: cython.bint
    struct: Struct

    def __init__(self, cls: Any, name: str, codec: Codec | None, tag: cython.longlong, default: Any) -> None:
        """A default that is a list or a Struct is made anew for each message."""
        self.name = name
        self.codec = codec
        self.tag = tag
        self.default = default
        self.is_list = isinstance(default, list)
        self.struct = default if isinstance(default, Struct) else None
        if cython.compiled:
            self.offset = slot_offset(cls.__dict__[name])

    @cython.cfunc
    def get(self, message: object) -> object:
        if cython.compiled:
            return slot_get(message, self.offset)
        else:
            return getattr(message, self.name)

    @cython.cfunc
    @cython.exceptval(-1)
    def set(self, message: object, value: object) -> cython.int:
        if cython.compiled:
            slot_set(message, self.offset, value)
        else:
            setattr(message, self.name, value)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def is_set(self, message: object) -> cython.bint:
        if cython.compiled:
            return slot_is_set(message, self.offset)
        else:
            return hasattr(message, self.name)

    @cython.cfunc
    @cython.exceptval(-1)
    def set_default(self, message: object) -> cython.int:
        if self.is_list:
            return self.set(message, [])
        if self.struct is not None:
            return self.set(message, self.struct.default_instance())
        return self.set(message, self.default)

    @cython.cfunc
    @cython.exceptval(-1)
    def has_default(self, message: object) -> cython.bint:
        value = self.get(message)
        if self.is_list:
            return value is not None and len(value) == 0
        if self.struct is not None:
            return value is not None and self.struct.is_default(value)
        return value is self.default or value == self.default


@cython.final
@cython.cclass
class Struct(Codec):
    """A message or struct in one version.

    `present` are the ordinary fields in their order, `tags` the tagged ones by ascending tag, `absent` those the
    version lacks, `needed` the absent ones that must not hold anything but their default.
    """

    cls: object
    version: cython.int
    flexible: cython.bint
    present: list
    tags: list
    absent: list
    needed: list
    unknown: Slot

    def __init__(self, cls: Any, version: cython.int, flexible: cython.bint) -> None:
        self.cls = cls
        self.version = version
        self.flexible = flexible
        self.unknown = Slot(cls, "_unknown", None, -1, ())

    def fill(self, present: list, tags: list, absent: list, needed: list) -> None:
        """The slots come after the codec itself, for some defaults are made by codecs of inner structs."""
        self.present = present
        self.tags = tags
        self.absent = absent
        self.needed = needed
        self.min_size = 1 if self.flexible else 0
        for each in present:
            slot: Slot = each
            self.min_size += slot.codec.min_size

    @cython.cfunc
    def new(self) -> object:
        if cython.compiled:
            return new_instance(self.cls)
        else:
            return self.cls.__new__(self.cls)

    @cython.cfunc
    def default_instance(self) -> object:
        message = self.new()
        for slots in (self.present, self.tags, self.absent):
            for each in slots:
                slot: Slot = each
                slot.set_default(message)
        return message

    @cython.cfunc
    @cython.exceptval(-1)
    def is_default(self, message: object) -> cython.bint:
        self.check_type(message)
        if self.unknown.is_set(message):
            return False
        for slots in (self.present, self.tags, self.absent):
            for each in slots:
                slot: Slot = each
                if not slot.has_default(message):
                    return False
        return True

    @cython.cfunc
    @cython.exceptval(-1)
    def check_type(self, message: object) -> cython.int:
        """Before any slot is touched: slots are reached by their offset in the class."""
        if type(message) is not self.cls and not isinstance(message, self.cls):
            raise TypeError(f"a {type(message).__name__} where a {self.cls.__name__} belongs")
        return 0

    @cython.cfunc
    def read(self, r: Reader) -> object:
        message = self.new()
        slot: Slot = self.unknown
        try:
            for each in self.present:
                slot = cython.cast(Slot, each)
                slot.set(message, slot.codec.read(r))
            slot = self.unknown
            if self.flexible:
                self.read_tags(r, message)
        except (MalformedError, UnicodeDecodeError) as error:
            name = "tagged fields" if slot is self.unknown else slot.name
            raise WireError(f"{self.cls.__name__} version {self.version}, {name}: {error}") from None
        for each in self.absent:
            slot = cython.cast(Slot, each)
            slot.set_default(message)
        return message

    @cython.cfunc
    @cython.exceptval(-1)
    def read_tags(self, r: Reader, message: object) -> cython.int:
        count: cython.longlong = r.uvarint()
        unknown: dict = None
        i: cython.longlong
        for i in range(count):  # noqa: B007
            tag: cython.longlong = r.uvarint()
            size: cython.longlong = r.uvarint()
            r.need(size)
            end: cython.Py_ssize_t = r.pos + size
            slot: Slot = self.slot_of(tag)
            if slot is None:
                unknown = unknown if unknown is not None else {}
                unknown[tag] = r.copy(size)
            else:
                slot.set(message, slot.codec.read(r))
            if r.pos != end:
                raise MalformedError(f"tag {tag} takes {r.pos - end + size} bytes where {size} were announced")
        if unknown is not None:
            self.unknown.set(message, tuple(sorted(unknown.items())))
        for each in self.tags:
            slot = cython.cast(Slot, each)
            if not slot.is_set(message):
                slot.set_default(message)
        return 0

    @cython.cfunc
    def slot_of(self, tag: cython.longlong) -> Slot:
        for each in self.tags:
            slot: Slot = cython.cast(Slot, each)
            if slot.tag == tag:
                return slot
        return None

    @cython.cfunc
    @cython.exceptval(-1)
    def write(self, w: Writer, message: object) -> cython.int:
        self.check_type(message)
        slot: Slot = self.unknown
        try:
            for each in self.needed:
                slot = cython.cast(Slot, each)
                if not slot.has_default(message):
                    raise UnsupportedVersionError(
                        f"{self.cls.__name__}.{slot.name} is {slot.get(message)!r}, but version {self.version} lacks it"
                    )
            for each in self.present:
                slot = cython.cast(Slot, each)
                slot.codec.write(w, slot.get(message))
            if self.flexible:
                self.write_tags(w, message)
        except (TypeError, OverflowError, UnicodeEncodeError, AttributeError, BufferError) as error:
            raise ValueError(f"{self.cls.__name__}.{slot.name}, version {self.version}: {error}") from error
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def write_tags(self, w: Writer, message: object) -> cython.int:
        count: cython.Py_ssize_t = 0
        for each in self.tags:
            slot: Slot = cython.cast(Slot, each)
            if not slot.has_default(message):
                count += 1
        unknown: tuple = self.unknown.get(message) if self.unknown.is_set(message) else ()
        w.uvarint(count + len(unknown))
        if count == 0 and len(unknown) == 0:
            return 0
        rest: list = list(unknown)
        for each in self.tags:
            slot = cython.cast(Slot, each)
            if slot.has_default(message):
                continue
            while rest and rest[0][0] < slot.tag:
                tag, content = rest.pop(0)
                self.write_unknown(w, tag, content)
            w.uvarint(slot.tag)
            mark: cython.Py_ssize_t = w.pos
            w.put8(0)
            slot.codec.write(w, slot.get(message))
            w.insert_size(mark)
        for tag, content in rest:
            self.write_unknown(w, tag, content)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def write_unknown(self, w: Writer, tag: cython.longlong, content: bytes) -> cython.int:
        w.uvarint(tag)
        w.uvarint(len(content))
        return w.copy(content)


@cython.final
@cython.cclass
class NullableStruct(Codec):
    """A struct that may be missing: one byte says so, -1 for null and 1 for what follows."""

    struct: Struct

    def __init__(self, struct: Struct) -> None:
        self.min_size = 1
        self.struct = struct

    @cython.cfunc
    def read(self, r: Reader) -> object:
        mark: cython.int = r.int8()
        if mark == -1:
            return None
        if mark != 1:
            raise MalformedError(f"{mark} where 1 or -1 tells whether a struct follows")
        return self.struct.read(r)

    @cython.cfunc
    @cython.exceptval(-1)
    def write(self, w: Writer, value: object) -> cython.int:
        if value is None:
            return w.put8(-1)
        w.put8(1)
        return self.struct.write(w, value)


def decode(plan: Struct, source: Any, pos: cython.Py_ssize_t) -> Any:
    """The message that begins at `pos`, and the position behind it."""
    r: Reader = Reader(source, pos)
    if pos < 0 or pos > r.end:
        raise WireError(f"position {pos} is outside the {r.end} bytes given")
    message = plan.read(r)
    return message, r.pos


def decode_whole(plan: Struct, source: Any) -> Any:
    """The message that all the bytes are."""
    r: Reader = Reader(source, 0)
    message = plan.read(r)
    if r.pos != r.end:
        raise WireError(f"{r.end - r.pos} bytes behind the end of {plan.cls.__name__} version {plan.version}")
    return message


def decode_frame(header_plan: Struct, plan: Struct, source: Any) -> Any:
    """A header and the message behind it, which together are all the bytes."""
    r: Reader = Reader(source, 0)
    header = header_plan.read(r)
    message = plan.read(r)
    if r.pos != r.end:
        raise WireError(f"{r.end - r.pos} bytes behind the end of {plan.cls.__name__} version {plan.version}")
    return header, message


def encode(plan: Struct, message: Any) -> bytes:
    w: Writer = Writer(False)
    plan.write(w, message)
    return w.piece(0, w.pos)


def encode_parts(plan: Struct, message: Any) -> list[Any]:
    w: Writer = Writer(True)
    plan.write(w, message)
    return w.pieces()


def encode_frame(header_plan: Struct, header: Any, plan: Struct, message: Any) -> list[Any]:
    """Size, header and message, as parts."""
    w: Writer = Writer(True)
    w.put32(0)
    header_plan.write(w, header)
    plan.write(w, message)
    end: cython.Py_ssize_t = w.pos
    size: cython.longlong = end - 4
    for part in w.apart:
        size += len(part)
    if size > 0x7FFFFFFF:
        raise ValueError(f"a frame of {size} bytes, above what its size field holds")
    w.pos = 0
    w.put32(size)
    w.pos = end
    return w.pieces()
