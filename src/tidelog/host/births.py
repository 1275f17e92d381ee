"""When a file or directory was made, in the words of its file system; Python does not tell it on Linux."""

from __future__ import annotations

import ctypes
import os
import struct

_CURRENT_DIRECTORY = -100
_BIRTH_TIME = 0x800
_STATX_BYTES = 256
_MASK = struct.Struct("=I")
_TIME = struct.Struct("=qI")
_TIME_AT = 80
"""The position of stx_btime in struct statx."""


def birth_of(path: str) -> str:
    """Seconds and nanoseconds; empty if the file system does not tell. A copy always gets a birth time of its own."""
    told = getattr(os.stat(path), "st_birthtime", None)
    if told is not None:
        return str(told)
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    try:
        statx = ctypes.CDLL(None, use_errno=True).statx
    except (OSError, AttributeError):
        return ""  # an old C library
    if statx(_CURRENT_DIRECTORY, os.fsencode(path), 0, _BIRTH_TIME, answer) != 0:
        return ""
    (known,) = _MASK.unpack_from(answer)
    seconds, nanoseconds = _TIME.unpack_from(answer, _TIME_AT)
    return f"{seconds}.{nanoseconds:09d}" if known & _BIRTH_TIME else ""
