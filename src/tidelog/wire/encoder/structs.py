# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# ruff: noqa: RET505 - Cython takes what stands behind a branch on cython.compiled for unreachable
"""Writes structs: the fields of a version in their order, and the tagged ones that hold more than their default."""

from __future__ import annotations

from typing import Any

import cython

from tidelog.errors import UnsupportedVersionError

if cython.compiled:
    from cython.cimports.tidelog.wire.capi import slot_get, slot_is_set, slot_offset
    from cython.cimports.tidelog.wire.encoder.values import Array, Codec, Writer
else:
    from tidelog.wire.encoder.values import Array, Codec, Writer


@cython.final
@cython.cclass
class Slot:
    """One field of a struct in one version: where its value is, how it is written, what it is by default."""

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
