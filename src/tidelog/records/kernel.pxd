# The C face of kernel.py, for the compiled modules beside it: what a cursor stands on, and how it steps.

from cpython.buffer cimport Py_buffer


cdef class Cursor:
    cdef Py_buffer buffer
    cdef const unsigned char *data
    cdef Py_ssize_t at
    cdef Py_ssize_t end
    cdef readonly object payload
    cdef readonly Py_ssize_t record_count
    cdef readonly long long base_offset
    cdef long long base_timestamp
    cdef long long append_timestamp
    cdef bint has_append_time
    # Of the record it stands on. A size of -1 is a null; places are positions in the payload.
    cdef Py_ssize_t index
    cdef Py_ssize_t start
    cdef long long offset
    cdef long long timestamp
    cdef Py_ssize_t key_at
    cdef Py_ssize_t key_size
    cdef Py_ssize_t value_at
    cdef Py_ssize_t value_size
    cdef Py_ssize_t header_count
    cdef Py_ssize_t headers_at
    cdef bint broken

    cdef int rewind(self) except -1
    cdef long long varint(self) noexcept nogil
    cdef long long sum(self, long long base, long long delta) noexcept nogil
    cdef Py_ssize_t skip(self, long long size, Py_ssize_t limit) noexcept nogil
    cdef bint next(self) noexcept nogil
    cdef void skip_headers(self, Py_ssize_t limit) noexcept nogil
    cdef int close(self) except -1
    cdef bytes cut(self, Py_ssize_t place, Py_ssize_t size)
    cdef tuple headers(self)
