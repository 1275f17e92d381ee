# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# ruff: noqa: RET505 - Cython takes what stands behind a branch on cython.compiled for unreachable
"""Runs the plan of a message over bytes: the half that reads.

A plan is a tree of codecs, one tree for each message and version (`tidelog.wire.plan` builds them). Written in Cython's
pure Python mode: the same source runs as plain Python, where only the branches on `cython.compiled` differ. Those use
the C API to make instances and reach their slots without attribute lookup (`capi.pxd`). The types in here are C's;
`decoder.pyi` says what they are to Python.

Nothing is trusted: every length is compared with the bytes that are left before anything is made of it.
"""

from __future__ import annotations

import struct
from typing import Any

import cython

from tidelog.errors import WireError

if cython.compiled:
    from cython.cimports.cpython.buffer import Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.cpython.unicode import PyUnicode_DecodeUTF8
    from cython.cimports.tidelog.wire.capi import new_instance, slot_is_set, slot_offset, slot_set, view_within

_2_TO_32 = cython.declare(cython.longlong, 0x100000000)
_MAX_STRING = cython.declare(cython.int, 32767)
_FLOAT64 = struct.Struct(">d")


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
        if self.pos < self.end and self.data[self.pos] < 0x80:
            self.pos += 1
            return self.data[self.pos - 1]
        return self.long_uvarint()

    @cython.cfunc
    @cython.exceptval(-1)
    def long_uvarint(self) -> cython.longlong:
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
            self.whole = whole if whole.format == "B" and whole.ndim == 1 else whole.cast("B")
        pos: cython.Py_ssize_t = self.pos
        self.pos = pos + size
        if cython.compiled:
            return view_within(self.whole, pos, size)
        else:
            return self.whole[pos : pos + size]


@cython.cclass
class Codec:
    """Reads one value. `min_size` is what its shortest encoding takes."""

    min_size: cython.Py_ssize_t

    @cython.cfunc
    def read(self, r: Reader) -> object:
        raise NotImplementedError


@cython.final
@cython.cclass
class Bool(Codec):
    def __init__(self) -> None:
        self.min_size = 1

    @cython.cfunc
    def read(self, r: Reader) -> object:
        return r.int8() != 0


@cython.final
@cython.cclass
class Int(Codec):
    """Any of the integers; `min_size` tells how wide."""

    signed: cython.bint

    def __init__(self, size: cython.Py_ssize_t, low: cython.longlong, high: cython.longlong) -> None:
        self.min_size = size
        self.signed = low < 0

    @cython.cfunc
    def read(self, r: Reader) -> object:
        if self.min_size == 4:
            return r.int32() if self.signed else r.uint32()
        if self.min_size == 8:
            return r.int64()
        if self.min_size == 2:
            return r.int16() if self.signed else r.uint16()
        return r.int8()


@cython.final
@cython.cclass
class Float64(Codec):
    def __init__(self) -> None:
        self.min_size = 8

    @cython.cfunc
    def read(self, r: Reader) -> object:
        return _FLOAT64.unpack(r.copy(8))[0]


@cython.final
@cython.cclass
class Uuid(Codec):
    def __init__(self) -> None:
        self.min_size = 16

    @cython.cfunc
    def read(self, r: Reader) -> object:
        return r.copy(16)


@cython.cclass
class Sized(Codec):
    """What has a length before it: compact or not, and perhaps null."""

    compact: cython.bint
    nullable: cython.bint

    def __init__(self, compact: cython.bint, nullable: cython.bint) -> None:
        self.compact = compact
        self.nullable = nullable
        self.min_size = 1 if compact else 4


@cython.final
@cython.cclass
class String(Sized):
    def __init__(self, compact: cython.bint, nullable: cython.bint) -> None:
        self.compact = compact
        self.nullable = nullable
        self.min_size = 1 if compact else 2

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


