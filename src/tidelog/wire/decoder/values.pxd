# The C face of values.py, for the modules beside it: their calls are calls of C, and they reach what a Reader holds.

cimport cython
from cpython.buffer cimport Py_buffer


@cython.final
cdef class Reader:
    cdef object source
    cdef object whole
    cdef unsigned char *data
    cdef Py_buffer view
    cdef Py_ssize_t pos
    cdef Py_ssize_t end
    cdef Py_ssize_t limit
    cdef Py_ssize_t left

    cdef int need(self, Py_ssize_t size) except? -1
    cdef int fall_short(self, Py_ssize_t size) except? -1
    cdef int count(self, Py_ssize_t elements) except? -1
    cdef int int8(self) except? -129
    cdef int uint16(self) except? -1
    cdef long long uint32(self) except? -1
    cdef int int16(self) except? -0x8001
    cdef long long int32(self) except? -0x80000001
    cdef long long int64(self) except? -0x7FFFFFFFFFFFFFFF
    cdef long long uvarint(self) except? -1
    cdef long long long_uvarint(self) except? -1
    cdef long long length(self, bint compact, bint nullable, bint narrow) except? -2
    cdef object copy(self, Py_ssize_t size)
    cdef object cut(self, Py_ssize_t size)


cdef class Codec:
    cdef Py_ssize_t min_size

    cdef object read(self, Reader r)


cdef class Sized(Codec):
    cdef bint compact
    cdef bint nullable


@cython.final
cdef class Array(Sized):
    cdef Codec element
    cdef Py_ssize_t element_size

    cdef list begin(self, Reader r)
