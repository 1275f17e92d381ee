"""Runs the plan of a message over its values: the half that writes. `tidelog.wire.decoder` is its twin.

Divided, built and typed in the same way: `values`, `structs` and `run`, plain Python and C from one source, plans from
`tidelog.wire.plan`.
"""

from tidelog.wire.encoder.run import Encoding, encode, encode_frame, encode_parts
from tidelog.wire.encoder.structs import NullableStruct, Slot, Struct
from tidelog.wire.encoder.values import Array, Bool, Bytes, Float64, Int, Int32Array, Records, String, Uuid

__all__ = [
    "Array",
    "Bool",
    "Bytes",
    "Encoding",
    "Float64",
    "Int",
    "Int32Array",
    "NullableStruct",
    "Records",
    "Slot",
    "String",
    "Struct",
    "Uuid",
    "encode",
    "encode_frame",
    "encode_parts",
]
