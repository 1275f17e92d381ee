"""How the C library keeps memory that was freed.

glibc gives freed memory back to the kernel early: large pieces at once, others as soon as a little more than 100 kB
lies free. A broker takes a buffer of up to a megabyte for each request and frees it with the answer, so nearly every
page of every request was taken from the kernel anew and zeroed: up to half of the processor time of a produce in large
batches.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""mallopt's names, M_TRIM_THRESHOLD and M_MMAP_THRESHOLD."""
KEPT_BYTES = 64 * 1024 * 1024
_KEPT_PIECE_BYTES = 32 * 1024 * 1024
"""The largest that glibc takes."""
_BY_ENVIRONMENT = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed() -> bool:
    """Up to KEPT_BYTES at the end of the heap stay with the process. False if the C library does not know how, or if
    the environment says something else."""
    if any(name in os.environ for name in _BY_ENVIRONMENT):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(_MMAP_THRESHOLD, _KEPT_PIECE_BYTES))
