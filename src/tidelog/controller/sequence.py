"""The order of one controller's requests to one broker, told with the requests themselves (edge case 42).

Arrival does not tell it: when the controller gives up on a connection and sends a request again on the next one, the
bytes of the first may still be delivered, after those of newer requests. So each LeaderAndIsr, UpdateMetadata and
StopReplica carries a sequence number. It rises with each request that a broker is sent in one controller epoch, and a
request that is sent again keeps its number. A broker applies no request whose number is below one that it has seen in
the same controller epoch.

The number travels as a tagged field that Kafka's definitions do not have. Kafka's brokers skip it (KIP-482), and the
requests of Kafka's controllers come without it.
"""

from __future__ import annotations

import struct

from tidelog.wire.schema import Message

SEQUENCE_TAG = 0x746C
"""The letters "tl". Kafka numbers the tags of a message from 0 on, and none of these three has more than one."""

NO_SEQUENCE = -1
"""The number of a request that carries none."""

_NUMBER = struct.Struct(">q")


def set_sequence(request: Message, sequence: int) -> None:
    request.set_unknown_tagged_field(SEQUENCE_TAG, _NUMBER.pack(sequence))


def sequence_of(request: Message) -> int:
    """NO_SEQUENCE for a request of Kafka's controller, or if the tag holds something else than a number."""
    for tag, content in request.unknown_tagged_fields:
        if tag == SEQUENCE_TAG and len(content) == _NUMBER.size:
            (sequence,) = _NUMBER.unpack(content)
            return max(int(sequence), NO_SEQUENCE)
    return NO_SEQUENCE
