# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
# ruff: noqa: RET505 - Cython takes what stands behind a branch on cython.compiled for unreachable
"""Reads structs: the fields of a version in their order, the tagged ones, and defaults for the others."""

from __future__ import annotations

from typing import Any

import cython

from tidelog.errors import WireError
from tidelog.wire.decoder.values import MalformedError

if cython.compiled:
    from cython.cimports.tidelog.wire.capi import new_instance, slot_is_set, slot_offset, slot_set
    from cython.cimports.tidelog.wire.decoder.values import Array, Codec, Reader
else:
    from tidelog.wire.decoder.values import Array, Codec, Reader

_MAX_TAGS = cython.declare(cython.int, 1000)
"""Tagged fields of one struct. Kafka declares at most a handful."""
_MAX_UNKNOWN_TAG_BYTES = cython.declare(cython.int, 65536)
"""The content of an unknown tagged field that is longer is skipped and not kept."""


@cython.final
@cython.cclass
class Slot:
    """One field of a struct in one version: where its value goes, how it is read, what it is by default."""

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
