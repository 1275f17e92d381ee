# The C face of structs.py, for run.py: a struct and its fields, which run.py walks where it reads in steps.

cimport cython

from tidelog.wire.decoder.values cimport Codec, Reader


@cython.final
cdef class Slot:
    cdef str name
    cdef Codec codec
    cdef long long tag
    cdef object default
    cdef bint is_list
    cdef bint is_struct
    cdef object member
    cdef Py_ssize_t offset
    cdef Slot next

    cdef int set(self, object message, object value) except? -1
    cdef bint is_set(self, object message) except? -1
    cdef int set_default(self, object message) except? -1


@cython.final
cdef class Struct(Codec):
    cdef object cls
    cdef int version
    cdef bint flexible
    cdef Slot first
    cdef list tags
    cdef list absent
    cdef Slot unknown
    cdef bint is_deep

    cdef object new(self)
    cdef int set_absent(self, object message) except? -1
    cdef int read_tags(self, Reader r, object message) except? -1
    cdef int read_present_tags(self, Reader r, object message) except? -1
    cdef Slot slot_of(self, long long tag)
