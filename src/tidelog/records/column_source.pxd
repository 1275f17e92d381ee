# The C face of column_source.py, for the encoder: columns, and how a row of them is found.

from cpython.buffer cimport Py_buffer


cdef class ArrowBuffer:
    cdef Py_buffer buffer
    cdef const unsigned char *data
    cdef Py_ssize_t size
    cdef bint held

    cdef long long number(self, Py_ssize_t row, int width) noexcept nogil


cdef class BinarySource:
    cdef ArrowBuffer offsets
    cdef ArrowBuffer bytes
    cdef ArrowBuffer validity
    cdef Py_ssize_t start
    cdef int width
    # Of the row that was located last.
    cdef Py_ssize_t place
    cdef Py_ssize_t size

    cdef bint locate(self, Py_ssize_t row) noexcept nogil


cdef class ColumnSource:
    cdef readonly Py_ssize_t count
    cdef ArrowBuffer timestamps
    cdef ArrowBuffer offsets
    cdef BinarySource keys
    cdef BinarySource values
    cdef ArrowBuffer header_ends
    cdef BinarySource header_keys
    cdef BinarySource header_values
    cdef Py_ssize_t number_start
    cdef Py_ssize_t header_start
    cdef Py_ssize_t header_rows
    cdef bint has_headers
    cdef bint has_offsets

    cdef long long timestamp(self, Py_ssize_t row) noexcept nogil
    cdef long long offset(self, Py_ssize_t row) noexcept nogil
    cdef Py_ssize_t first_header(self, Py_ssize_t row) noexcept nogil
