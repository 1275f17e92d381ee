# The C face of structs.py, for run.py: a struct and its fields, which run.py walks where it writes in steps.

cimport cython

from tidelog.wire.encoder.values cimport Codec, Writer


@cython.final
cdef class Slot:
    cdef str name
    cdef Codec codec
    cdef long long tag
    cdef object default
    cdef bint is_list
    cdef Struct struct
    cdef object member
    cdef Py_ssize_t offset
    cdef Slot next

    cdef object get(self, object message)
    cdef bint is_set(self, object message) except? -1
    cdef bint has_default(self, object message) except? -1


@cython.final
cdef class Struct(Codec):
    cdef object cls
    cdef int version
    cdef bint flexible
    cdef Slot first
    cdef list tags
    cdef list needed
    cdef list all
    cdef Slot unknown
    cdef bint is_deep

    cdef bint is_default(self, object message) except? -1
    cdef int check_type(self, object message) except? -1
    cdef int check_needed(self, object message) except? -1
    cdef int write_tags(self, Writer w, object message) except? -1
    cdef int write_present_tags(self, Writer w, object message, Py_ssize_t count, tuple unknown) except? -1
    cdef int write_unknown(self, Writer w, long long tag, bytes content) except? -1
