# What the compiled decoder and encoder need of CPython that Cython does not declare: instances, slots and
# views without detours. Offsets come from the slot descriptors themselves: the layout of a class is never guessed.
cdef extern from *:
    """
    #include <structmember.h>

    static inline Py_ssize_t slot_offset(PyObject *descriptor) {
        if (Py_TYPE(descriptor) != &PyMemberDescr_Type
                || ((PyMemberDescrObject *)descriptor)->d_member->type != T_OBJECT_EX) {
            PyErr_SetString(PyExc_TypeError, "not the descriptor of a slot");
            return -1;
        }
        return ((PyMemberDescrObject *)descriptor)->d_member->offset;
    }

    static inline PyObject *new_instance(PyObject *cls) {
        return ((PyTypeObject *)cls)->tp_alloc((PyTypeObject *)cls, 0);
    }

    static inline PyObject **slot_at(PyObject *instance, Py_ssize_t offset) {
        return (PyObject **)((char *)instance + offset);
    }

    static inline int slot_is_set(PyObject *instance, Py_ssize_t offset) {
        return *slot_at(instance, offset) != NULL;
    }

    static inline void slot_set(PyObject *instance, Py_ssize_t offset, PyObject *value) {
        PyObject **place = slot_at(instance, offset);
        PyObject *old = *place;
        Py_INCREF(value);
        *place = value;
        Py_XDECREF(old);
    }

    static inline PyObject *slot_get(PyObject *instance, Py_ssize_t offset) {
        PyObject *value = *slot_at(instance, offset);
        if (value == NULL) {
            PyErr_SetString(PyExc_AttributeError, "was deleted");
            return NULL;
        }
        Py_INCREF(value);
        return value;
    }

    static inline PyObject *view_within(PyObject *whole, Py_ssize_t start, Py_ssize_t size) {
        /* A second view of the same buffer has a shape of its own; a slice object is not needed to narrow it. */
        PyObject *view = PyMemoryView_FromObject(whole);
        if (view != NULL) {
            Py_buffer *buffer = PyMemoryView_GET_BUFFER(view);
            buffer->buf = (char *)buffer->buf + start;
            buffer->len = size;
            buffer->shape[0] = size;
        }
        return view;
    }
    """
    Py_ssize_t slot_offset(object descriptor) except -1
    object new_instance(object cls)
    bint slot_is_set(object instance, Py_ssize_t offset)
    void slot_set(object instance, Py_ssize_t offset, object value)
    object slot_get(object instance, Py_ssize_t offset)
    object view_within(object whole, Py_ssize_t start, Py_ssize_t size)
