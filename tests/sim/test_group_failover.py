"""Groups of real members on a cluster whose coordinator dies: nobody is lost, and no committed offset goes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from tests.kits.brokerkit import Kit
from tests.kits.brokerkit import run as run_one
from tests.kits.clusterkit import ClusterKit, run
from tests.kits.memberkit import GROUP, MemberKit, ready, stable_generation
from tidelog.broker import pacing
from tidelog.broker.handlers import group_offsets
from tidelog.client.group_offsets import commit_offsets, committed_offsets
from tidelog.client.membership import Assignment, Member
from tidelog.client.seat import MemberSettings
from tidelog.controller.topics import GROUP_OFFSETS_TOPIC
from tidelog.errors import TidelogError
from tidelog.groups import Groups
from tidelog.lab.broker import eventually
from tidelog.types import TopicPartition

PARTITIONS = 6
ALL = {TopicPartition("t", index) for index in range(PARTITIONS)}
SETTINGS = {"offsets_topic_num_partitions": "1", "group_initial_rebalance_delay_ms": "0"}
FAST = MemberSettings(session_timeout_ms=6_000, heartbeat_interval_ms=500, rebalance_timeout_ms=10_000)


class Reader:
    """A process with one member; it commits, for what it has, one more each time."""

    def __init__(self, cluster: ClusterKit, name: str) -> None:
        self.name = name
        self.assignment = Assignment()
        self.committed: dict[TopicPartition, int] = {}
        """What was answered."""
        self.begun_at: list[tuple[float, TopicPartition, int]] = []
        """When it was told to begin with a partition, and where."""
        self._cluster = cluster

    def start(self) -> None:
        self._cluster.world.host(self.name).start(self._live())

    async def _live(self) -> None:
        client = await self._cluster.connect(self.name)
        async with Member(client, GROUP, ["t"], settings=FAST) as member:
            while True:
                self.assignment = assignment = member.assignment
                try:
                    found = await member.committed(assignment.partitions)
                    # By now it may have another share, of which nothing was asked.
                    await self._read(
                        member, assignment, {p: found[p].offset if p in found else 0 for p in assignment.partitions}
                    )
                except TidelogError:
                    await asyncio.sleep(0.05)

    async def _read(self, member: Member, assignment: Assignment, positions: dict[TopicPartition, int]) -> None:
        for partition, position in positions.items():
            self.begun_at.append((asyncio.get_running_loop().time(), partition, position))
        while member.assignment == assignment:
            for partition, position in positions.items():
                await member.commit({partition: position + 1})
                self.committed[partition] = positions[partition] = position + 1
            await asyncio.sleep(0.1)


def _coordinator(cluster: ClusterKit) -> int:
    """Who leads the one partition of the offsets topic and has loaded it; 0 if nobody has."""
    for number, kit in cluster.kits.items():
        if cluster.is_running(number) and any(shard.is_active for shard in kit.broker.groups.shards.values()):
            return number
    return 0


def _groups(cluster: ClusterKit) -> Groups | None:
    number = _coordinator(cluster)
    return cluster[number].broker.groups.shards[0].groups if number else None


def _state(cluster: ClusterKit) -> str:
    groups = _groups(cluster)
    return groups.describe(GROUP, 6).group_state if groups is not None else ""


def _shares_are_right(readers: list[Reader]) -> bool:
    """One generation, every partition with one of them, everybody with some."""
    held = [partition for reader in readers for partition in reader.assignment.partitions]
    return (
        len({reader.assignment.generation for reader in readers}) == 1
        and sorted(held) == sorted(ALL)
        and all(reader.assignment.partitions for reader in readers)
    )


async def _begin(cluster: ClusterKit, count: int) -> list[Reader]:
    await cluster.create_topic("t", [(1, 2, 3)] * PARTITIONS)
    readers = [Reader(cluster, f"r{number}") for number in range(count)]
    for reader in readers:
        reader.start()
    await eventually(lambda: _shares_are_right(readers) and _state(cluster) == "Stable", 60)
    await eventually(lambda: all(reader.committed for reader in readers), 60)
    return readers


class Before:
    """What had been acknowledged at some time: nobody may be told later to begin before it."""

    def __init__(self, readers: list[Reader]) -> None:
        self.time = asyncio.get_running_loop().time()
        self.committed = {partition: _committed(readers, partition) for partition in ALL}

    def check(self, reader: Reader) -> None:
        for time, partition, position in reader.begun_at:
            if time > self.time:
                assert position >= self.committed[partition], f"{reader.name} went back in {partition} at {time}"


async def _goes_on(cluster: ClusterKit, readers: list[Reader], before: Before) -> None:
    """All have their shares, all commit, and nobody was told to begin before what had been acknowledged."""
    await eventually(
        lambda: _shares_are_right(readers) and _state(cluster) == "Stable", 120, "the group is stable again"
    )
    now = {partition: _committed(readers, partition) for partition in ALL}
    await eventually(
        lambda: all(_committed(readers, partition) > now[partition] for partition in ALL), 60, "all commit"
    )
    for reader in readers:
        before.check(reader)


def _committed(readers: list[Reader], partition: TopicPartition) -> int:
    return max((reader.committed.get(partition, 0) for reader in readers), default=0)


PHASES = ("Stable", "PreparingRebalance", "CompletingRebalance")


@pytest.mark.parametrize("later_ms", [0, 8, 40])
@pytest.mark.parametrize("phase", PHASES)
def test_the_coordinator_dies_in_each_phase_of_a_rebalance(phase: str, later_ms: int) -> None:
    async def story(cluster: ClusterKit) -> None:
        readers = await _begin(cluster, 2)
        late = Reader(cluster, "late")
        late.start()
        await _until_seen(lambda: _state(cluster) == phase)
        await asyncio.sleep(later_ms / 1000)
        before = Before(readers)
        dead = _coordinator(cluster)
        cluster[dead].kill()
        await eventually(lambda: _coordinator(cluster) not in (0, dead), 60, "another coordinates")
        await _goes_on(cluster, [*readers, late], before)
        await cluster[dead].start()
        await _goes_on(cluster, [*readers, late], before)

    run(story, topic=False, **SETTINGS)


async def _until_seen(condition: Callable[[], bool]) -> None:
    """A phase may last for a few milliseconds only."""
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0.0005)
    raise AssertionError("never seen")


def test_the_coordinator_is_frozen_and_comes_back_as_nobody() -> None:
    async def story(cluster: ClusterKit) -> None:
        readers = await _begin(cluster, 2)
        before = Before(readers)
        frozen = _coordinator(cluster)
        cluster[frozen].host.freeze()
        others = [kit for number, kit in cluster.kits.items() if number != frozen]
        await eventually(lambda: any(s.is_active for kit in others for s in kit.broker.groups.shards.values()), 60)
        await eventually(lambda: all(_committed(readers, one) > before.committed[one] for one in ALL), 60)
        cluster[frozen].host.thaw()
        await eventually(lambda: not cluster[frozen].broker.groups.shards, 60, "it is no coordinator any more")
        await _goes_on(cluster, readers, before)

    run(story, topic=False, **SETTINGS)


def test_a_member_that_dies_is_replaced_by_the_others() -> None:
    async def story(cluster: ClusterKit) -> None:
        readers = await _begin(cluster, 3)
        before = Before(readers)
        cluster.world.host(readers[0].name).kill()
        await _goes_on(cluster, readers[1:], before)

    run(story, topic=False, **SETTINGS)


def test_a_commit_waits_for_the_replicas() -> None:
    async def story(cluster: ClusterKit) -> None:
        (reader,) = await _begin(cluster, 1)
        number = _coordinator(cluster)
        partition = cluster[number].broker.replicas.partitions[TopicPartition(GROUP_OFFSETS_TOPIC, 0)]
        assert len(partition.isr) == 3
        for other in cluster.kits:
            if other != number:
                cluster[other].host.freeze()
        await asyncio.sleep(0.2)  # what they had sent before still arrives, and counts
        await eventually(lambda: bool(partition.awaiting_commit))
        committed = dict(reader.committed)
        await asyncio.sleep(1)
        assert reader.committed == committed, "nobody else has it, so nobody is told that it is committed"
        for other in cluster.kits:
            cluster[other].host.thaw()
        await eventually(lambda: reader.committed != committed, 60)

    run(story, topic=False, **SETTINGS)


@pytest.mark.parametrize("later_ms", [0, 1, 2, 3, 5, 8, 13])
def test_edge_21_a_commit_of_several_batches_is_answered_only_if_the_next_coordinator_has_all_of_it(
    later_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "PIECE", 10)
    monkeypatch.setattr(group_offsets, "PIECE", 10)
    many = [TopicPartition("t", index) for index in range(40)]

    async def story(cluster: ClusterKit) -> None:
        await cluster.create_topic("t", [(1, 2, 3)] * len(many))
        client = await cluster.connect("client")

        async def seen() -> set[int]:
            found = await committed_offsets(client, GROUP, many)
            assert len(found) == len(many)
            return {offset.offset for offset in found.values()}

        await commit_offsets(client, GROUP, dict.fromkeys(many, 1))
        assert await seen() == {1}
        dead = _coordinator(cluster)
        log = cluster[dead].broker.replicas.partitions[TopicPartition(GROUP_OFFSETS_TOPIC, 0)].log
        end = log.log_end_offset
        second = asyncio.ensure_future(commit_offsets(client, GROUP, dict.fromkeys(many, 2)))
        await _until_seen(lambda: log.log_end_offset > end)
        await asyncio.sleep(later_ms / 1000)
        cluster[dead].kill()
        (failure,) = await asyncio.gather(second, return_exceptions=True)
        await eventually(lambda: _coordinator(cluster) not in (0, dead), 60, "another coordinates")
        if failure is None:
            assert await seen() == {2}
        else:
            assert await seen() <= {1, 2}
        await commit_offsets(client, GROUP, dict.fromkeys(many, 3))
        assert await seen() == {3}

    run(story, topic=False, message_max_bytes="1000", **SETTINGS)


@pytest.mark.parametrize("count", [1000])
def test_a_thousand_members_in_one_group(count: int) -> None:
    async def story(kit: Kit) -> None:
        await ready(kit)
        members = [MemberKit(kit, f"m{number}") for number in range(count)]
        is_stable = partial(_all_in_one_generation, members)
        await asyncio.gather(*(member.live(is_stable) for member in members))
        shard = kit.broker.groups.shards[0]
        described = shard.groups.describe(GROUP, 6)
        assert (described.group_state, len(described.members)) == ("Stable", count)
        assert sorted(one.member_id for one in described.members) == sorted(member.id for member in members)

    run_one(
        story,
        offsets_topic_replication_factor="1",
        offsets_topic_num_partitions="1",
        group_initial_rebalance_delay_ms="3000",
        max_connections="100000",
    )


def _all_in_one_generation(members: list[MemberKit]) -> bool:
    generations = stable_generation(members)
    return len(generations) == 1 and -1 not in generations
