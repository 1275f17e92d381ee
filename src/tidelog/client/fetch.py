"""Reading partitions: long polls to their leaders, batches handed on as they came.

One task per broker fetches ahead of the reader, at most a few answers, so that a slow reader is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Mapping
from typing import NamedTuple

from tidelog.client.cluster import Cluster
from tidelog.client.errors import STALE_METADATA, BrokerError, UnknownTopicError, check
from tidelog.client.fetch_request import DEFAULT_FETCH, FetchSettings, fetch_request
from tidelog.client.fetch_session import FetchSession, Wanted
from tidelog.client.metadata import NO_BROKER
from tidelog.client.offsets import list_offsets
from tidelog.client.waits import OwnWaits
from tidelog.errors import ErrorCode, TidelogError, error_code
from tidelog.records.header import headers
from tidelog.types import BrokerId, Buffer, Offset, TopicPartition
from tidelog.wire.messages.fetch import (
    AbortedTransaction,
    FetchResponse,
    FetchResponsePartitionData,
)
from tidelog.wire.uuids import ZERO_UUID
from tidelog.wire.versions import Versions

__all__ = ["DEFAULT_FETCH", "FetchSettings", "Fetched", "Fetcher"]

_BY_NAME = Versions(4, 12)
_BY_ID = Versions(4, 17)
_ANSWERS_AHEAD = 2
_METADATA = "metadata"
"""The key of a reader's wait for it."""
_GO_ON = (ErrorCode.OFFSET_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.FENCED_LEADER_EPOCH)


class Fetched(NamedTuple):
    """What came of one partition: whole batches, of which the first may begin before `fetch_offset`."""

    partition: TopicPartition
    fetch_offset: Offset
    next_offset: Offset
    """Where to go on after this."""
    high_watermark: Offset
    last_stable_offset: Offset
    records: Buffer
    aborted: list[AbortedTransaction]


