"""Produce (0).

3 record batches v2; 4 KAFKA_STORAGE_ERROR; 5 log_start_offset; 7 zstd; 8 errors of single records and a message;
9 flexible; 10 the new leader with an error; 11, 12 transactions; 13 topic ids in place of names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tidelog.broker.batch_checks import Looked
from tidelog.broker.dispatch import InSlices, Later
from tidelog.broker.handlers.record_errors import RecordErrors
from tidelog.broker.handlers.refused_produce import add_leaders, refusal, sent
from tidelog.broker.pacing import SLICE, Pace
from tidelog.broker.partition import RequestError
from tidelog.broker.write_path import Commits, Written, write
from tidelog.broker.write_rules import HeavyBatchError, WriteRules, check, codec_of
from tidelog.controller.topics import INTERNAL_TOPICS, MAX_NAME_LENGTH, cut_name
from tidelog.errors import ErrorCode, TidelogError
from tidelog.log.producers import AppendOrigin, SequenceGapError
from tidelog.net.channel import Call
from tidelog.records.header import Codec
from tidelog.types import NO_TIMESTAMP
from tidelog.wire import ZERO_UUID
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_TOPIC_IDS = 13
_LEADER_HINTS = 10
_ZSTD = 7
_ADMIN_CLIENT = "__admin_client"
"""By this name Kafka's tools may write to internal topics."""
ALL = -1
_ONE_SLICE_BYTES = 16 * 1024
"""A smaller request cannot be too large for one slice."""
_COST_OF_PARTITION = 2
_BYTES_OF_ELEMENT = 16 * 1024
"""What one partition takes of a slice: checking and writing its bytes counts too."""
_SLICE_NS = 3_000_000
"""A slice that has taken this long ends after the batch that is being checked: what a batch takes to be decompressed is
not known before. In the simulator no time passes within a slice."""


class _Promise(NamedTuple):
    """What is left of a request whose answer has to wait; its frame is not held."""

    acks: int
    timeout_ms: int


class _Part(NamedTuple):
    """One partition of a request."""

    name: str | None
    """Of its topic; None if this broker does not know the topic's id."""
    topic: TopicProduceData
    data: PartitionProduceData
    answers: list[PartitionProduceResponse]


_Writes: TypeAlias = dict[Written, PartitionProduceResponse]
"""What was appended, with its part of the answer."""

_Answer: TypeAlias = ProduceResponse | Later | Awaitable[ProduceResponse | None] | None


def produce(broker: Broker, request: ProduceRequest, call: Call) -> _Answer | InSlices:
    """Check each batch, append it to its partition, and answer when `acks` is fulfilled (S3.2)."""
    work = _Produce(broker, request, call)
    if call.connection in broker.batch_checks.under_way:
        return _produce_in_turn(broker, call, work)
    if call.frame is not None and len(call.frame) > _ONE_SLICE_BYTES and work.is_large(len(call.frame)):
        call.connection.keep(call)
        return InSlices(work.in_slices())
    if not work.append_one_slice():
        return _produce_in_turn(broker, call, work)
    if work.record_errors is not None and work.record_errors.are_many:
        call.connection.keep(call)
        return InSlices(work.in_slices())
    return work.finish()


def _produce_in_turn(broker: Broker, call: Call, work: _Produce) -> Awaitable[ProduceResponse | None]:
    """Behind the earlier produces of its connection, with its heavy batches checked by a disk thread."""

    async def answer(writing: Awaitable[_Answer]) -> ProduceResponse | None:
        result = await writing
        if isinstance(result, Later):
            waited = await result.wait()
            assert isinstance(waited, ProduceResponse)
            return waited
        return result if result is None or isinstance(result, ProduceResponse) else await result

    call.connection.keep(call)
    return answer(broker.batch_checks.in_turn(call.connection, work.in_slices))


