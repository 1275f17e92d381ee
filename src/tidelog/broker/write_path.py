"""The one way in which a leader writes: append, move the high watermark if it can, tell the readers; and what becomes
of a write (S2.7, S3.2, S3.3, S7.2).

`write` does the first two. The readers are told by `Written.tell_readers`, which a request that writes several batches
calls when all of them are in. Where a flush is due, HW does not move before `Written.flush`, which tells them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from tidelog.broker.partition import Partition
from tidelog.broker.waiting import Answer, AnswerTime, Waiter
from tidelog.errors import ErrorCode, TidelogError
from tidelog.log.producers import AppendOrigin
from tidelog.records.header import BatchHeader
from tidelog.replication.leader import Leader
from tidelog.types import Buffer, Offset


class Written:
    """A batch that a leader has appended in its term, and what is known of it."""

    __slots__ = ("base_offset", "code", "end_offset", "leader", "max_timestamp", "needs_flush", "partition")

    def __init__(
        self, partition: Partition, leader: Leader, base_offset: Offset, end_offset: Offset, max_timestamp: int
    ) -> None:
        self.partition = partition
        self.leader = leader
        """Of the term it was written in: when that is over, what became of it is not known here."""
        self.base_offset = base_offset
        self.end_offset = end_offset
        """The batch is committed when HW reaches this."""
        self.max_timestamp = max_timestamp
        self.needs_flush = partition.log.flush_due
        """Until it is on the device, nobody may see it: it could vanish again."""
        self.code = ErrorCode.NONE
        """What became of it; NONE also while that is not known."""

    @property
    def is_committed(self) -> bool:
        """Known in its term; the high watermark of a leader that leads no more stays as it was."""
        return self.leader.high_watermark >= self.end_offset

    @property
    def is_of_a_former_term(self) -> bool:
        """It may have been cut off since, and HW may pass its offset with another record, so HW is not waited for."""
        return self.leader is not self.partition.leader

    def tell_readers(self) -> None:
        """There may be more to read."""
        self.partition.appended_all()

    async def flush(self) -> None:
        """flush.messages or flush.ms: HW moves, and the readers are told, when the batch is on the device (S3.3)."""
        try:
            await self.partition.flush_and_advance(self.leader)
        except TidelogError as failure:
            self.code = failure.code

    def written_result(self) -> ErrorCode:
        """What acks=1 is told."""
        return self.partition.written_result(self.leader)

    def commit_result(self) -> ErrorCode:
        """What acks=all is told once HW has passed it."""
        return self.partition.commit_result(self.leader)

    def when_committed(self, answer: Answer) -> Waiter:
        """Called once, when HW reaches its end or when that cannot be any more."""
        return self.partition.when_committed(self.end_offset, answer)


def write(
    partition: Partition, batch: Buffer, header: BatchHeader, origin: AppendOrigin = AppendOrigin.CLIENT
) -> Written:
    """Append one checked batch. RequestError unless this broker leads the partition and its session is current."""
    leader = partition.leader
    appended = partition.append(batch, header, origin)
    assert leader is not None, "only a leader appends"
    written = Written(partition, leader, appended.base_offset, appended.last_offset + 1, appended.max_timestamp)
    if not written.needs_flush:
        partition.advance(leader, partition.log.log_end_offset)
    return written


class Commits:
    """Writes in purgatory: until HW has passed all of them, or their time is over (S7.2). Each knows its code then.

    `done` is called once, in a later turn of the loop if there is nothing to wait for.
    """

    __slots__ = ("_answer_time", "_done", "_timer", "_waiters")

    def __init__(
        self, writes: Iterable[Written], timeout_ms: int, done: Callable[[], None], answer_time: AnswerTime
    ) -> None:
        self._done: Callable[[], None] | None = done
        """None once it was called."""
        self._answer_time = answer_time
        self._waiters: dict[Written, Waiter] = {}
        for written in writes:
            if written.code:
                continue
            if written.is_committed or written.is_of_a_former_term:
                written.code = written.commit_result()
            else:
                self._waiters[written] = written.when_committed(partial(self._settled, written))
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(timeout_ms / 1000 if self._waiters else 0, self._time_is_over)

    def _settled(self, written: Written, code: ErrorCode) -> None:
        del self._waiters[written]
        written.code = code
        if not self._waiters:
            self._timer.cancel()
            self._finish()

    def _time_is_over(self) -> None:
        """If the time of very many is over at once, some are answered in later turns of the loop. HW may have passed
        one that was to be answered in a later turn, so that is asked once more."""
        if self._done is None:
            return
        if self._answer_time.is_over():
            self._answer_time.put_off(self._time_is_over)
            return
        for written, waiter in self._waiters.items():
            waiter.forget()
            is_known = written.is_committed and not written.is_of_a_former_term
            written.code = written.commit_result() if is_known else ErrorCode.REQUEST_TIMED_OUT
        self._waiters.clear()
        self._finish()

    def _finish(self) -> None:
        done, self._done = self._done, None
        assert done is not None, "writes are settled once"
        done()
