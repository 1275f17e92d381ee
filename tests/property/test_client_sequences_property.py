"""A producer's queue against the rules of a leader: whatever is lost or given up, nothing is written twice.

The leader is `Producers` and `Refusals` as a broker uses them, with a list for a log. Requests arrive in order or not
at all, answers are lost, batches expire at any time, batches become too large, and leaders change, with or without
what was written and not acknowledged.
"""

from __future__ import annotations

import random

import pytest

from tests.kits.logkit import FixedClock, new_producers
from tidelog.broker.partition import RequestError
from tidelog.broker.refusals import PASSING, Refusals, Sent
from tidelog.client.sequences import OutBatch, PartitionQueue
from tidelog.errors import ErrorCode, TidelogError
from tidelog.log.producers import AppendOrigin, SequenceGapError
from tidelog.records.build import build_batch
from tidelog.records.header import BatchHeader, read_header
from tidelog.types import TopicPartition

NONE, TOO_LARGE = ErrorCode.NONE, ErrorCode.MESSAGE_TOO_LARGE
OUT_OF_SEQUENCE = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)
ROUNDS = 10
"""So often a client has to try at most, if nothing fails any more, until a record is written or given up."""


class Leader:
    """One leader at a time, and what its log has: headers and the numbers in the batches."""

    def __init__(self) -> None:
        self.log: list[tuple[BatchHeader, list[int]]] = []
        self.committed = 0
        """So many batches are not lost when the leader changes."""
        self.most_records = 100
        self.is_refusing = False
        self._begin()

    def change(self, keep: int) -> None:
        del self.log[self.committed + keep :]
        self._begin()

    def _begin(self) -> None:
        self._refusals = Refusals(FixedClock())
        self._producers = new_producers()
        self._end_offset = 0
        for header, _ in self.log:
            self._append(header)
        self._epoch_start_offset = self._end_offset

    def arrived(self, header: BatchHeader, numbers: list[int]) -> ErrorCode:
        sent = Sent("orders", 0, header.producer_id, header.producer_epoch, header.base_sequence)
        try:
            if self.is_refusing:
                raise RequestError(ErrorCode.NOT_ENOUGH_REPLICAS)
            if header.record_count > self.most_records:
                return TOO_LARGE
            if not self._is_duplicate(sent, header):
                self._append(header)
                self.log.append((header, numbers))
        except TidelogError as failure:
            if failure.code in PASSING:
                self._refusals.refused(sent, failure.code, self)
            return failure.code
        self._refusals.taken(sent)
        return NONE

    def _is_duplicate(self, sent: Sent, header: BatchHeader) -> bool:
        try:
            return self._producers.check(header, 0) is not None
        except SequenceGapError as gap:
            self._refusals.check_gap(sent, gap, self._epoch_start_offset)
            return self._producers.check(header, 0, AppendOrigin.RETURNING) is not None

    def _append(self, header: BatchHeader) -> None:
        self._producers.append(header, self._end_offset, 0)
        self._end_offset += header.record_count


class Numbered(OutBatch):
    """A batch of numbers, or a piece of one."""

    __slots__ = ("expired", "numbers", "whole")

    def __init__(self, numbers: list[int], whole: object = None) -> None:
        super().__init__(build_batch([(0, None, b"%d" % number) for number in numbers]))
        self.numbers = numbers
        self.expired = False
        self.whole = whole or self


class Request:
    """A batch on its way, as it was when it left; `outcome` when it has arrived."""

    def __init__(self, batch: Numbered) -> None:
        self.batch = batch
        self.header = read_header(bytes(batch.data))
        self.outcome: ErrorCode | None = None


