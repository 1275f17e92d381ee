# cython: language_level=3
# ruff: noqa: RET505 - Cython takes what stands behind a branch on cython.compiled for unreachable
"""Memory to decompress into. Its bytes are whatever was there before, and pages that stay unused take no memory.

To give many megabytes back to the kernel takes tens of milliseconds, in which Python's own types hold the GIL and so
the broker's loop. A large room is given back without it.
"""

from __future__ import annotations

import mmap

import cython

if cython.compiled:
    from cython.cimports.cpython.buffer import PyBuffer_FillInfo
    from cython.cimports.libc.stdlib import free, malloc
    from cython.cimports.posix.mman import MAP_ANONYMOUS, MAP_FAILED, MAP_PRIVATE, PROT_READ, PROT_WRITE, munmap
    from cython.cimports.posix.mman import mmap as map_memory

COMPILED = cython.compiled

_MAPPED_BYTES = cython.declare(cython.size_t, 4 * 1024 * 1024 + 1)
"""From here on a room has a mapping of its own, so that all of it goes back when it is done with. Smaller ones are used
again, because the first touch of a new page can cost more than what is decompressed into it."""


@cython.final
@cython.cclass
class _Room:
    """A writable buffer."""

    size: cython.size_t
    memory: cython.p_void

    def __cinit__(self, size: cython.size_t):
        self.size = size
        self.memory = cython.NULL
        if size < _MAPPED_BYTES:
            self.memory = malloc(size if size > 0 else 1)
        else:
            self.memory = map_memory(cython.NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
            if self.memory == MAP_FAILED:
                self.memory = cython.NULL
        if self.memory == cython.NULL:
            raise MemoryError(f"no memory for {size} bytes of records")

    def __dealloc__(self):
        if self.memory == cython.NULL:
            return
        if self.size < _MAPPED_BYTES:
            free(self.memory)
        else:
            with cython.nogil:
                munmap(self.memory, self.size)

    def __getbuffer__(self, buffer: cython.pointer[Py_buffer], flags: cython.int):  # noqa: F821
        PyBuffer_FillInfo(buffer, self, self.memory, self.size, False, flags)


def room(size: cython.size_t) -> memoryview:
    """So many bytes to write to."""
    if cython.compiled:
        return memoryview(_Room(size))
    else:
        return memoryview(mmap.mmap(-1, size) if size >= _MAPPED_BYTES else bytearray(size))
