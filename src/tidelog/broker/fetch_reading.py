"""How a fetch reads its partitions: who may read there, up to where, what else is answered, and what is sent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidelog.broker.fetch_answer import CONSUMER, DEBUGGING_REPLICA, FetchAnswer, Source, Wanted
from tidelog.broker.fetch_sessions import NO_SESSION, FetchItem, FetchSession
from tidelog.broker.partition import Partition, RequestError
from tidelog.broker.regions import LogRegion
from tidelog.errors import ErrorCode, TidelogError
from tidelog.log.reading import Region
from tidelog.log.segment import NotCachedError
from tidelog.net.channel import Call
from tidelog.records.header import Codec
from tidelog.types import NO_EPOCH, Offset
from tidelog.wire import records_to_come
from tidelog.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchResponse,
    FetchResponseEpochEndOffset,
    FetchResponseLeaderIdAndEpoch,
    FetchResponseNodeEndpoint,
    FetchResponsePartitionData,
)

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker

_ZSTD = 10
_LEADER_HINTS = 16


class FetchReading:
    """One fetch reads one partition after the other; what it finds is for its `FetchAnswer`."""

    __slots__ = ("_answer", "_broker", "_call", "_is_unconfirmed", "_session", "_wanted")

    def __init__(self, broker: Broker, call: Call, session: FetchSession, wanted: Wanted, answer: FetchAnswer) -> None:
        self._broker = broker
        self._call = call
        self._session = session
        self._wanted = wanted
        self._answer = answer
        self._is_unconfirmed = False
        """The controller has not confirmed one of the partitions."""

    def read(self, item: FetchItem) -> FetchResponsePartitionData:
        try:
            source = self._source_of(item)
            partition = source.partition
            diverging = _diverging_epoch(partition, item)
            if diverging is not None:
                return self._found(item, source, None, diverging)
            if self._must_confirm(partition, item.fetch_offset):
                raise NotCachedError  # the controller has to be asked first
            room, min_one = self._answer.room_for(item)
            try:
                region = partition.log.read_now(
                    item.fetch_offset, room, self._answer.end_of(partition), min_one=min_one
                )
            except NotCachedError:
                self._answer.sources[item] = source  # the follower's position is valid
                raise
            if (
                region.size
                and self._wanted.committed_only
                and not partition.log.nothing_aborted_from(item.fetch_offset)
            ):
                raise NotCachedError
            return self._found(item, source, region)
        except TidelogError as failure:
            return self.refusal(item, failure)

    async def read_cold(self, item: FetchItem) -> FetchResponsePartitionData:
        try:
            source = self._source_of(item)
            partition = source.partition
            diverging = _diverging_epoch(partition, item)
            if diverging is not None:
                return self._found(item, source, None, diverging)
            if self._must_confirm(partition, item.fetch_offset):
                await self._confirm(partition)
            room, min_one = self._answer.room_for(item)
            end = self._answer.end_of(partition)
            region = await partition.log.read(item.fetch_offset, room, end, min_one=min_one)
            if source.is_over:
                raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # what stands there now may be of another term
            answer = self._found(item, source, region)
            if region.size and self._wanted.committed_only:
                found = await partition.log.aborted_transactions(item.fetch_offset, end)
                answer.aborted_transactions = [
                    AbortedTransaction(producer_id=aborted.producer_id, first_offset=aborted.first_offset)
                    for aborted in found
                ]
            return answer
        except TidelogError as failure:
            return self.refusal(item, failure)

    def _must_confirm(self, partition: Partition, offset: Offset) -> bool:
        """Whether a client would hear OFFSET_OUT_OF_RANGE from a leader that may be deposed (edge case 43).

        Only another leader can have more than this one. What is below the log start was deleted by a leader.
        """
        log = partition.log
        if self._wanted.replica_id != CONSUMER or log.log_start_offset <= offset <= log.log_end_offset:
            return False
        partition.check_term()
        return offset > log.log_end_offset and not partition.is_sole_candidate

    async def _confirm(self, partition: Partition) -> None:
        """After one failure no other partition of this fetch is asked for: each would wait for a controller that does
        not answer, and all of them together longer than the client waits for its fetch."""
        if self._is_unconfirmed:
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        try:
            await partition.confirm_term()
        except RequestError:
            self._is_unconfirmed = True
            raise

    def _source_of(self, item: FetchItem) -> Source:
        """Whether or not it can be read, the item hears of the partition's changes from now on."""
        if item.topic is None:
            item.topic = self._broker.metadata.name_of(item.topic_id)
        if item.topic is None:
            raise RequestError(ErrorCode.UNKNOWN_TOPIC_ID)
        try:
            partition = self._broker.replicas.get(item.topic, item.index)
        except TidelogError:
            item.watch(None)  # asked for again with each fetch, for it is in error; nothing must be held that is gone
            raise
        item.watch(partition)
        if self._session.uses_topic_ids and partition.topic_id != item.topic_id:
            raise RequestError(ErrorCode.INCONSISTENT_TOPIC_ID)
        if self._wanted.replica_id != DEBUGGING_REPLICA:
            partition.leader_for(item.current_leader_epoch)
        if self._wanted.replica_id >= 0:
            self._check_follower(partition, item)
        if partition.rules.codec is Codec.ZSTD and self._call.version < _ZSTD:
            raise RequestError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
        return Source(partition, partition.leader, item.times_named)

    def _check_follower(self, partition: Partition, item: FetchItem) -> None:
        """Only replicas of the partition copy it, and only in the registration that the store has.

        A follower may have heard first that it is a replica, or which registration it has; so these errors, which are
        also Kafka's, let it try again and tell its position anew.
        """
        if self._wanted.replica_id not in partition.replicas:
            is_in_term = item.current_leader_epoch >= 0
            raise RequestError(ErrorCode.UNKNOWN_LEADER_EPOCH if is_in_term else ErrorCode.NOT_LEADER_OR_FOLLOWER)
        epoch = self._wanted.broker_epoch
        if epoch != NO_EPOCH and not self._broker.registrations.is_registered(self._wanted.replica_id, epoch):
            raise RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _found(
        self,
        item: FetchItem,
        source: Source,
        region: Region | None,
        diverging: FetchResponseEpochEndOffset | None = None,
    ) -> FetchResponsePartitionData:
        log = source.partition.log
        if region is not None and region.size and region.segment is not log.segments.active:
            self._answer.has_more = True
        self._answer.sources[item] = source if diverging is None else source._replace(diverges=True)
        answer = FetchResponsePartitionData(
            partition_index=item.index,
            high_watermark=log.high_watermark,
            last_stable_offset=log.last_stable_offset,
            log_start_offset=log.log_start_offset,
            aborted_transactions=[] if self._wanted.committed_only else None,
            records=records_to_come(LogRegion(log, region)) if region is not None and region.size else b"",
        )
        item.diverges = diverging is not None
        if diverging is not None:
            answer.diverging_epoch = diverging
        return answer

    def refusal(self, item: FetchItem, failure: TidelogError) -> FetchResponsePartitionData:
        item.diverges = False
        self._answer.sources.pop(item, None)
        answer = FetchResponsePartitionData(
            partition_index=item.index,
            error_code=failure.code,
            high_watermark=-1,
            aborted_transactions=None,
            records=b"",
        )
        if self._call.version >= _LEADER_HINTS and failure.code in (
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.FENCED_LEADER_EPOCH,
        ):
            leader = self._broker.metadata.leader_at(item.topic or "", item.index, self._call.listener)
            if leader is not None:
                answer.current_leader = FetchResponseLeaderIdAndEpoch(
                    leader_id=leader.broker.id, leader_epoch=leader.epoch
                )
        return answer

    # The answer as it is sent

    def add_answers(
        self,
        topics: dict[str | bytes, FetchableTopicResponse],
        answers: Iterable[tuple[FetchItem, FetchResponsePartitionData]],
    ) -> None:
        session, counts = self._session, self._broker.counts
        count = counts.read_by_follower if self._wanted.replica_id >= 0 else counts.read
        for item, answer in answers:
            source = self._answer.sources.get(item)
            if source is not None and source.is_over:
                answer = self.refusal(item, RequestError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            elif source is not None:
                answer.high_watermark = source.partition.log.high_watermark  # as of sending (S2.7)
            size = len(answer.records) if answer.records is not None else 0
            count(None if source is None else source.partition.name.topic, size, answer.error_code)
            if not item.is_news(answer, self._answer.number) and self._wanted.is_incremental:
                continue
            topic_key = item.key[0]
            topic = topics.get(topic_key)
            if topic is None:
                topic = topics[topic_key] = FetchableTopicResponse(topic=item.topic or "", topic_id=item.topic_id)
            topic.partitions.append(answer)
            if size:
                session.had_its_turn(item)

    def response(self, topics: dict[str | bytes, FetchableTopicResponse]) -> FetchResponse:
        session = self._session
        if session.id == NO_SESSION:
            session.close()
        response = FetchResponse(session_id=session.id, responses=list(topics.values()))
        if self._call.version >= _LEADER_HINTS:
            response.node_endpoints = self._endpoints(topics.values())
        return response

    def _endpoints(self, topics: Iterable[FetchableTopicResponse]) -> list[FetchResponseNodeEndpoint]:
        """Addresses of the leaders that errors point to (KIP-951)."""
        brokers = {
            partition.current_leader.leader_id: None
            for topic in topics
            for partition in topic.partitions
            if partition.error_code and partition.current_leader.leader_id >= 0
        }
        found = []
        for broker_id in brokers:
            broker = self._broker.metadata.brokers.get(broker_id)
            if broker is not None and self._call.listener in broker.endpoints:
                host, port = broker.endpoints[self._call.listener]
                found.append(FetchResponseNodeEndpoint(node_id=broker_id, host=host, port=port, rack=broker.rack))
        return found


def _diverging_epoch(partition: Partition, item: FetchItem) -> FetchResponseEpochEndOffset | None:
    """Where a reader's log and this one part, if they do (S4.5)."""
    if item.last_fetched_epoch == NO_EPOCH:
        return None
    epoch, end_offset = partition.log.epochs.end_offset_for(item.last_fetched_epoch, partition.log.log_end_offset)
    if epoch < item.last_fetched_epoch or end_offset < item.fetch_offset:
        return FetchResponseEpochEndOffset(epoch=epoch, end_offset=end_offset)
    return None
