"""A fetch session with one broker (KIP-227): after a first full fetch, only what changed is sent. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from tidelog.errors import ErrorCode
from tidelog.types import Epoch, Offset, TopicPartition

NO_SESSION = 0
_FIRST_EPOCH = 0
_MAX_EPOCH = 0x7FFFFFFF
_SESSION_LOST = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)


class Wanted(NamedTuple):
    """Where in a partition to read; what is equal to what the broker heard last is not sent again."""

    topic_id: bytes
    fetch_offset: Offset
    leader_epoch: Epoch


class FetchStep(NamedTuple):
    """What the next request of a session carries."""

    session_id: int
    session_epoch: int
    changed: dict[TopicPartition, Wanted]
    forgotten: dict[TopicPartition, Wanted]


class FetchSession:
    """Both sides know the same partitions and positions, or the session begins anew."""

    def __init__(self) -> None:
        self._id = NO_SESSION
        self._epoch = _FIRST_EPOCH
        self._known: dict[TopicPartition, Wanted] = {}

    def step(self, wanted: Mapping[TopicPartition, Wanted]) -> FetchStep:
        """A partition whose topic was made anew is forgotten under its old id and comes again."""
        known, self._known = self._known, dict(wanted)
        if self._epoch == _FIRST_EPOCH:
            return FetchStep(self._id, self._epoch, self._known, {})
        changed = {partition: want for partition, want in wanted.items() if known.get(partition) != want}
        forgotten = {
            partition: before
            for partition, before in known.items()
            if partition not in wanted or wanted[partition].topic_id != before.topic_id
        }
        return FetchStep(self._id, self._epoch, changed, forgotten)

    def answered(self, error: ErrorCode, session_id: int) -> bool:
        """Whether the answer holds anything; if not, the next fetch is a full one, in a new session."""
        if error in _SESSION_LOST:
            # The broker may still have it: to name it in the full fetch that follows closes it.
            self._id = NO_SESSION if error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND else self._id
            self._epoch = _FIRST_EPOCH
            return False
        self._id = session_id
        if session_id == NO_SESSION:
            self._epoch = _FIRST_EPOCH
        else:
            self._epoch = 1 if self._epoch == _MAX_EPOCH else self._epoch + 1
        return True

    def lost(self) -> None:
        """The connection ended; sessions do not outlive what the broker last said."""
        self._id, self._epoch = NO_SESSION, _FIRST_EPOCH
