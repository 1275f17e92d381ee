"""Members of a consumer group that read records and commit what they have read, while a cluster is put to the test."""

from __future__ import annotations

import asyncio
from typing import Any

from tidelog.client.cluster import Cluster
from tidelog.client.committed import visible_records
from tidelog.client.errors import BrokerError
from tidelog.client.fetch import Fetcher
from tidelog.client.membership import Assignment, Member
from tidelog.client.seat import MemberSettings
from tidelog.errors import ErrorCode, TidelogError
from tidelog.lab.client_rules import MEMBER_PREFIX
from tidelog.lab.cluster import TOPIC, LabCluster
from tidelog.lab.rules import ReadOn, Share, Told
from tidelog.lab.witness import Witness
from tidelog.lab.workload import connected
from tidelog.types import Offset, TopicPartition

GROUP = "group"
OFFSETS = TopicPartition("__consumer_offsets", 0)
SETTINGS = {
    "offsets_topic_num_partitions": "1",
    "group_initial_rebalance_delay_ms": "0",
    "min_insync_replicas": "2",
}
"""Of brokers. With fewer replicas a commit would be promised that one loss of power can take (the fault budget)."""
_MEMBER = MemberSettings(session_timeout_ms=6_000, heartbeat_interval_ms=500, rebalance_timeout_ms=10_000)
_REST_S = 0.2
_POLL_S = 0.5


class GroupLedger:
    """What the members of a group were told is committed."""

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, Offset] = {}
        """The highest that was acknowledged."""

    def acknowledged(self, partition: TopicPartition, offset: Offset) -> None:
        self.committed[partition] = max(offset, self.committed.get(partition, 0))

    def has_committed(self, partition: TopicPartition, end: Offset) -> bool:
        return self.committed.get(partition, 0) >= end


class GroupMember:
    """Reads what it is assigned from the committed offset on, and commits what it has read. It may be killed."""

    def __init__(
        self, cluster: LabCluster[Any], witness: Witness, ledger: GroupLedger, number: int, *, is_static: bool
    ) -> None:
        self.name = f"{MEMBER_PREFIX}{number}"
        self._cluster = cluster
        self._witness = witness
        self._ledger = ledger
        self._settings = _MEMBER._replace(group_instance_id=self.name if is_static else None)

    async def run(self) -> None:
        while True:
            async with (
                await connected(self._cluster, self.name) as client,
                await connected(self._cluster, self.name) as reading,
            ):
                try:
                    async with Member(client, GROUP, [TOPIC], settings=self._settings) as member:
                        await self._live(member, reading)
                except TidelogError:
                    await asyncio.sleep(_REST_S)

    async def _live(self, member: Member, reading: Cluster) -> None:
        while True:
            assignment = member.assignment
            self._witness.assigned(Share(self.name, assignment.generation, assignment.partitions))
            positions: dict[TopicPartition, Offset] = {}
            try:
                positions = await self._begin(member, assignment)
                if positions:
                    await self._read_and_commit(member, assignment, reading, positions)
            except TidelogError as failure:  # the coordinator is away, or the group has changed
                self._check_positions(failure, positions)
            await asyncio.sleep(_REST_S)

    def _check_positions(self, failure: TidelogError, positions: dict[TopicPartition, Offset]) -> None:
        """A position outside of its log sends a group back to the start, or to the end."""
        if isinstance(failure, BrokerError) and failure.code == ErrorCode.OFFSET_OUT_OF_RANGE:
            for partition, position in positions.items():
                if str(partition) in str(failure):
                    self._witness.vanished(self.name, partition, position)

    async def _begin(self, member: Member, assignment: Assignment) -> dict[TopicPartition, Offset]:
        """Where to begin; nowhere if the assignment has changed meanwhile."""
        before = dict(self._ledger.committed)
        found = await member.committed(assignment.partitions)
        if member.assignment != assignment:
            return {}
        positions = {one: found[one].offset if one in found else 0 for one in assignment.partitions}
        for partition, offset in positions.items():
            self._witness.member_told(Told(self.name, partition, offset, before.get(partition, 0)))
        return positions

    async def _read_and_commit(
        self, member: Member, assignment: Assignment, reading: Cluster, positions: dict[TopicPartition, Offset]
    ) -> None:
        fetcher = Fetcher(reading, positions)
        try:
            while member.assignment == assignment:
                try:
                    answers = await asyncio.wait_for(fetcher.next(), _POLL_S)
                except TimeoutError:
                    continue
                for fetched in answers:
                    if member.assignment != assignment:
                        return  # another member may have read on since, and this position would take the group back
                    records = list(visible_records(fetched.records, fetched.aborted, fetched.fetch_offset))
                    partition, next_offset = fetched.partition, fetched.next_offset
                    read = ReadOn(self.name, partition, positions[partition], next_offset, records)
                    self._witness.read_on(read)
                    positions[partition] = next_offset
                    await member.commit({partition: next_offset})
                    self._ledger.acknowledged(partition, next_offset)
        finally:
            fetcher.close()