class _Produce:
    """One request while its batches are checked and appended, in one go or in slices.

    Each is appended as soon as it is checked, so that at most one is held that the topic has made larger.
    """

    __slots__ = (
        "_broker",
        "_call",
        "_end_ns",
        "_heavy",
        "_left",
        "_must_flush",
        "_must_wait",
        "_parts",
        "_postponed",
        "_request",
        "_told",
        "_topics",
        "_writes",
        "record_errors",
    )

    def __init__(self, broker: Broker, request: ProduceRequest, call: Call) -> None:
        self._broker = broker
        self._request = request
        self._call = call
        self._topics: list[TopicProduceResponse] = []
        self._parts = _parts_of(broker, request, call.version, self._topics)
        """Those that have not been looked at yet."""
        self._heavy: _Part | None = None
        """The first slice ended with this one, which a disk thread has to check."""
        self._postponed: tuple[_Part | None, ...] = ()
        """Or it ended before this one."""
        self.record_errors: RecordErrors | None = None
        """None while no batch was refused."""
        self._writes: _Writes = {}
        self._told = 0
        """Of how many of them the readers have been told."""
        self._must_flush = self._must_wait = False
        self._left, self._end_ns = SLICE, call.taken_ns + _SLICE_NS

    def is_large(self, size: int) -> bool:
        partitions = sum(1 + len(topic.partition_data) for topic in self._request.topic_data)
        return partitions * _COST_OF_PARTITION + size // _BYTES_OF_ELEMENT > SLICE

    def _begin_slice(self) -> None:
        self._left = SLICE
        self._end_ns = self._broker.clock.monotonic_ns() + _SLICE_NS

    def append_one_slice(self) -> bool:
        """False if something is left: a batch that is too heavy for the loop, or more than there is time for."""
        for number, part in enumerate(self._parts):
            if number and self._broker.clock.monotonic_ns() >= self._end_ns:
                self._postponed, self._left = (part,), 0
                return False
            if part is not None and not self._append(part):
                self._heavy = part
                return False
        return True

    async def in_slices(self) -> _Answer:
        """What is left. Partitions have terms of their own: one may begin between two slices, and is asked for in the
        end."""
        self._must_wait = True
        try:
            if not self._is_given_up:
                await self._append_rest()
            if self.record_errors is not None:
                self._tell()
                await self.record_errors.name_in_slices(Pace(self._broker.lane))
            return self.finish()
        finally:
            self._call.let_go()

    @property
    def _is_given_up(self) -> bool:
        """The client has gone that awaits the answer, so it will send the batches again. With acks=0 it will not."""
        return self._call.connection.is_closed and self._request.acks != 0

    async def _append_rest(self) -> None:
        if self._left > 0:  # it may have waited for long
            self._begin_slice()
        if self._heavy is not None and not await self._append_heavy(self._heavy):
            return
        for part in chain(self._postponed, self._parts):
            if self._left <= 0 or self._broker.clock.monotonic_ns() >= self._end_ns:
                self._tell()
                await self._broker.lane.turn()
                self._begin_slice()
            self._left -= _COST_OF_PARTITION if part is None else _cost_of(part.data)
            if part is not None and not self._append(part) and not await self._append_heavy(part):
                break

    async def _append_heavy(self, part: _Part) -> bool:
        """After a disk thread has checked it. False if the client has gone: then what is left is not appended."""
        self._tell()
        rules = self._rules_of(part)
        looked = None
        if rules is not None and part.data.records:
            looked = await self._broker.batch_checks.check_heavy(
                self._call, part.data.records, rules, self._broker.clock, is_awaited=self._request.acks != 0
            )
            if looked is None:
                return False
            self._begin_slice()
        return self._append(part, looked)

    def _rules_of(self, part: _Part) -> WriteRules | None:
        """None if the partition is not led here; then its batch is refused for that."""
        try:
            return None if part.name is None else self._broker.replicas.leading(part.name, part.data.index).rules
        except TidelogError:
            return None

    def _append(self, part: _Part, looked: Looked | None = None) -> bool:
        """Append it or note why not. False if it is too heavy to be checked on the loop."""
        _, topic, data, answers = part
        try:
            written, response = self._written(part, looked)
        except HeavyBatchError:
            return False
        except TidelogError as failure:
            refused = refusal(self._broker, topic, data, failure, self._call)
            answers.append(refused)
            if self._request.acks != 0:
                self.record_errors = self.record_errors or RecordErrors(self._call)
                self.record_errors.note(refused, failure)
            return True
        self._writes[written] = response
        answers.append(response)
        if written.needs_flush:
            self._must_flush = True
        if not written.is_committed:
            self._must_wait = True
        return True

    def _written(self, part: _Part, looked: Looked | None) -> tuple[Written, PartitionProduceResponse]:
        """TidelogError if it is refused."""
        broker, acks, version = self._broker, self._request.acks, self._call.version
        name, topic, data, _ = part
        if acks not in (0, 1, ALL):
            raise RequestError(ErrorCode.INVALID_REQUIRED_ACKS, f"acks = {acks}; allowed are -1, 0 and 1")
        if name is None:
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_ID)
        if name in INTERNAL_TOPICS and self._call.client_id != _ADMIN_CLIENT:
            raise RequestError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"only brokers write to {name}")
        partition = broker.replicas.leading(name, data.index)
        leader, rules = partition.leader, partition.rules
        assert leader is not None
        if topic.topic_id not in (ZERO_UUID, partition.topic_id):
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_ID)  # of an earlier topic of this name
        if acks == ALL and not leader.has_enough_replicas():
            raise RequestError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(partition.isr)} replicas of {partition.name} are in sync; "
                f"min.insync.replicas = {rules.min_insync_replicas}",
            )
        if version < _ZSTD and data.records and codec_of(data.records) is Codec.ZSTD:
            raise RequestError(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd needs Produce v{_ZSTD}, this is v{version}"
            )
        if looked is None:
            checked = check(data.records, rules, broker.clock.wall_ms(), on_loop=True)
        else:
            checked = looked.result(rules)
        batch, header = checked.stamped(broker.clock.wall_ms()) if rules.append_time else checked
        if header.is_transactional:
            raise RequestError(ErrorCode.INVALID_TXN_STATE, "transactions are not served yet")
        try:
            written = write(partition, batch, header)
        except SequenceGapError as gap:
            if acks != 0:
                broker.refusals.check_gap(
                    sent(name, topic.topic_id, data.index, header), gap, leader.epoch_start_offset
                )
            elif not gap.is_unknown:
                raise
            written = write(partition, batch, header, AppendOrigin.RETURNING)
        if header.producer_id >= 0 and broker.refusals:
            broker.refusals.taken(sent(name, topic.topic_id, data.index, header))
        broker.counts.written(name, len(batch), header.record_count)
        response = PartitionProduceResponse(
            index=data.index,
            base_offset=written.base_offset,
            log_append_time_ms=written.max_timestamp if rules.append_time else NO_TIMESTAMP,
            log_start_offset=partition.log.log_start_offset,
        )
        return written, response

    def _tell(self) -> None:
        for written in islice(self._writes, self._told, None):
            written.tell_readers()
        self._told = len(self._writes)

    def finish(self) -> _Answer:
        self._tell()
        if self.record_errors is not None:
            self.record_errors.name()
        broker, call, writes, acks = self._broker, self._call, self._writes, self._request.acks
        response, timeout_ms = ProduceResponse(responses=self._topics), self._request.timeout_ms
        if acks == 0:
            _close_on_error(response, call)
        if self._must_flush:
            call.let_go()
            return _finish_flushed(broker, response, writes, _Promise(acks, timeout_ms), call)
        if acks == 0:
            return None
        if acks == ALL and self._must_wait:
            return _when_committed(broker, response, writes, timeout_ms, call)
        if acks == 1:
            for written, answer in writes.items():
                answer.error_code = written.written_result()
        return _finish(broker, response, call)


