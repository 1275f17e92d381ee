"""Writing encoded batches: to the leaders, pipelined, tried again without writing anything twice.

`sequences` decides what may be sent when; this is the shell around it. One task per broker sends; one request takes
the next batch of every partition that is ready there. A batch that is too large for its topic is split (`sending`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from tidelog.client.cluster import Cluster
from tidelog.client.contacts import unanswered_text
from tidelog.client.errors import STALE_METADATA, BrokerError, DeadlineError, check
from tidelog.client.posts import Posts
from tidelog.client.refused_batches import TOO_LARGE, in_doubt, is_size_refused, refusal
from tidelog.client.sending import Produced, Sending, SizeLimits
from tidelog.client.sequences import MAX_IN_FLIGHT, PartitionQueue
from tidelog.client.waits import OwnWaits
from tidelog.errors import ErrorCode, TidelogError, error_code
from tidelog.net.calling import Connection, ConnectionClosedError
from tidelog.types import BrokerId, Epoch, ProducerId, TopicPartition
from tidelog.wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tidelog.wire.messages.transactions import InitProducerIdRequest, InitProducerIdResponse
from tidelog.wire.uuids import ZERO_UUID
from tidelog.wire.versions import Versions

__all__ = ["ALL", "DEFAULT_DELIVERY_TIMEOUT_MS", "DEFAULT_MAX_REQUEST_BYTES", "Produced", "Producer"]

ALL = -1
"""acks: all replicas in sync."""

DEFAULT_DELIVERY_TIMEOUT_MS = 120_000
DEFAULT_MAX_REQUEST_BYTES = 1024 * 1024
PRODUCE = 0
_BY_NAME = Versions(3, 12)
_BY_ID = Versions(3, 13)


class _Link:
    """What goes to one broker: the queues that have something for it, and how many requests are unanswered."""

    def __init__(self) -> None:
        self.ready: dict[TopicPartition, PartitionQueue] = {}
        self.wake = asyncio.Event()
        self.requests = 0
        self.task: asyncio.Task[None] | None = None


_Sent = list[tuple[PartitionQueue, Sending]]


class Producer:
    """Takes batches as `records.build` makes them, and writes each once.

    Always: with acks=all (the default) the batches of a partition are written in the order of `send`, each once,
    however often answers were lost; with less, a retry may write one again, or behind later ones. With acks=0 a batch
    counts as written when the kernel has taken all of it. Each batch ends at the latest when delivery.timeout.ms and
    then request.timeout.ms are over.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: int = ALL,
        delivery_timeout_ms: int = DEFAULT_DELIVERY_TIMEOUT_MS,
        max_request_bytes: int = DEFAULT_MAX_REQUEST_BYTES,
    ) -> None:
        self.outstanding_bytes = 0
        """Of batches that are neither written nor given up."""
        self.limits = SizeLimits()
        """What brokers refused as too large: those who make batches make them smaller from then on."""
        self._cluster = cluster
        self._acks = acks
        self._delivery_timeout_ms = delivery_timeout_ms
        self._max_request_bytes = max_request_bytes
        self._loop = asyncio.get_running_loop()
        self._queues: dict[TopicPartition, PartitionQueue] = {}
        self._links: dict[BrokerId, _Link] = {}
        self._posts = Posts(cluster.waits)
        self._waits = OwnWaits(cluster.waits)
        self._resting: dict[TopicPartition, PartitionQueue] = {}
        self._stale_topics: dict[str, None] = {}
        self._recovery: asyncio.Task[None] | None = None
        self._room_waiters: list[tuple[int, asyncio.Future[None]]] = []
        self._identity: tuple[ProducerId, Epoch] | None = None
        self._identity_lock = asyncio.Lock()
        self._closed = False

    def send(
        self, partition: TopicPartition, batch: memoryview, since_s: float | None = None
    ) -> asyncio.Future[Produced]:
        """The batch is this producer's from now on: its producer fields and its CRC are written into it.

        delivery.timeout.ms counts from `since_s` on the loop's clock, when the first record was handed over; else from
        now on. If the batch is split, the future is done when all pieces are written or given up.
        """
        future: asyncio.Future[Produced] = self._loop.create_future()
        if self._closed:
            future.set_exception(ConnectionClosedError("the producer is closed"))
            return future
        began_s = self._loop.time() if since_s is None else since_s
        sending = Sending(batch, future, began_s + self._delivery_timeout_ms / 1000)
        queue = self._queues.get(partition)
        if queue is None:
            queue = self._queues[partition] = PartitionQueue(partition, idempotent=self._acks == ALL)
        self._accept(queue, sending)
        queue.add(sending)
        self._route(queue)
        return future

    def _accept(self, queue: PartitionQueue, sending: Sending) -> None:
        sending.timer = self._loop.call_at(sending.deadline_s, self._expire, queue, sending)
        self.outstanding_bytes += len(sending.data)

    async def room(self, below_bytes: int) -> None:
        """Wait until less than that is outstanding."""
        if self.outstanding_bytes >= below_bytes:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._room_waiters.append((below_bytes, waiter))
            await waiter

    async def flush(self) -> None:
        """Wait until every batch is written or given up; their futures say which.

        With acks=0 also wait until the brokers have handled the batches. ConnectionClosedError if a connection that has
        taken some has ended, or if a broker does not show within delivery.timeout.ms that it has handled them.
        """
        await self.room(1)
        await self._posts.confirm(self._delivery_timeout_ms)

    def close(self) -> None:
        """At once: what is outstanding fails. Flush before."""
        self._closed = True
        self._waits.clear()
        tasks = [link.task for link in self._links.values()]
        for task in [*tasks, self._recovery]:
            if task is not None:
                task.cancel()
        for queue in self._queues.values():
            for batch in [*queue.in_flight, *queue.waiting]:
                assert isinstance(batch, Sending)
                self._end(batch, None, ConnectionClosedError("the producer was closed before the batch was written"))

    # Sending

    def _route(self, queue: PartitionQueue) -> None:
        """To the task of its leader, or, if there is none, to wait for one."""
        if self._closed or queue.partition in self._resting or not queue.sendable:
            return
        leader = self._cluster.metadata.leader(queue.partition)
        if leader is None:
            why = "it has no leader"
            failure = BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"produce to {queue.partition}", why)
            self._rest(queue, failure, stale=True)
            return
        link = self._links.get(leader)
        if link is None:
            link = self._links[leader] = _Link()
            link.task = self._loop.create_task(self._serve(leader, link))
        link.ready[queue.partition] = queue
        link.wake.set()

    async def _serve(self, broker: BrokerId, link: _Link) -> None:
        while True:
            await link.wake.wait()
            link.wake.clear()
            while link.ready and link.requests < MAX_IN_FLIGHT:
                try:
                    connection = await self._cluster.connection(broker)
                    await self._identify(link.ready.values())
                    await connection.drain()
                    if not connection.closed:
                        self._send_request(broker, link, connection)
                except Exception as failure:  # of any kind: without this task, nothing goes to the broker any more
                    self._unreachable(link, failure)

    async def _identify(self, queues: Iterable[PartitionQueue]) -> None:
        for queue in list(queues):
            if queue.needs_producer_id:
                identity = await self._producer_id(queue.producer_id)
                if queue.needs_producer_id:  # the task of another broker may have identified it meanwhile
                    queue.identify(*identity)

    async def _producer_id(self, used_up: ProducerId) -> tuple[ProducerId, Epoch]:
        async with self._identity_lock:
            if self._identity is None or self._identity[0] == used_up:
                self._identity = await self._cluster.retrying(self._init_producer_id, "a producer id")
            return self._identity

    async def _init_producer_id(self) -> tuple[ProducerId, Epoch]:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        response: InitProducerIdResponse = await self._cluster.call(request)
        check(response.error_code, "a producer id")
        return response.producer_id, response.producer_epoch

    def _send_request(self, broker: BrokerId, link: _Link, connection: Connection) -> None:
        version, version_by_name = connection.pick(PRODUCE, _BY_ID), connection.pick(PRODUCE, _BY_NAME)
        sent = self._take_batches(broker, link)
        if not sent:
            return
        try:
            request = self._request(sent)
            if any(topic.topic_id == ZERO_UUID for topic in request.topic_data):
                version = version_by_name
            names = {topic.topic_id: topic.name for topic in request.topic_data if topic.topic_id != ZERO_UUID}
            send = connection.post if self._acks == 0 else connection.send
            future: asyncio.Future[Any] = send(request, version, timeout_ms=self._cluster.settings.request_timeout_ms)
        except Exception as failure:
            connection.abort()  # how much of the request it has written is unknown
            for queue, batch in sent:
                self._broke_down(queue, batch, failure)
            return
        if self._acks == 0:
            future.add_done_callback(lambda posted: self._posts.note(connection, posted))
        number = self._cluster.waits.asked(self._unanswered(connection), self._loop.time())
        link.requests += 1

        def done(answer: asyncio.Future[Any]) -> None:
            self._cluster.waits.answered(number)
            self._answered(link, sent, names, answer)

        future.add_done_callback(done)

    def _unanswered(self, connection: Connection) -> str:
        waits_for = "all in-sync replicas to copy the records" if self._acks == ALL else ""
        return unanswered_text(connection, "Produce", waits_for)

    def _take_batches(self, broker: BrokerId, link: _Link) -> _Sent:
        sent: _Sent = []
        size_bytes = 0
        ready, link.ready = link.ready, {}
        for queue in ready.values():
            try:
                if not queue.sendable or self._cluster.metadata.leader(queue.partition) != broker:
                    self._route(queue)
                    continue
                self._split_unsent(queue)
                size_bytes += len(queue.waiting[0].data)
                if queue.needs_producer_id or (sent and size_bytes > self._max_request_bytes):
                    link.ready[queue.partition] = queue
                    continue
                batch = queue.take()
                assert isinstance(batch, Sending)
                sent.append((queue, batch))
                self._route(queue)
            except Exception as failure:  # as from a split: the batches of other partitions go on
                self._give_up_waiting(queue, failure)
        return sent

    def _request(self, sent: _Sent) -> ProduceRequest:
        topics: dict[str, TopicProduceData] = {}
        for queue, batch in sent:
            name, number = queue.partition
            topic = topics.get(name)
            if topic is None:
                topic_id = self._cluster.metadata.topic_id(name)
                topic = topics[name] = TopicProduceData(name=name, topic_id=topic_id, partition_data=[])
            topic.partition_data.append(PartitionProduceData(index=number, records=batch.data))
        return ProduceRequest(
            acks=self._acks, timeout_ms=self._cluster.settings.request_timeout_ms, topic_data=list(topics.values())
        )

    # Answers

    def _answered(
        self, link: _Link, sent: _Sent, names: dict[bytes, str], answer: asyncio.Future[ProduceResponse | None]
    ) -> None:
        """`names`: of the topic ids as they were sent; metadata may have changed since.

        Whatever happens, no batch stays in flight: no other answer to it comes.
        """
        link.requests -= 1
        link.wake.set()
        failure = answer.exception()
        if self._closed:
            return
        found: dict[tuple[str, int], PartitionProduceResponse] = {}
        try:
            response = answer.result() if failure is None else None
            for topic in response.responses if response is not None else ():
                for partition in topic.partition_responses:
                    found[topic.name or names.get(topic.topic_id, ""), partition.index] = partition
        except Exception as unexpected:
            failure = unexpected
        for queue, batch in sent:
            if batch.timer is None:
                continue  # it was given up before
            try:
                if failure is not None:
                    self._not_written(queue, batch, _code(failure), failure)
                elif self._acks == 0:
                    self._written(queue, batch, Produced(queue.partition, -1))
                else:
                    self._take_outcome(queue, batch, found.get(queue.partition))
            except Exception as unexpected:
                self._broke_down(queue, batch, unexpected)

    def _take_outcome(self, queue: PartitionQueue, batch: Sending, outcome: PartitionProduceResponse | None) -> None:
        if outcome is None:
            about = f"produce to {queue.partition}"
            failure = BrokerError(ErrorCode.UNKNOWN_SERVER_ERROR, about, "the answer does not mention it")
            self._not_written(queue, batch, failure.code, failure)
            return
        code = error_code(outcome.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            base_offset = outcome.base_offset
            last_offset = base_offset + batch.record_count - 1 if base_offset >= 0 else -1
            self._written(queue, batch, Produced(queue.partition, base_offset, outcome.log_append_time_ms, last_offset))
            return
        if is_size_refused(outcome, batch):
            self.limits.refused(queue.partition.topic, len(batch.data))
        leader = outcome.current_leader
        self._cluster.metadata.led_elsewhere(queue.partition, leader.leader_id, leader.leader_epoch)
        self._not_written(queue, batch, code, refusal(outcome, queue.partition, batch))

    def _written(self, queue: PartitionQueue, batch: Sending, produced: Produced) -> None:
        contradicted = queue.acknowledged(batch)
        self._waits.over(queue.partition)
        self._end(batch, produced, None)
        for other in contradicted:
            assert isinstance(other, Sending)
            queue.given_up(other)
            why = "the broker called it out of sequence, and then took a later batch"
            self._end(other, None, in_doubt(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, queue.partition, why))
        self._route(queue)

    def _not_written(self, queue: PartitionQueue, batch: Sending, code: ErrorCode, failure: BaseException) -> None:
        out_of_sequence = code in (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID)
        if code in TOO_LARGE and not batch.expired and self._split(queue, batch):
            self._route(queue)
            return
        if queue.may_be_written(batch, code):
            why = "it was sent before, without an answer, and was refused as too large since"
            self._give_up_whole(queue, batch, in_doubt(code, queue.partition, why))
            return
        if batch.expired or not (code.retriable or out_of_sequence):
            queue.given_up(batch)
            self._end(batch, None, self._overdue(queue, failure) if batch.expired else failure)
            self._given_up(queue)
            self._route(queue)
            return
        queue.came_back(batch, code)
        if out_of_sequence and queue.begins_unsent:
            self._route(queue)  # it was sent behind a batch that was split: there is nothing to wait for
        else:
            self._rest(queue, failure, stale=code in STALE_METADATA)

    # Batches that are too large

    def _split(self, queue: PartitionQueue, batch: Sending) -> bool:
        """Halves take its place. False if it cannot be split, as a single record cannot."""
        try:
            pieces, uncompressed_bytes = batch.split()
        except (TidelogError, ValueError):
            return False
        self.limits.was_split(queue.partition.topic, uncompressed_bytes)
        queue.split(batch, pieces)
        for piece in pieces:
            self._accept(queue, piece)
        self._forget(batch)
        return True

    def _give_up_whole(self, queue: PartitionQueue, batch: Sending, failure: BaseException) -> None:
        """With all pieces that have not left: they would begin a new epoch, in which they could be written twice."""
        queue.given_up(batch)
        self._end(batch, None, failure)
        for piece in list(queue.waiting):
            assert isinstance(piece, Sending)
            if piece.whole is batch.whole:
                queue.given_up(piece)
                self._end(piece, None, failure)
        self._given_up(queue)
        self._route(queue)

    def _split_unsent(self, queue: PartitionQueue) -> None:
        """What was never sent is not sent to be refused, if one of its size was refused before."""
        while True:
            batch = queue.waiting[0]
            assert isinstance(batch, Sending)
            if batch.attempts or not self.limits.refuse(queue.partition.topic, len(batch.data)):
                return
            if not self._split(queue, batch):
                return

    # The end of a batch

    def _unreachable(self, link: _Link, failure: Exception) -> None:
        """No connection or no producer id: the queues wait, or, if waiting does not help, their batches fail."""
        ready, link.ready = link.ready, {}
        code = _code(failure)
        for queue in ready.values():
            if code.retriable or code == ErrorCode.BROKER_NOT_AVAILABLE:
                self._rest(queue, failure, stale=True)
            else:
                self._give_up_waiting(queue, failure)

    def _give_up_waiting(self, queue: PartitionQueue, failure: BaseException) -> None:
        for batch in list(queue.waiting):
            assert isinstance(batch, Sending)
            queue.given_up(batch)
            self._end(batch, None, failure)
        self._given_up(queue)

    def _given_up(self, queue: PartitionQueue) -> None:
        """If no batch of this partition is left, the producer does not wait for its leader any more."""
        if not queue.waiting and not queue.in_flight:
            self._waits.over(queue.partition)

    def _give_up(self, queue: PartitionQueue, batch: Sending, failure: BaseException) -> None:
        """Wherever it is: an unexpected error may have left it on its way, waiting, or in between."""
        if batch in queue.in_flight or batch in queue.waiting:
            queue.given_up(batch)
        self._end(batch, None, failure)
        self._given_up(queue)
        self._route(queue)

    def _broke_down(self, queue: PartitionQueue, batch: Sending, failure: Exception) -> None:
        """An error that no rule is for. Pieces that were made before it may never end, so the future does not wait."""
        self._give_up(queue, batch, failure)
        if not batch.future.done():
            batch.future.set_exception(failure)

    def _end(self, batch: Sending, produced: Produced | None, failure: BaseException | None) -> None:
        """Once: a batch without a timer has ended before."""
        if batch.timer is not None:
            batch.end(produced, failure)
            self._forget(batch)

    def _forget(self, batch: Sending) -> None:
        """It needs no time and no room any more."""
        if batch.timer is None:
            return
        batch.timer.cancel()
        batch.timer = None
        self.outstanding_bytes -= len(batch.data)
        waiters, self._room_waiters = self._room_waiters, []
        for below_bytes, waiter in waiters:
            if waiter.done():
                continue
            if self.outstanding_bytes < below_bytes:
                waiter.set_result(None)
            else:
                self._room_waiters.append((below_bytes, waiter))

    def _expire(self, queue: PartitionQueue, batch: Sending) -> None:
        """A batch on its way may yet be written: its answer, or the end of its connection, decides.

        One of them comes within request.timeout.ms. If neither did, nothing will, and the batch is given up.
        """
        if batch in queue.in_flight and not batch.expired:
            batch.expired = True
            patience_s = self._cluster.settings.request_timeout_ms / 1000
            batch.timer = self._loop.call_later(patience_s, self._expire, queue, batch)
            return
        self._give_up(queue, batch, self._overdue(queue, None))

    def _overdue(self, queue: PartitionQueue, failure: BaseException | None) -> DeadlineError:
        """`failure` is the answer that came too late, if one came; else the cause is the one before, or the silence."""
        silence = self._cluster.waits.longest(self._loop.time(), 0.0)
        last = failure or self._waits.last(queue.partition) or (silence.cause if silence is not None else None)
        about = f"produce to {queue.partition}"
        return DeadlineError.of(about, self._delivery_timeout_ms, last, "delivery.timeout.ms")

    # Waiting for better times

    def _rest(self, queue: PartitionQueue, failure: BaseException, *, stale: bool) -> None:
        self._resting[queue.partition] = queue
        self._note(queue, failure)
        if stale:
            self._stale_topics[queue.partition.topic] = None
        if self._recovery is None and not self._closed:
            self._recovery = self._loop.create_task(self._recover())

    def _note(self, queue: PartitionQueue, failure: BaseException) -> None:
        """The partition waits since its oldest record was handed over."""
        oldest = queue.waiting[0] if queue.waiting else None
        patience_s = self._delivery_timeout_ms / 1000
        since_s = oldest.deadline_s - patience_s if isinstance(oldest, Sending) else self._loop.time()
        self._waits.failed(queue.partition, f"produce to {queue.partition}", failure, since_s)

    async def _recover(self) -> None:
        """One task for all queues, so that a hundred partitions of a dead broker ask for metadata once."""
        rounds = 0
        while self._resting:
            rounds += 1
            attempts = [queue.waiting[0].attempts for queue in self._resting.values() if queue.waiting]
            settings, failures = self._cluster.settings, max([rounds, *attempts])
            await asyncio.sleep(settings.backoff_s(failures, self._cluster.random))
            topics, self._stale_topics = list(self._stale_topics), {}
            try:
                if topics:
                    await self._cluster.refresh_once(topics, elsewhere=failures > 1)
            except TidelogError as failure:
                self._stale_topics.update(dict.fromkeys(topics))
                for queue in self._resting.values():
                    self._note(queue, failure)
                continue
            except Exception as failure:
                broken, self._resting = self._resting, {}
                for queue in broken.values():
                    self._give_up_waiting(queue, failure)
                continue
            rested, self._resting = self._resting, {}
            for queue in rested.values():
                self._route(queue)
        self._recovery = None


def _code(failure: BaseException) -> ErrorCode:
    return failure.code if isinstance(failure, TidelogError) else ErrorCode.UNKNOWN_SERVER_ERROR
