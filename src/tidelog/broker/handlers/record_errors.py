"""Which records of the refused batches of a produce are at fault (KIP-467).

A few kilobytes may hold thousands of records that are refused one by one, and each that is named takes some hundred
bytes until the answer is sent. So a request names only so many of them, and very many are named in slices. For the
batches beyond that, the code and the message of the batch say what is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.broker.pacing import SLICE, Pace
from tidelog.errors import InvalidRecordError, RecordError, TidelogError
from tidelog.net.channel import Call
from tidelog.wire.messages.produce import BatchIndexAndErrorMessage, PartitionProduceResponse

MAX_NAMED = 10_000
"""How many records the answer to a request names at most. The requests of a connection that are under way share
these: each later one gets less, so a client that sends many ahead does not have many thousands kept."""
_NAMED_SINCE = 8


class RecordErrors:
    """The records at fault in one request. They are named when all its batches have been looked at.

    Always: no more than `MAX_NAMED` are kept, and their messages are not made before they are named.
    """

    __slots__ = ("_errors", "_left", "count")

    def __init__(self, call: Call) -> None:
        self.count = 0
        """How many are to be named."""
        self._left = MAX_NAMED // max(1, call.connection.unanswered) if call.version >= _NAMED_SINCE else 0
        self._errors: list[tuple[PartitionProduceResponse, Sequence[RecordError]]] = []

    def note(self, response: PartitionProduceResponse, failure: TidelogError) -> None:
        """The answer for a partition whose batch was refused for this reason."""
        if self._left and isinstance(failure, InvalidRecordError) and failure.record_errors:
            errors = failure.record_errors[: self._left]
            self._errors.append((response, errors))
            self._left -= len(errors)
            self.count += len(errors)

    @property
    def are_many(self) -> bool:
        return self.count > SLICE

    def name(self) -> None:
        """In one go, those that are not named yet."""
        for response, errors in self._errors:
            response.record_errors = _named(errors)
        self._errors = []

    async def name_in_slices(self, pace: Pace) -> None:
        for response, errors in self._errors:
            named: list[BatchIndexAndErrorMessage] = []
            async for some in pace.slices(errors):
                named += _named(some)
            response.record_errors = named
        self._errors = []


def _named(errors: Sequence[RecordError]) -> list[BatchIndexAndErrorMessage]:
    return [
        BatchIndexAndErrorMessage(batch_index=error.batch_index, batch_index_error_message=error.message)
        for error in errors
    ]
