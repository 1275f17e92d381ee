"""Kafka's protocol: a schema language, the declarations of all messages, and the codecs compiled from them.

`schema` explains the language and `messages` are written in it; `plan` compiles a declaration, and `decoder` and
`encoder` run what it makes; `codec` has encode and decode for bodies, `frames` for what crosses a connection, `stored`
for what lies in Kafka's internal topics; `api` is the table of all APIs.
"""

from tidelog.wire.api import API, Api, all_messages, message_class
from tidelog.wire.codec import decode, decode_from, encode, encode_parts, records_to_come
from tidelog.wire.schema import Message
from tidelog.wire.uuids import ZERO_UUID, parse_uuid, uuid_text

__all__ = [
    "API",
    "ZERO_UUID",
    "Api",
    "Message",
    "all_messages",
    "decode",
    "decode_from",
    "encode",
    "encode_parts",
    "message_class",
    "parse_uuid",
    "records_to_come",
    "uuid_text",
]
