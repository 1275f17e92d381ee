"""Messages to bytes and back: the bodies, without headers. Whole frames are in `tidelog.wire.frames`."""

from __future__ import annotations

import sys
from collections.abc import Sized
from typing import Any, TypeVar, cast

from tidelog.types import Buffer
from tidelog.wire import decoder, encoder
from tidelog.wire.plan import decoder_of, encoder_of
from tidelog.wire.schema import Message

M = TypeVar("M", bound=Message)


def encode(message: Message, version: int) -> bytes:
    """The message in that version.

    UnsupportedVersionError if there is no such version, or if a field that it lacks and that is not ignorable holds
    something else than its default; ValueError, naming the field, for what its type cannot hold.
    """
    return encoder.encode(encoder_of(type(message), version), message)


def encode_parts(message: Message, version: int) -> list[Any]:
    """Like `encode`, in parts to be sent one after the other; records are among them as they are, not copied.

    A part is a Buffer, or what `records_to_come` was given.
    """
    return encoder.encode_parts(encoder_of(type(message), version), message)


def records_to_come(region: Sized) -> Buffer:
    """Takes something with a length, say a region of a file, as records whose bytes only the sender will have.

    `encode_parts` writes its length and passes the object through as a part of its own.
    """
    return cast(Buffer, region)


def decode(message: type[M], data: Buffer, version: int) -> M:
    """The message that the bytes are, to the last one; else WireError.

    Records are views of `data`, which must not change while they are in use. All else is copied.
    """
    return cast(M, decoder.decode_whole(decoder_of(message, version), data))


def decode_from(
    message: type[M], data: Buffer, version: int, position: int = 0, max_elements: int = sys.maxsize
) -> tuple[M, int]:
    """The message that begins at a position, and the position behind it: what follows is not looked at.

    TooManyElementsError if its arrays and tagged fields have more elements in all than are allowed.
    """
    return cast(tuple[M, int], decoder.decode(decoder_of(message, version), data, position, max_elements))