def _parts_of(
    broker: Broker, request: ProduceRequest, version: int, topics: list[TopicProduceResponse]
) -> Iterator[_Part | None]:
    """The partitions of a request, each with the answers of its topic, which are added to `topics` as they come.

    None for a topic without partitions: it takes time too.
    """
    for topic in request.topic_data:
        name = broker.metadata.name_of(topic.topic_id) if version >= _TOPIC_IDS else topic.name
        answers: list[PartitionProduceResponse] = []
        kept = topic.name if len(topic.name) <= MAX_NAME_LENGTH else cut_name(topic.name)
        topics.append(TopicProduceResponse(name=kept, topic_id=topic.topic_id, partition_responses=answers))
        for data in topic.partition_data:
            yield tuple.__new__(_Part, (name, topic, data, answers))  # in half the time
        if not topic.partition_data:
            yield None


def _cost_of(data: PartitionProduceData) -> int:
    """What one partition takes of a slice."""
    return _COST_OF_PARTITION + (0 if data.records is None else len(data.records)) // _BYTES_OF_ELEMENT


def _close_on_error(response: ProduceResponse, call: Call) -> None:
    """acks=0 has no answer to carry an error, so the connection ends: the client then looks for the leader anew."""
    errors = [
        f"{ErrorCode(partition.error_code).name} for {topic.name}-{partition.index}"
        for topic in response.responses
        for partition in topic.partition_responses
        if partition.error_code
    ]
    if errors:
        call.connection.close(f"a produce with acks=0 failed: {errors[0]}")


async def _finish_flushed(
    broker: Broker, response: ProduceResponse, writes: _Writes, promise: _Promise, call: Call
) -> ProduceResponse | None:
    """flush.messages or flush.ms: what is acknowledged, or seen by anybody, is on the device (S3.3)."""
    await asyncio.gather(*(written.flush() for written in writes if written.needs_flush))
    for written in writes:
        written.code = written.code or written.written_result()
    if promise.acks == ALL:
        await _when_committed(broker, response, writes, promise.timeout_ms, call).wait()
        return response
    _tell_codes(writes)
    if promise.acks == 0:
        _close_on_error(response, call)
        return None
    return _finish(broker, response, call)


def _when_committed(broker: Broker, response: ProduceResponse, writes: _Writes, timeout_ms: int, call: Call) -> Later:
    """The answer, when HW has passed all that was written or the time is over."""
    later = Later()

    def settled() -> None:
        _tell_codes(writes)
        later.answer(lambda: _finish(broker, response, call))

    Commits(writes, timeout_ms, settled, broker.replicas.answer_time)
    return later


def _tell_codes(writes: _Writes) -> None:
    for written, response in writes.items():
        response.error_code = written.code


def _finish(broker: Broker, response: ProduceResponse, call: Call) -> ProduceResponse:
    if call.version >= _LEADER_HINTS:
        add_leaders(broker, response, call)
    return response
