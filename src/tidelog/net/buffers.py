# cython: language_level=3
# ruff: noqa: RET505 - Cython takes what stands behind a branch on cython.compiled for unreachable
"""Memory for what is about to be read: its bytes are whatever was there before."""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.cpython.bytearray import PyByteArray_FromStringAndSize


def blank(size: int) -> bytearray:
    """A bytearray without the cost of zeroing it; of a large one only what is written ever takes memory.

    So a client that announces a large request and does not send it costs an address range.
    """
    if cython.compiled:
        return PyByteArray_FromStringAndSize(cython.NULL, size)
    else:
        return bytearray(size)