@cython.final
@cython.cclass
class Bytes(Sized):
    @cython.cfunc
    def read(self, r: Reader) -> object:
        size: cython.Py_ssize_t = r.length(self.compact, self.nullable, False)
        return r.copy(size) if size >= 0 else None


@cython.final
@cython.cclass
class Records(Sized):
    """Bytes that stay where they are."""

    @cython.cfunc
    def read(self, r: Reader) -> object:
        size: cython.Py_ssize_t = r.length(self.compact, self.nullable, False)
        return r.cut(size) if size >= 0 else None


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


@cython.final
@cython.cclass
class Array(Sized):
    element: Codec
    element_size: cython.Py_ssize_t

    def __init__(self, compact: cython.bint, nullable: cython.bint, element: Codec) -> None:
        self.compact = compact
        self.nullable = nullable
        self.min_size = 1 if compact else 4
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


@cython.final
@cython.cclass
class Slot:
    """One field of a struct in one version: where its value goes, how it is read, what it is by default."""

    name: str
    codec: Codec
    tag: cython.longlong
    default: object
    is_list: cython.bint
    is_struct: cython.bint
    member: object
    offset: cython.Py_ssize_t
    next: Slot

    def __init__(self, member: Any, name: str, codec: Codec | None, tag: cython.longlong, default: Any) -> None:
        """`member` is the descriptor of the slot. A default that is a list or a Struct is made anew each time."""
        self.name = name
        self.codec = codec
        self.tag = tag
        self.default = default
        self.is_list = isinstance(default, list)
        self.is_struct = isinstance(default, Struct)
        self.member = member
        self.next = None
        if cython.compiled:
            self.offset = slot_offset(member)

    @cython.cfunc
    @cython.exceptval(-1)
    def set(self, message: object, value: object) -> cython.int:
        if cython.compiled:
            slot_set(message, self.offset, value)
        else:
            self.member.__set__(message, value)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def is_set(self, message: object) -> cython.bint:
        if cython.compiled:
            return slot_is_set(message, self.offset)
        else:
            try:
                self.member.__get__(message)
            except AttributeError:
                return False
            return True

    @cython.cfunc
    @cython.exceptval(-1)
    def set_default(self, message: object) -> cython.int:
        """A struct is not made before it is asked for (`tidelog.wire.schema.StructMember`)."""
        if self.is_list:
            return self.set(message, [])
        if not self.is_struct:
            return self.set(message, self.default)
        return 0


@cython.final
@cython.cclass
class Struct(Codec):
    """A message or struct in one version.

    `first` leads to the ordinary fields in their order; `tags` are the tagged ones, `absent` those the version lacks.
    """

    cls: object
    version: cython.int
    flexible: cython.bint
    first: Slot
    tags: list
    absent: list
    unknown: Slot

    def __init__(self, cls: Any, version: cython.int, flexible: cython.bint) -> None:
        self.cls = cls
        self.version = version
        self.flexible = flexible
        self.unknown = Slot(cls.__dict__["_unknown"], "_unknown", None, -1, ())

    def fill(self, present: list, tags: list, absent: list, needed: list) -> None:
        """The slots come when the codecs of inner structs are there."""
        self.tags = tags
        self.absent = absent
        self.first = None
        self.min_size = 1 if self.flexible else 0
        for each in reversed(present):
            slot: Slot = each
            slot.next = self.first
            self.first = slot
            self.min_size += slot.codec.min_size

    @cython.cfunc
    def new(self) -> object:
        if cython.compiled:
            return new_instance(self.cls)
        else:
            return self.cls.__new__(self.cls)

    @cython.cfunc
    def read(self, r: Reader) -> object:
        message = self.new()
        slot: Slot = None
        try:
            slot = self.first
            while slot is not None:
                slot.set(message, slot.codec.read(r))
                slot = slot.next
            if self.flexible:
                self.read_tags(r, message)
        except (MalformedError, UnicodeDecodeError) as error:
            name = "tagged fields" if slot is None else slot.name
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
