# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Runs a plan over bytes: in one go, or a step at a time where a message is large."""

from __future__ import annotations

from typing import Any

import cython

from tidelog.errors import WireError
from tidelog.wire.decoder.values import MalformedError

if cython.compiled:
    from cython.cimports.tidelog.wire.decoder.structs import Slot, Struct
    from cython.cimports.tidelog.wire.decoder.values import Array, Codec, Reader
else:
    from tidelog.wire.decoder.structs import Slot, Struct
    from tidelog.wire.decoder.values import Array, Codec, Reader

_NO_LIMIT = cython.declare(cython.Py_ssize_t, 0x7FFFFFFFFFFFFFFF)


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
