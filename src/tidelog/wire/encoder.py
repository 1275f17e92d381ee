# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# ruff: noqa: RET505 - Cython takes what stands behind a branch on cython.compiled for unreachable
"""Runs the plan of a message over its values: the half that writes. `tidelog.wire.decoder` is its twin.

Built and typed in the same way: plain Python and C from one source, plans from `tidelog.wire.plan`.
"""

from __future__ import annotations

import struct
from typing import Any

import cython

from tidelog.errors import UnsupportedVersionError

if cython.compiled:
    from cython.cimports.cpython.buffer import Py_buffer, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.cpython.mem import PyMem_Free, PyMem_Realloc
    from cython.cimports.cpython.unicode import PyUnicode_AsUTF8AndSize
    from cython.cimports.libc.string import memcpy
    from cython.cimports.tidelog.wire.capi import slot_get, slot_is_set, slot_offset

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

    compact: cython.bint
    nullable: cython.bint

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
    element: Codec

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


@cython.final
@cython.cclass
class Slot:
    """One field of a struct in one version: where its value is, how it is written, what it is by default."""

    name: str
    codec: Codec
    tag: cython.longlong
    default: object
    is_list: cython.bint
    struct: Struct
    member: object
    offset: cython.Py_ssize_t
    next: Slot

    def __init__(self, member: Any, name: str, codec: Codec | None, tag: cython.longlong, default: Any) -> None:
        """`member` is the descriptor of the slot. The default is a value, an empty list, or the Struct of defaults."""
        self.name = name
        self.codec = codec
        self.tag = tag
        self.default = default
        self.is_list = isinstance(default, list)
        self.struct = default if isinstance(default, Struct) else None
        self.member = member
        self.next = None
        if cython.compiled:
            self.offset = slot_offset(member)

    @cython.cfunc
    def get(self, message: object) -> object:
        if self.struct is not None:
            return getattr(message, self.name)  # it may not have been made yet
        if cython.compiled:
            return slot_get(message, self.offset)
        else:
            return self.member.__get__(message)

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
    def has_default(self, message: object) -> cython.bint:
        if self.struct is not None and not self.is_set(message):
            return True
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

    `first` leads to the ordinary fields in their order, `tags` are the tagged ones by ascending tag, `needed` those
    the version lacks and that must not hold anything but their default. A struct is deep if arrays are among its
    ordinary fields: it may be too large to be written in one go.
    """

    cls: object
    version: cython.int
    flexible: cython.bint
    first: Slot
    tags: list
    needed: list
    all: list
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
        self.needed = needed
        self.all = present + tags + absent
        self.first = None
        self.is_deep = False
        for each in reversed(present):
            slot: Slot = each
            slot.next = self.first
            self.first = slot
            if isinstance(slot.codec, Array):
                self.is_deep = True

    @cython.cfunc
    @cython.exceptval(-1)
    def is_default(self, message: object) -> cython.bint:
        self.check_type(message)
        if self.unknown.is_set(message):
            return False
        for each in self.all:
            slot: Slot = cython.cast(Slot, each)
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
    @cython.exceptval(-1)
    def check_needed(self, message: object) -> cython.int:
        for each in self.needed:
            slot: Slot = cython.cast(Slot, each)
            if not slot.has_default(message):
                raise UnsupportedVersionError(
                    f"{self.cls.__name__}.{slot.name} is {slot.get(message)!r}, but version {self.version} lacks it"
                )
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def write(self, w: Writer, message: object) -> cython.int:
        self.check_type(message)
        slot: Slot = self.unknown
        try:
            self.check_needed(message)
            slot = self.first
            while slot is not None:
                slot.codec.write(w, slot.get(message))
                slot = slot.next
            if self.flexible:
                self.write_tags(w, message)
        except (TypeError, OverflowError, UnicodeEncodeError, AttributeError, BufferError) as error:
            name = "tagged fields" if slot is None else slot.name
            raise ValueError(f"{self.cls.__name__} version {self.version}, {name}: {error}") from error
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def write_tags(self, w: Writer, message: object) -> cython.int:
        unknown: tuple = self.unknown.get(message) if self.unknown.is_set(message) else ()
        count: cython.Py_ssize_t = len(unknown)
        for each in self.tags:
            slot: Slot = cython.cast(Slot, each)
            if not slot.has_default(message):
                count += 1
        if count > 0:
            return self.write_present_tags(w, message, count, unknown)
        if w.pos == w.capacity:
            w.grow(1)
        w.data[w.pos] = 0  # there are none, as in most structs
        w.pos += 1
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def write_present_tags(self, w: Writer, message: object, count: cython.Py_ssize_t, unknown: tuple) -> cython.int:
        w.uvarint(count)
        rest: list = list(unknown)
        gather: cython.bint = w.gather
        for each in self.tags:
            slot: Slot = cython.cast(Slot, each)
            if slot.has_default(message):
                continue
            while rest and rest[0][0] < slot.tag:
                tag, content = rest.pop(0)
                self.write_unknown(w, tag, content)
            w.uvarint(slot.tag)
            mark: cython.Py_ssize_t = w.pos
            w.put8(0)
            w.gather = False  # its size has to be known
            slot.codec.write(w, slot.get(message))
            w.gather = gather
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
        self.struct = struct

    @cython.cfunc
    @cython.exceptval(-1)
    def write(self, w: Writer, value: object) -> cython.int:
        if value is None:
            return w.put8(-1)
        w.put8(1)
        return self.struct.write(w, value)


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


@cython.final
@cython.freelist(8)  # one is made for each deep struct, and for each of its arrays
@cython.cclass
class Frame:
    """A struct or an array of which not all is written yet, and the frame around it."""

    struct: Struct
    message: object
    slot: Slot
    array: Array
    elements: object
    index: cython.Py_ssize_t
    around: Frame

    def __init__(self, around: Frame | None) -> None:
        self.around = around
        self.array = None
        self.elements = None
        self.index = 0


@cython.final
@cython.cclass
class Encoding:
    """Writes the frame of one message a step at a time; it comes to the same bytes as `encode_frame`.

    The message must not change meanwhile. What each step has written becomes a part of its own, so nothing is copied
    again when the last step is done.
    """

    writer: Writer
    frame: Frame
    parts: list
    size: cython.longlong
    budget: cython.Py_ssize_t

    def __init__(self, header_plan: Struct, header: Any, plan: Struct, message: Any) -> None:
        self.writer = Writer(True)
        self.parts = [b""]
        self.size = 0
        self.frame = None
        header_plan.write(self.writer, header)
        self.open_struct(plan, message)

    def step(self, elements: cython.Py_ssize_t, size: cython.Py_ssize_t) -> Any:
        """Write about so many elements, or so many bytes. The parts, as of `encode_frame`, if it is complete."""
        self.budget = elements
        while self.frame is not None and self.budget > 0 and self.writer.pos < size:
            frame: Frame = self.frame
            place: Frame = frame if frame.array is None else frame.around
            try:
                if frame.array is None:
                    self.write_fields(frame)
                else:
                    self.write_elements(frame, size)
            except (TypeError, OverflowError, UnicodeEncodeError, AttributeError, BufferError) as error:
                name = "tagged fields" if place.slot is None else place.slot.name
                raise ValueError(
                    f"{place.struct.cls.__name__} version {place.struct.version}, {name}: {error}"
                ) from error
        for part in self.writer.take():
            self.size += len(part)
            self.parts.append(part)
        if self.frame is not None:
            return None
        if self.size > 0x7FFFFFFF:
            raise ValueError(f"a frame of {self.size} bytes, above what its size field holds")
        self.writer.put32(self.size)
        self.parts[0] = self.writer.piece(0, 4)
        return self.parts

    @cython.cfunc
    @cython.exceptval(-1)
    def open_struct(self, struct: Struct, message: object) -> cython.int:
        struct.check_type(message)
        struct.check_needed(message)
        frame: Frame = Frame(self.frame)
        frame.struct = struct
        frame.message = message
        frame.slot = struct.first
        self.frame = frame
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def write_fields(self, frame: Frame) -> cython.int:
        """Up to the next array, or to the end of the struct."""
        w: Writer = self.writer
        while frame.slot is not None:
            slot: Slot = frame.slot
            value = slot.get(frame.message)
            if value and isinstance(slot.codec, Array):
                inner: Frame = Frame(frame)
                inner.array = cython.cast(Array, slot.codec)
                inner.array.begin(w, value)
                inner.elements = value
                self.frame = inner
                return 0
            slot.codec.write(w, value)
            frame.slot = slot.next
        if frame.struct.flexible:
            frame.struct.write_tags(w, frame.message)
        self.frame = frame.around
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def write_elements(self, frame: Frame, size: cython.Py_ssize_t) -> cython.int:
        """Up to the next deep struct, the end of the step, or the end of the array."""
        w: Writer = self.writer
        codec: Codec = frame.array.element
        while frame.index < len(frame.elements):
            element = frame.elements[frame.index]
            frame.index += 1
            self.budget -= 1
            if isinstance(codec, Struct) and cython.cast(Struct, codec).is_deep:
                return self.open_struct(cython.cast(Struct, codec), element)
            codec.write(w, element)
            if self.budget <= 0 or w.pos >= size:
                return 0
        self.frame = frame.around
        self.frame.slot = self.frame.slot.next
        return 0
