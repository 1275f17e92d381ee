"""Counting answers in what a connection receives. Nothing is parsed but their sizes and correlation ids."""

from __future__ import annotations

import struct

from bench.hot_frames import WrongAnswerError

_HEAD = struct.Struct(">ii")
"""The size, which does not count itself, and the correlation id."""
_SIZE_BYTES = 4


class Answers:
    """Bytes are received into `room` and then told with `received`, which counts the answers that they complete.

    All answers of a run have one size: one with an error has another, and an answer without the records too. Their
    correlation ids count from 0 to below `ids`, again and again.
    """

    def __init__(self, buffer: memoryview, frame_bytes: int, ids: int) -> None:
        self.room = buffer
        """Where the next bytes go."""
        self._buffer = buffer
        self._frame_bytes = frame_bytes
        self._ids = ids
        self._next_id = 0
        self._missing = 0
        """Of the answer whose head was seen."""
        self._kept = 0
        """Bytes of a head that is not complete, at the start of the buffer."""

    def received(self, count: int) -> int:
        """The answers that are complete with these bytes."""
        end = self._kept + count
        if self._missing > end:
            self._missing -= end
            return 0
        position = self._missing
        answers = 1 if position else 0
        self._missing = 0
        while end - position >= _HEAD.size:
            self._check(position)
            position += self._frame_bytes
            if position > end:
                self._missing = position - end
                position = end
                break
            answers += 1
        self._keep(position, end)
        return answers

    def _check(self, position: int) -> None:
        size, correlation_id = _HEAD.unpack_from(self._buffer, position)
        if size + _SIZE_BYTES != self._frame_bytes or correlation_id != self._next_id:
            raise WrongAnswerError(
                f"an answer of {size + _SIZE_BYTES} bytes with correlation id {correlation_id}; "
                f"awaited were {self._frame_bytes} and {self._next_id}"
            )
        self._next_id = (correlation_id + 1) % self._ids

    def _keep(self, position: int, end: int) -> None:
        kept = end - position
        if kept or self._kept:
            self._buffer[:kept] = self._buffer[position:end]
            self._kept = kept
            self.room = self._buffer[kept:]
