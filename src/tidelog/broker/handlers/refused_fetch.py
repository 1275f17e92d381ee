"""The answer to an OffsetFetch with too many elements: INVALID_REQUEST for each group that it names.

From v8 on the answer has no error but those of its groups, and a client whose connection is closed would send the same
again for ever. So the names of the groups are read and all else is skipped, the partitions of a topic in one step.
"""

from __future__ import annotations

from tidelog.errors import ErrorCode
from tidelog.groups import MAX_GROUP_ID
from tidelog.types import Buffer
from tidelog.wire.frames import request_body
from tidelog.wire.messages.group_offsets import OffsetFetchResponse, OffsetFetchResponseGroup

_MANY_GROUPS, _MEMBERS, _TOPIC_IDS = 8, 9, 10
"""The versions that brought them."""
_MOST_STEPS = 20_000
"""Groups and topics that are looked at. A request that has more is not of a client that reads partitions."""
_MOST_SHIFT = 28
_EPOCH_BYTES, _INDEX_BYTES, _ID_BYTES = 4, 4, 16


def refused_fetch(frame: Buffer, version: int) -> OffsetFetchResponse | None:
    """None if its groups cannot be read."""
    if version < _MANY_GROUPS:
        return None
    try:
        names = _Body(request_body(frame), version).group_ids()
    except (IndexError, ValueError):
        return None
    groups = [OffsetFetchResponseGroup(group_id=name, error_code=ErrorCode.INVALID_REQUEST) for name in names]
    return OffsetFetchResponse(groups=groups)


class _Body:
    """The bytes behind the header. IndexError if there are too few, ValueError if they make no sense."""

    def __init__(self, data: memoryview, version: int) -> None:
        self._data = data
        self._version = version
        self._position = 0
        self._steps_left = _MOST_STEPS

    def group_ids(self) -> list[str]:
        names: dict[str, None] = {}
        for _ in range(self._count()):
            names[self._group_id()] = None
            if self._version >= _MEMBERS:
                self._take(self._count())
                self._take(_EPOCH_BYTES)
            for _ in range(self._count()):
                self._take(_ID_BYTES if self._version >= _TOPIC_IDS else self._count())
                self._take(_INDEX_BYTES * self._count())
                self._skip_tags()
            self._skip_tags()
        return list(names)

    def _group_id(self) -> str:
        name = str(self._take(self._count()), "utf-8")
        if len(name) > MAX_GROUP_ID:
            raise ValueError("no group has such a long name")
        return name

    def _count(self) -> int:
        """A length or count of a compact field; nothing for null."""
        self._steps_left -= 1
        if self._steps_left < 0:
            raise ValueError("too many groups and topics")
        return max(self._uvarint() - 1, 0)

    def _skip_tags(self) -> None:
        for _ in range(self._uvarint()):
            self._count()
            self._take(self._uvarint())

    def _uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._position]
            self._position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > _MOST_SHIFT:
                raise ValueError("a varint of more than five bytes")

    def _take(self, size: int) -> memoryview:
        start, self._position = self._position, self._position + size
        if self._position > len(self._data):
            raise IndexError("the request ends within a field")
        return self._data[start : self._position]
