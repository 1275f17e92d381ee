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

from tidelog.errors import TooManyElementsError, WireError

if cython.compiled:
    from cython.cimports.cpython.buffer import Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.cpython.unicode import PyUnicode_DecodeUTF8
    from cython.cimports.tidelog.wire.capi import new_instance, slot_is_set, slot_offset, slot_set, view_within

_2_TO_32 = cython.declare(cython.longlong, 0x100000000)
_MAX_STRING = cython.declare(cython.int, 32767)
_MAX_TAGS = cython.declare(cython.int, 1000)
"""Tagged fields of one struct. Kafka declares at most a handful."""
_MAX_UNKNOWN_TAG_BYTES = cython.declare(cython.int, 65536)
"""The content of an unknown tagged field that is longer is skipped and not kept."""
_NO_LIMIT = cython.declare(cython.Py_ssize_t, 0x7FFFFFFFFFFFFFFF)
_FLOAT64 = struct.Struct(">d")


class MalformedError(Exception):
    """Why bytes cannot be read. The struct that meets it adds where, and makes it a WireError."""


@cython.no_gc
@cython.final
@cython.cclass
class Reader:
    """A position in bytes that are being decoded. Holds on to the buffer for as long as it lives.

    The garbage collector does not look into it (no_gc). It clears a memoryview that it finds in garbage, although the
    Reader still has its buffer, and to give that back then crashes the process.
    """

    source: object
    whole: object
    data: cython.p_uchar
    view: Py_buffer
    pos: cython.Py_ssize_t
    end: cython.Py_ssize_t
    limit: cython.Py_ssize_t
    left: cython.Py_ssize_t

    def __init__(self, source: Any, pos: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> None:
        """At most `limit` elements of arrays and tagged fields are read, in all of the message together."""
        self.source = source
        self.whole = None
        self.pos = pos
        self.limit = limit
        self.left = limit
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
    @cython.exceptval(-1)
    def count(self, elements: cython.Py_ssize_t) -> cython.int:
        self.left -= elements
        if self.left < 0:
            raise TooManyElementsError(f"more than {self.limit} elements of arrays and tagged fields")
        return 0

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
        r.count(count)
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
    def begin(self, r: Reader) -> list:
        """The list with room for all elements, or None."""
        count: cython.Py_ssize_t = r.length(self.compact, self.nullable, False)
        if count < 0:
            return None
        if count > (r.end - r.pos) // self.element_size:
            raise MalformedError(f"{count} elements in {r.end - r.pos} bytes")
        r.count(count)
        return [None] * count

    @cython.cfunc
    def read(self, r: Reader) -> object:
        result: list = self.begin(r)
        if result is None:
            return None
        element: Codec = self.element
        i: cython.Py_ssize_t
        for i in range(len(result)):
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
    A struct is deep if arrays are among its ordinary fields: it may be too large to be read in one go.
    """

    cls: object
    version: cython.int
    flexible: cython.bint
    first: Slot
    tags: list
    absent: list
    unknown: Slot
    is_deep: cython.bint

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
        self.is_deep = False
        for each in reversed(present):
            slot: Slot = each
            if isinstance(slot.codec, Array):
                self.is_deep = True
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
        self.set_absent(message)
        return message

    @cython.cfunc
    @cython.exceptval(-1)
    def set_absent(self, message: object) -> cython.int:
        for each in self.absent:
            slot: Slot = cython.cast(Slot, each)
            slot.set_default(message)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def read_tags(self, r: Reader, message: object) -> cython.int:
        if r.pos < r.end and r.data[r.pos] == 0:
            r.pos += 1  # there are none, as in most structs
        else:
            self.read_present_tags(r, message)
        for each in self.tags:
            slot: Slot = cython.cast(Slot, each)
            if not slot.is_set(message):
                slot.set_default(message)
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def read_present_tags(self, r: Reader, message: object) -> cython.int:
        count: cython.longlong = r.uvarint()
        if count > _MAX_TAGS:
            r.need(2 * count)
            raise MalformedError(f"{count} tagged fields in one struct, above {_MAX_TAGS}")
        r.count(count)
        unknown: dict = None
        i: cython.longlong
        for i in range(count):  # noqa: B007
            tag: cython.longlong = r.uvarint()
            size: cython.longlong = r.uvarint()
            r.need(size)
            end: cython.Py_ssize_t = r.pos + size
            slot: Slot = self.slot_of(tag)
            if slot is None and size > _MAX_UNKNOWN_TAG_BYTES:
                r.pos = end
            elif slot is None:
                unknown = unknown if unknown is not None else {}
                unknown[tag] = r.copy(size)
            else:
                slot.set(message, slot.codec.read(r))
            if r.pos != end:
                raise MalformedError(f"tag {tag} takes {r.pos - end + size} bytes where {size} were announced")
        if unknown is not None:
            self.unknown.set(message, tuple(sorted(unknown.items())))
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


@cython.final
@cython.freelist(8)  # one is made for each deep struct, and for each of its arrays
@cython.cclass
class Frame:
    """A struct or an array of which not all is read yet, and the frame around it."""

    struct: Struct
    message: object
    slot: Slot
    array: Array
    elements: list
    index: cython.Py_ssize_t
    around: Frame

    def __init__(self, around: Frame | None) -> None:
        self.around = around
        self.array = None
        self.elements = None
        self.index = 0


@cython.final
@cython.cclass
class Decoding:
    """Reads one message a step at a time, so that a large one need not be read in one go.

    It comes to the same message, or the same error, as `decode`. Between two steps the message is incomplete.
    """

    reader: Reader
    frame: Frame
    budget: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    message: object

    def __init__(self, plan: Struct, source: Any, pos: cython.Py_ssize_t, limit: cython.Py_ssize_t) -> None:
        self.reader = Reader(source, pos, limit)
        self.frame = None
        self.message = self.open_struct(plan)

    def step(self, elements: cython.Py_ssize_t, size: cython.Py_ssize_t) -> Any:
        """Read about so many elements, or so many bytes. The message if it is complete, else None."""
        self.budget = elements
        self.stop = self.reader.pos + size
        while self.frame is not None:
            if self.budget <= 0 or self.reader.pos > self.stop:
                return None
            frame: Frame = self.frame
            try:
                if frame.array is None:
                    self.read_fields(frame)
                else:
                    self.read_elements(frame)
            except (MalformedError, UnicodeDecodeError) as error:
                place: Frame = frame if frame.array is None else frame.around
                name = "tagged fields" if place.slot is None else place.slot.name
                raise WireError(
                    f"{place.struct.cls.__name__} version {place.struct.version}, {name}: {error}"
                ) from None
        return self.message

    @cython.cfunc
    def open_struct(self, struct: Struct) -> object:
        frame: Frame = Frame(self.frame)
        frame.struct = struct
        frame.message = struct.new()
        frame.slot = struct.first
        self.frame = frame
        return frame.message

    @cython.cfunc
    @cython.exceptval(-1)
    def read_fields(self, frame: Frame) -> cython.int:
        """Up to the next array, or to the end of the struct."""
        r: Reader = self.reader
        while frame.slot is not None:
            slot: Slot = frame.slot
            if isinstance(slot.codec, Array):
                array: Array = cython.cast(Array, slot.codec)
                elements: list = array.begin(r)
                slot.set(frame.message, elements)
                if elements:
                    inner: Frame = Frame(frame)
                    inner.array = array
                    inner.elements = elements
                    self.frame = inner
                    return 0
            else:
                slot.set(frame.message, slot.codec.read(r))
            frame.slot = slot.next
        if frame.struct.flexible:
            frame.struct.read_tags(r, frame.message)
        frame.struct.set_absent(frame.message)
        self.frame = frame.around
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def read_elements(self, frame: Frame) -> cython.int:
        """Up to the next deep struct, the end of the step, or the end of the array."""
        r: Reader = self.reader
        codec: Codec = frame.array.element
        while frame.index < len(frame.elements):
            if isinstance(codec, Struct) and cython.cast(Struct, codec).is_deep:
                frame.elements[frame.index] = self.open_struct(cython.cast(Struct, codec))
                frame.index += 1
                self.budget -= 1
                return 0
            left: cython.Py_ssize_t = r.left
            frame.elements[frame.index] = codec.read(r)
            frame.index += 1
            self.budget -= 1 + left - r.left
            if self.budget <= 0 or r.pos > self.stop:
                return 0
        self.frame = frame.around
        self.frame.slot = self.frame.slot.next
        return 0


def decode(plan: Struct, source: Any, pos: cython.Py_ssize_t, limit: cython.Py_ssize_t = _NO_LIMIT) -> Any:
    """The message that begins at `pos`, and the position behind it. TooManyElementsError above `limit` elements."""
    r: Reader = Reader(source, pos, limit)
    if pos < 0 or pos > r.end:
        raise WireError(f"position {pos} is outside the {r.end} bytes given")
    message = plan.read(r)
    return message, r.pos


def decode_whole(plan: Struct, source: Any) -> Any:
    """The message that all the bytes are."""
    r: Reader = Reader(source, 0, _NO_LIMIT)
    message = plan.read(r)
    if r.pos != r.end:
        raise WireError(f"{r.end - r.pos} bytes behind the end of {plan.cls.__name__} version {plan.version}")
    return message


def decode_frame(header_plan: Struct, plan: Struct, source: Any) -> Any:
    """A header and the message behind it, which together are all the bytes."""
    r: Reader = Reader(source, 0, _NO_LIMIT)
    header = header_plan.read(r)
    message = plan.read(r)
    if r.pos != r.end:
        raise WireError(f"{r.end - r.pos} bytes behind the end of {plan.cls.__name__} version {plan.version}")
    return header, message
