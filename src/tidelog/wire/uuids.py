"""Kafka's UUIDs: 16 bytes on the wire, and in memory here; base64url without padding where people read them."""

from __future__ import annotations

import base64
import binascii

ZERO_UUID = bytes(16)
"""No UUID."""


def uuid_text(uuid: bytes) -> str:
    """As Kafka prints it, 22 characters."""
    return base64.urlsafe_b64encode(uuid).rstrip(b"=").decode("ascii")


def parse_uuid(text: str) -> bytes:
    """The 16 bytes; ValueError if the text is not a UUID as Kafka prints it."""
    standard = text.translate({ord("-"): "+", ord("_"): "/", ord("+"): "?", ord("/"): "?"})
    try:
        uuid = base64.b64decode(standard + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{text!r} is not a UUID in base64url") from error
    if len(uuid) != 16:
        raise ValueError(f"{text!r} holds {len(uuid)} bytes, a UUID has 16")
    return uuid
