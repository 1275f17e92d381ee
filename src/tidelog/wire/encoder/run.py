# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Runs a plan over the values of a message: in one go, or a step at a time where it is large."""

from __future__ import annotations

from typing import Any

import cython

if cython.compiled:
    from cython.cimports.tidelog.wire.encoder.structs import Slot, Struct
    from cython.cimports.tidelog.wire.encoder.values import Array, Codec, Writer
else:
    from tidelog.wire.encoder.structs import Slot, Struct
    from tidelog.wire.encoder.values import Array, Codec, Writer


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
