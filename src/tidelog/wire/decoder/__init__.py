"""Runs the plan of a message over bytes: the half that reads.

A plan is a tree of codecs, one tree for each message and version (`tidelog.wire.plan` builds them). `values` has the
reader and the codecs of single values and arrays, `structs` those of structs, and `run` takes a plan and bytes and
gives the message. All are written in Cython's pure Python mode: the same source runs as plain Python, where only the
branches on `cython.compiled` differ. Those use the C API to make instances and reach their slots without attribute
lookup (`capi.pxd`). The types in there are C's; the `.pyi` beside each module says what they are to Python, and the
`.pxd` what the others may reach from C.
"""

from tidelog.wire.decoder.run import Decoding, decode, decode_frame, decode_whole
from tidelog.wire.decoder.structs import NullableStruct, Slot, Struct
from tidelog.wire.decoder.values import Array, Bool, Bytes, Float64, Int, Int32Array, Records, String, Uuid

__all__ = [
    "Array",
    "Bool",
    "Bytes",
    "Decoding",
    "Float64",
    "Int",
    "Int32Array",
    "NullableStruct",
    "Records",
    "Slot",
    "String",
    "Struct",
    "Uuid",
    "decode",
    "decode_frame",
    "decode_whole",
]
