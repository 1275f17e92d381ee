# The C face of values.py, for the modules beside it: their calls are calls of C, and they reach what a Writer holds.

cimport cython


@cython.final
cdef class Writer:
    cdef unsigned char *data
    cdef Py_ssize_t pos
    cdef Py_ssize_t capacity
    cdef bint gather
    cdef list places
    cdef list apart

    cdef int room(self, Py_ssize_t size) except? -1
    cdef int grow(self, Py_ssize_t size) except? -1
    cdef int put8(self, long long value) except? -1
    cdef int put16(self, long long value) except? -1
    cdef int put32(self, long long value) except? -1
    cdef int uvarint(self, long long value) except? -1
    cdef int length(self, long long size, bint compact, bint narrow) except? -1
    cdef int null(self, bint nullable, bint compact, bint narrow) except? -1
    cdef int copy(self, object value) except? -1
    cdef int set_apart(self, object value) except? -1
    cdef int insert_size(self, Py_ssize_t mark) except? -1
    cdef object piece(self, Py_ssize_t start, Py_ssize_t end)
    cdef list take(self)
    cdef list pieces(self)


cdef class Codec:
    cdef int write(self, Writer w, object value) except? -1


cdef class Sized(Codec):
    cdef bint compact
    cdef bint nullable


@cython.final
cdef class Array(Sized):
    cdef Codec element

    cdef int begin(self, Writer w, object value) except? -1
