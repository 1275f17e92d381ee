"""Reading a partition from the files of its leader, where they can be seen, and never more than a fetch would give.

DescribeLogDirs tells where the files are, and what is there tells whether it is the same broker, cluster and topic.
Every piece that is read lies between two small fetches that the leader answered in one leader epoch, by topic id: in
an epoch a leader never truncates. The second begins where the piece does, and tells three things: that this offset is
still there, up to where the log may be read (high watermark or last stable offset), and which batch the leader has
there, which must be the first of the piece.

Transactions are the broker's business: for read_committed, only it knows which are aborted. What belongs to one is
left to fetches.
"""

from __future__ import annotations

from typing import NamedTuple

from tidelog.client.cluster import Cluster
from tidelog.client.direct_read_files import CannotReadFilesError, NotInFiles, Owner, Piece, SealedSegments
from tidelog.client.errors import BrokerError, check
from tidelog.client.fetch import Fetched
from tidelog.client.offsets import Isolation
from tidelog.errors import ErrorCode, TidelogError
from tidelog.records.header import HEADER_SIZE
from tidelog.types import NO_EPOCH, BrokerId, Buffer, Offset, TopicPartition
from tidelog.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tidelog.wire.messages.topics import DescribableLogDirTopic, DescribeLogDirsRequest, DescribeLogDirsResponse
from tidelog.wire.uuids import ZERO_UUID
from tidelog.wire.versions import Versions

_BY_ID = Versions(13, 17)


class _Leader(NamedTuple):
    """Who leads, in which epoch, what; all that is read is of this one."""

    broker: BrokerId
    epoch: int
    topic_id: bytes


class _Seen(NamedTuple):
    """What the leader answered: how far a reader may see, and the header of the batch it has at an offset."""

    end: Offset
    high_watermark: Offset
    last_stable_offset: Offset
    header: Buffer


class FetchInstead(NamedTuple):
    """The next records must be fetched, up to this offset at least; then the files may go on. None: to the end."""

    until: Offset | None


class DirectRead:
    """Reads one partition from one leader's files. Once `ended`, the leader has changed, or could not be asked."""

    def __init__(
        self, cluster: Cluster, partition: TopicPartition, isolation: Isolation, leader: _Leader, files: SealedSegments
    ) -> None:
        self.ended = False
        self._cluster = cluster
        self._partition = partition
        self._isolation = isolation
        self._leader = leader
        self._files = files
        self._is_sure = False
        """That the leader was it before anything was read."""

    @classmethod
    async def open(cls, cluster: Cluster, partition: TopicPartition, isolation: Isolation) -> DirectRead:
        """CannotReadFilesError if the files cannot be seen from here, whatever is tried."""
        metadata = cluster.metadata
        if metadata.leader(partition) is None:
            await cluster.refresh_once([partition.topic])
        broker = metadata.leader(partition)
        if broker is None:
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"partition {partition}", "it has no leader")
        leader = _Leader(broker, metadata.leader_epoch(partition), metadata.topic_id(partition.topic))
        if leader.topic_id == ZERO_UUID or leader.epoch == NO_EPOCH or metadata.cluster_id is None:
            raise CannotReadFilesError(f"{partition}: its cluster is too old, it has no topic ids or leader epochs")
        directory = await _log_directory(cluster, partition, broker)
        owner = Owner(metadata.cluster_id, broker, leader.topic_id)
        return cls(cluster, partition, isolation, leader, SealedSegments(directory, partition, owner))

    async def next(self, position: Offset, end: Offset) -> Fetched | FetchInstead:
        """What a fetch at `position` would give, and more of it."""
        if not self._is_sure and await self._asked(position) is None:
            return FetchInstead(position + 1)
        self._is_sure = True
        piece = self._files.read(position, end)
        if isinstance(piece, NotInFiles):
            return FetchInstead(piece.until)
        seen = await self._asked(position)
        if seen is None or bytes(piece.records[:HEADER_SIZE]) != seen.header:
            return FetchInstead(position + 1)
        return self._visible(piece, position, seen)

    def close(self) -> None:
        self._files.close()

    def _visible(self, piece: Piece, position: Offset, seen: _Seen) -> Fetched | FetchInstead:
        """The batches up to the first that a reader does not see, or that only the broker can judge."""
        start = piece.batches[0][0]
        size, next_offset = len(piece.records), piece.batches[-1][1].next_offset
        until = piece.segment_end
        for at, header in piece.batches:
            is_behind = header.last_offset >= seen.end
            if is_behind or (header.is_transactional and self._isolation is Isolation.READ_COMMITTED):
                size, next_offset = at - start, header.base_offset
                until = position + 1 if is_behind else until
                break
        if size == 0:
            return FetchInstead(until)
        watermarks = seen.high_watermark, seen.last_stable_offset
        return Fetched(self._partition, position, next_offset, *watermarks, piece.records[:size], [])

    async def _asked(self, position: Offset) -> _Seen | None:
        """What the leader says of an offset; None if it is not the leader any more or the offset is gone."""
        leader = self._leader
        wanted = FetchPartition(
            partition=self._partition.partition,
            current_leader_epoch=leader.epoch,
            fetch_offset=position,
            partition_max_bytes=1,
        )
        topic = FetchTopic(topic=self._partition.topic, topic_id=leader.topic_id, partitions=[wanted])
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1, isolation_level=self._isolation, topics=[topic])
        try:
            response: FetchResponse = await self._cluster.call(request, to=leader.broker, versions=_BY_ID)
            check(response.error_code, f"fetch from broker {leader.broker}")
            data = response.responses[0].partitions[0]
            check(data.error_code, f"fetch of {self._partition}")
        except (TidelogError, IndexError):
            self.ended = True
            return None
        committed = self._isolation is Isolation.READ_COMMITTED
        end = data.last_stable_offset if committed else data.high_watermark
        return _Seen(
            end, data.high_watermark, data.last_stable_offset, bytes(memoryview(data.records or b"")[:HEADER_SIZE])
        )


async def _log_directory(cluster: Cluster, partition: TopicPartition, leader: BrokerId) -> str:
    """Where the leader keeps it."""
    asked = DescribableLogDirTopic(topic=partition.topic, partitions=[partition.partition])
    response: DescribeLogDirsResponse = await cluster.call(DescribeLogDirsRequest(topics=[asked]), to=leader)
    check(response.error_code, f"log directories of broker {leader}")
    for result in response.results:
        for topic in result.topics:
            for one in topic.partitions:
                if TopicPartition(topic.name, one.partition_index) == partition and not one.is_future_key:
                    return result.log_dir
    raise CannotReadFilesError(f"{partition}: broker {leader} does not say in which log directory it is")