class Story:
    """A client with its queue, its connection, and what hangs on connections to former leaders."""

    def __init__(self) -> None:
        self.leader = Leader()
        self.queue = PartitionQueue(TopicPartition("orders", 0), idempotent=True)
        self.queue.identify(7, 0)
        self.requests: list[Request] = []
        self.hanging: list[Request] = []
        self.acknowledged: list[int] = []
        self.next_number = 0

    def add(self, count: int) -> None:
        numbers = list(range(self.next_number, self.next_number + 1 + count % 3))
        self.next_number += len(numbers)
        self.queue.add(Numbered(numbers))

    def send(self, _: int = 0) -> None:
        if self.queue.sendable:
            batch = self.queue.take()
            assert isinstance(batch, Numbered)
            self.requests.append(Request(batch))

    def arrive(self, _: int = 0) -> None:
        for request in self.requests:
            if request.outcome is None:
                request.outcome = self.leader.arrived(request.header, request.batch.numbers)
                return

    def answer(self, _: int = 0) -> None:
        if self.requests and self.requests[0].outcome is not None:
            request = self.requests.pop(0)
            assert request.outcome is not None
            if request.outcome is NONE:
                self.leader.committed = len(self.leader.log)
            self._answered(request.batch, request.outcome)

    def lose_connection(self, _: int) -> None:
        lost, self.requests = self.requests, []
        for request in lost:
            self._answered(request.batch, ErrorCode.NETWORK_EXCEPTION)

    def expire(self, which: int) -> None:
        """As Producer._expire: what is on its way is given up when it comes back."""
        batches = [*self.queue.in_flight, *self.queue.waiting]
        if batches:
            batch = batches[which % len(batches)]
            assert isinstance(batch, Numbered)
            batch.expired = True
            if batch not in self.queue.in_flight:
                self.queue.given_up(batch)

    def change_leader(self, keep: int) -> None:
        self.hanging += self.requests
        self.requests = []
        self.leader.change(keep)

    def stop_hanging(self, _: int = 0) -> None:
        lost, self.hanging = self.hanging, []
        for request in lost:
            self._answered(request.batch, ErrorCode.NETWORK_EXCEPTION)

    def refuse(self, which: int) -> None:
        self.leader.is_refusing = which % 2 == 0

    def limit(self, most: int) -> None:
        self.leader.most_records = 1 + most % 3

    def _answered(self, batch: Numbered, code: ErrorCode) -> None:
        """As Producer._written and Producer._not_written."""
        if code is NONE:
            self.acknowledged += batch.numbers
            for other in self.queue.acknowledged(batch):
                self.queue.given_up(other)
        elif code is TOO_LARGE and not batch.expired and len(batch.numbers) > 1:
            self.queue.split(
                batch, [Numbered(batch.numbers[:1], batch.whole), Numbered(batch.numbers[1:], batch.whole)]
            )
        elif self.queue.may_be_written(batch, code):
            self.queue.given_up(batch)
            for other in list(self.queue.waiting):
                assert isinstance(other, Numbered)
                if other.whole is batch.whole:
                    self.queue.given_up(other)
        elif batch.expired or not (code.retriable or code in OUT_OF_SEQUENCE):
            self.queue.given_up(batch)
        else:
            self.queue.came_back(batch, code)

    def end_well(self) -> None:
        """Nothing fails any more."""
        self.leader.is_refusing = False
        self.stop_hanging()
        while self.queue.waiting or self.queue.in_flight:
            outstanding = self._outstanding()
            for _ in range(ROUNDS):
                while self.queue.sendable:
                    self.send()
                while self.requests:
                    self.arrive()
                    self.answer()
            assert self._outstanding() < outstanding, "it is stuck"

    def _outstanding(self) -> int:
        return sum(batch.record_count for batch in [*self.queue.in_flight, *self.queue.waiting])

    def check(self, seed: int) -> None:
        written = [number for _, numbers in self.leader.log for number in numbers]
        assert written == sorted(set(written)), f"seed {seed}: a record is written twice, or behind a later one"
        assert set(self.acknowledged) <= set(written)
        assert len(self.acknowledged) == len(set(self.acknowledged))


EVENTS = {
    "add": Story.add,
    "send": Story.send,
    "arrive": Story.arrive,
    "answer": Story.answer,
    "lose connection": Story.lose_connection,
    "expire": Story.expire,
    "change leader": Story.change_leader,
    "stop hanging": Story.stop_hanging,
    "refuse": Story.refuse,
    "limit": Story.limit,
}
USUAL = ["add", "send", "arrive", "answer"]


@pytest.mark.parametrize("first_seed", range(0, 1500, 100))
def test_nothing_is_written_twice_or_out_of_order_and_nothing_gets_stuck(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 100):
        chance = random.Random(seed)
        names = [*USUAL * chance.choice([3, 6, 15]), *EVENTS]
        story = Story()
        for _ in range(chance.choice([20, 60, 150, 400])):
            EVENTS[chance.choice(names)](story, chance.randrange(6))
        story.end_well()
        story.check(seed)