class Fetcher:
    """Reads on from the given positions, for as long as it is iterated.

    Always: for each partition, what is handed out follows on what was handed out before, without a gap but for what
    the log has lost. Answers without batches are handed out too, if the high watermark has moved. A partition that has
    come to its offset in `until` is not fetched any further; who asks on for nothing else waits for ever. Of a topic
    in `topic_ids` only the one with that id is read: if it was deleted, and another of the same name was made, it
    stays unknown.
    Long polls hold up what else goes over the same connections: what must not wait takes a Cluster of its own.
    """

    def __init__(
        self,
        cluster: Cluster,
        positions: Mapping[TopicPartition, Offset],
        settings: FetchSettings = DEFAULT_FETCH,
        *,
        until: Mapping[TopicPartition, Offset] | None = None,
        topic_ids: Mapping[str, bytes] | None = None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._positions = dict(positions)
        self._until = dict(until or {})
        self._topic_ids = dict(topic_ids or {})
        self._watermarks: dict[TopicPartition, tuple[Offset, Offset]] = {}
        self._answers: asyncio.Queue[list[Fetched] | TidelogError] = asyncio.Queue(_ANSWERS_AHEAD)
        self._sessions: dict[BrokerId, FetchSession] = {}
        self._tasks: dict[BrokerId, asyncio.Task[None]] = {}
        self._waits = OwnWaits(cluster.waits)
        self._failures = 0
        self._unknown_since: float | None = None
        self._loop = asyncio.get_running_loop()

    async def next(self) -> list[Fetched]:
        """What came next, of one broker; waits for it. A BrokerError that waiting does not mend is raised."""
        self._start_tasks()
        answer = await self._answers.get()
        if isinstance(answer, TidelogError):
            raise answer
        return answer

    def position(self, partition: TopicPartition) -> Offset:
        """Where the next fetch of it begins."""
        return self._positions[partition]

    def add(self, positions: Mapping[TopicPartition, Offset]) -> None:
        """Fetch these too, or from there on."""
        self._positions.update(positions)
        self._start_tasks()

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Fetch these no more. Answers that are already here are still handed out."""
        for partition in partitions:
            self._positions.pop(partition, None)
            self._waits.over(partition)

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()
        self._waits.clear()

    # One task per broker

    def _start_tasks(self) -> None:
        """For every broker that leads something, and one for partitions without a leader. A task that failed stays."""
        leaderless = None
        for partition in self._positions:
            leader = self._leader(partition)
            key = NO_BROKER if leader is None else leader
            if leader is None:
                leaderless = leaderless or partition
            if key not in self._tasks:
                work = self._find_leaders() if leader is None else self._fetch_from(leader)
                self._tasks[key] = self._loop.create_task(work)
        if leaderless is not None:
            self._note(leaderless, f"fetch of {leaderless}", self._why_leaderless(leaderless))

    async def _fetch_from(self, broker: BrokerId) -> None:
        session = self._sessions.setdefault(broker, FetchSession())
        try:
            while wanted := self._wanted_of(broker):
                began_s = self._loop.time()
                try:
                    await self._fetch_once(broker, session, wanted)
                    self._failures = 0
                    self._waits.over(broker)
                except TidelogError as failure:
                    session.lost()
                    if failure.code != ErrorCode.BROKER_NOT_AVAILABLE and not failure.code.retriable:
                        raise
                    self._note(broker, f"fetch from broker {broker}", failure, began_s)
                    await self._learn_anew()
        except TidelogError as failure:
            await self._answers.put(failure)
        else:
            del self._tasks[broker]
            self._waits.over(broker)
            self._start_tasks()

    async def _find_leaders(self) -> None:
        try:
            await self._learn_anew()
        except TidelogError as failure:
            await self._answers.put(failure)
        else:
            del self._tasks[NO_BROKER]
            self._start_tasks()

    async def _learn_anew(self) -> None:
        """After a rest, the leaders of everything. A topic that stays unknown is an error in the end."""
        self._failures += 1
        settings = self._cluster.settings
        await asyncio.sleep(settings.backoff_s(self._failures, self._cluster.random))
        topics = dict.fromkeys(partition.topic for partition in self._positions)
        try:
            await self._cluster.refresh_once(topics, elsewhere=self._failures > 1)
        except TidelogError as failure:
            self._note(_METADATA, "metadata", failure)
            return
        self._waits.over(_METADATA)
        unknown = next((name for name in topics if self._is_unknown(name)), None)
        now = self._loop.time()
        if unknown is None:
            self._unknown_since = None
        elif self._unknown_since is None:
            self._unknown_since = now
        elif now - self._unknown_since > settings.request_timeout_ms / 1000:
            raise UnknownTopicError(unknown)
        self._start_tasks()

    def _note(self, key: Hashable, what: str, failure: TidelogError, since_s: float | None = None) -> None:
        self._waits.failed(key, what, failure, self._loop.time() if since_s is None else since_s)

    def _why_leaderless(self, partition: TopicPartition) -> TidelogError:
        if self._is_unknown(partition.topic):
            return UnknownTopicError(partition.topic)
        return BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"fetch of {partition}", "it has no leader")

    def _is_unknown(self, topic: str) -> bool:
        is_missing = self._cluster.metadata.errors.get(topic) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return is_missing or self._is_another(topic)

    def _is_another(self, topic: str) -> bool:
        """Whether metadata has another topic of this name than the one that is read."""
        found = self._cluster.metadata.topic_id(topic)
        return found not in (ZERO_UUID, self._topic_ids.get(topic, found))

    def _leader(self, partition: TopicPartition) -> BrokerId | None:
        return None if self._is_another(partition.topic) else self._cluster.metadata.leader(partition)

    def _wanted_of(self, broker: BrokerId) -> dict[TopicPartition, Wanted]:
        metadata = self._cluster.metadata
        return {
            partition: Wanted(metadata.topic_id(partition.topic), position, metadata.leader_epoch(partition))
            for partition, position in self._positions.items()
            if self._leader(partition) == broker
        }

    # One fetch

    async def _fetch_once(self, broker: BrokerId, session: FetchSession, wanted: dict[TopicPartition, Wanted]) -> None:
        by_id = all(want.topic_id != ZERO_UUID for want in wanted.values())
        request = fetch_request(session.step(wanted), self._settings)
        patience_ms = self._settings.fetch_max_wait_ms + self._cluster.settings.request_timeout_ms
        response: FetchResponse = await self._cluster.call(
            request, to=broker, versions=_BY_ID if by_id else _BY_NAME, timeout_ms=patience_ms
        )
        code = error_code(response.error_code)
        if not session.answered(code, response.session_id):
            return
        check(code, f"fetch from broker {broker}")
        names = {want.topic_id: partition.topic for partition, want in wanted.items()}
        fetched: list[Fetched] = []
        stale: set[TopicPartition] = set()
        for topic in response.responses:
            name = topic.topic or names.get(topic.topic_id, "")
            for data in topic.partitions:
                partition = TopicPartition(name, data.partition_index)
                if partition not in wanted or self._positions.get(partition) != wanted[partition].fetch_offset:
                    continue
                if data.error_code:
                    if await self._partition_failed(partition, data):
                        stale.add(partition)
                else:
                    self._take(partition, data, fetched)
        self._waits.all_over(partition for partition in wanted if partition not in stale)
        if fetched:
            await self._answers.put(fetched)
        if stale:
            await self._learn_anew()

    def _take(self, partition: TopicPartition, data: FetchResponsePartitionData, fetched: list[Fetched]) -> None:
        position = next_offset = self._positions[partition]
        records = data.records or b""
        for _, header in headers(records):
            next_offset = max(next_offset, header.next_offset)
        watermarks = (data.high_watermark, data.last_stable_offset)
        if next_offset == position and self._watermarks.get(partition) == watermarks:
            return
        self._watermarks[partition] = watermarks
        self._positions[partition] = next_offset
        if partition in self._until and next_offset >= self._until[partition]:
            del self._positions[partition]
        aborted = data.aborted_transactions or []
        fetched.append(Fetched(partition, position, next_offset, *watermarks, records, aborted))

    async def _partition_failed(self, partition: TopicPartition, data: FetchResponsePartitionData) -> bool:
        """Whether metadata is to be learnt anew."""
        code = error_code(data.error_code)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE and self._settings.out_of_range is not None:
            time = self._settings.out_of_range
            before = self._positions[partition]
            found = await list_offsets(self._cluster, {partition: time}, isolation=self._settings.isolation)
            if self._positions.get(partition) == before:  # else it was dropped meanwhile, or begun from elsewhere
                self._positions[partition] = found[partition].offset
            return False
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise BrokerError(code, f"fetch of {partition} from offset {self._positions[partition]}")
        leader = data.current_leader
        self._cluster.metadata.led_elsewhere(partition, leader.leader_id, leader.leader_epoch)
        failure = BrokerError(code, f"fetch of {partition}")
        if code not in STALE_METADATA and code not in _GO_ON:
            raise failure
        self._note(partition, failure.about, failure)
        return True
