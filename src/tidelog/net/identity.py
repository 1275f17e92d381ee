"""Whether a request comes from another broker, as far as its first bytes tell.

Nothing proves it: on a listener without authentication any client can call itself a broker. So what brokers get
beyond others is bounded too (see `room` and `admission`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection

from tidelog.types import Buffer

_HEADER = struct.Struct(">hhih")
"""API key, version, correlation id and the length of the client id: the same in every version of the header."""
HEADER_BYTES = _HEADER.size
_CLIENT_ID = re.compile(rb"broker-\d+-|controller\Z")
"""What tidelog's brokers and its controller call themselves, and Kafka's fetchers (broker-1-fetcher-0)."""
_LONGEST_PREFIX = 24
BEGINNING_BYTES = HEADER_BYTES + _LONGEST_PREFIX
"""So much of a request shows whether it is a broker's."""


def is_of_broker(frame: Buffer, broker_keys: Collection[int]) -> bool:
    """It is a request that only brokers send, or the client id is a broker's. Some bytes of the body may be missing."""
    if len(frame) < HEADER_BYTES:
        return False
    key, _, _, length = _HEADER.unpack_from(frame)
    if key in broker_keys:
        return True
    end = HEADER_BYTES + max(0, min(length, _LONGEST_PREFIX))
    return _CLIENT_ID.match(bytes(memoryview(frame)[HEADER_BYTES:end])) is not None
