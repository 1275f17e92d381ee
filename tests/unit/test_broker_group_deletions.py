"""What groups have committed for a topic is forgotten when the topic is deleted, without a long turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Mapping

import pytest

from tests.kits.brokerkit import Kit, run
from tests.kits.groupkit import group_config
from tests.kits.memberkit import COMMIT, MemberKit, commit_request, ready
from tidelog.broker.broker import Broker
from tidelog.broker.group.deleted_before import DeletedBefore
from tidelog.broker.handlers import control, group_offsets
from tidelog.broker.handlers.offset_topics import TOPIC_IDS
from tidelog.broker.metadata import TopicMetadata
from tidelog.broker.pacing import PIECE
from tidelog.controller.image import Image
from tidelog.controller.topics import GROUP_OFFSETS_TOPIC
from tidelog.coordination.port import ConnectionLostError
from tidelog.errors import ErrorCode
from tidelog.groups import Groups
from tidelog.groups.commits import Commits
from tidelog.groups.effects import Turn
from tidelog.groups.forgetting import Forgetting
from tidelog.groups.group import Group
from tidelog.lab.broker import eventually
from tidelog.replication.leader import Leader
from tidelog.types import TopicPartition
from tidelog.wire import ZERO_UUID
from tidelog.wire.messages.controller import UpdateMetadataRequest, UpdateMetadataResponse
from tidelog.wire.messages.group_offsets import OffsetFetchRequest, OffsetFetchRequestGroup
from tidelog.wire.messages.group_records import OffsetCommitValue

ONE = {"offsets_topic_replication_factor": "1", "offsets_topic_num_partitions": "1"}


class _PerTurn:
    """Counts the groups that forget topics within a turn of the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = self.most = self.all = 0
        topics_deleted = Commits.topics_deleted

        def counted(commits: Commits, topics: Mapping[str, Container[bytes]]) -> int:
            self._one_more()
            return topics_deleted(commits, topics)

        monkeypatch.setattr(Commits, "topics_deleted", counted)

    def _one_more(self) -> None:
        if not self.count:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self.count += 1
        self.all += 1
        self.most = max(self.most, self.count)

    def _next_turn(self) -> None:
        self.count = 0


def _fill(kit: Kit, groups: int) -> None:
    """So many groups have committed for t and u."""
    shard = kit.broker.groups.shards[0]
    value = OffsetCommitValue(offset=5, metadata="", commit_timestamp=kit.broker.groups.now_ms())
    for number in range(groups):
        group = shard.groups._create(f"group-{number}", kit.broker.groups.now_ms())
        for topic in ("t", "u"):
            group.commits.put(topic, 0, value)


def test_very_many_groups_forget_a_deleted_topic_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1)
        await kit.create_topic("u", 1)
        await ready(kit)
        _fill(kit, 3_000)
        looks = _PerTurn(monkeypatch)
        await kit.delete_topic("t")
        await kit.create_topic("t", 1)
        last = MemberKit(kit, group="group-2999")
        answer = await kit.call(commit_request(last.group, {("t", 0): 1}), COMMIT)
        assert answer.topics[0].partitions[0].error_code == 0
        groups = kit.broker.groups.shards[0].groups
        await eventually(lambda: looks.all == 3_000)
        assert looks.most <= 700
        assert await last.committed("t") == 1, "it is of the new topic"
        assert await last.committed("u") == 5
        others = [groups.commits_of(f"group-{number}") for number in range(2_999)]
        await eventually(lambda: all(commits is not None and list(commits.by_topic) == ["u"] for commits in others))

    run(story, **ONE)


def test_a_coordinator_that_moves_away_while_groups_forget_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1)
        await ready(kit)
        _fill(kit, 3_000)
        coordinator = kit.broker.groups
        shard = coordinator.shards[0]
        coordinator.topics_deleted(dict.fromkeys(["t"], ZERO_UUID))
        assert shard.has_deleted_topics
        assert coordinator._forgetting is not None
        kit.partition(GROUP_OFFSETS_TOPIC).follow()
        assert not shard.has_deleted_topics
        await coordinator._forgetting
        assert not coordinator.shards

    run(story, **ONE)


@pytest.mark.parametrize("count", [1, 499, 500, 1_300])
def test_a_log_that_refuses_tombstones_is_not_asked_without_a_rest(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1)
        await ready(kit)
        coordinator = kit.broker.groups
        group = coordinator.shards[0].groups._create("g", coordinator.now_ms())
        value = OffsetCommitValue(offset=5, metadata="", commit_timestamp=coordinator.now_ms())
        for partition in range(count):
            group.commits.put("t", partition, value)
        tries, bury = 0, Forgetting._bury_offsets

        def counted(forgetting: Forgetting, turn: Turn, group: Group) -> int:
            nonlocal tries
            tries += 1
            return bury(forgetting, turn, group)

        monkeypatch.setattr(Forgetting, "_bury_offsets", counted)
        with monkeypatch.context() as patched:
            patched.setattr(Leader, "has_enough_replicas", lambda leader: False)
            coordinator.topics_deleted(dict.fromkeys(["t"], ZERO_UUID))
            await asyncio.sleep(10)
        assert 5 <= tries <= 15
        await eventually(lambda: not coordinator.shards[0].has_deleted_topics)
        assert not group.commits

    run(story, **ONE)


def test_a_coordinator_that_loads_looks_at_some_offsets_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic of a group may have thousands of them."""
    looked_at: list[int] = []

    class Counted(OffsetCommitValue):
        @property
        def topic_id(self) -> bytes:  # type: ignore[override]
            if not looked_at or not looked_at[-1]:
                looked_at.append(0)
                asyncio.get_running_loop().call_soon(lambda: looked_at.append(0))
            looked_at[-1] += 1
            return b"of the topic one"

        @topic_id.setter
        def topic_id(self, topic_id: bytes) -> None:
            pass

    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1)
        await ready(kit)
        groups, value = Groups(group_config()), Counted(offset=5, metadata="", commit_timestamp=0)
        for number in range(100):
            group = groups._create(f"group-{number}", 0)
            group.commits.by_topic["t"] = dict.fromkeys(range(1_000), value)
        monkeypatch.setattr(kit.broker.metadata, "id_of", lambda name: b"of the topic one")
        assert await DeletedBefore(kit.broker).among(groups) == []
        assert sum(looked_at) == 100_000
        assert max(looked_at) <= 20_000

    run(story, **ONE)


async def _become_coordinator(kit: Kit) -> None:
    """As if another broker had been it until now."""
    groups = kit.broker.groups
    groups.shards.pop(0).unload()
    groups.role_changed(kit.partition(GROUP_OFFSETS_TOPIC))
    await ready(kit)


async def _commit(kit: Kit, offset: int) -> MemberKit:
    member = MemberKit(kit)
    assert await member.commit(offset) is ErrorCode.NONE
    return member


def test_a_deletion_that_is_heard_of_late_takes_no_offset_of_the_new_topic() -> None:
    """The controller makes a broker coordinator first, and then tells it of all topics."""

    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1)
        await ready(kit)
        old = kit.broker.metadata.id_of("t")
        await kit.delete_topic("t")
        await kit.create_topic("t", 1)
        member = await _commit(kit, 77)
        groups = kit.broker.groups
        groups.shards.pop(0).unload()
        groups.role_changed(kit.partition(GROUP_OFFSETS_TOPIC))
        groups.topics_deleted({"t": old})
        await ready(kit)
        assert await member.committed() == 77
        groups.topics_deleted({"t": old})
        assert await member.committed() == 77

    run(story, **ONE)


def test_the_next_coordinator_knows_what_the_log_could_not_be_told_of_a_deletion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(kit: Kit) -> None:
        for topic in ("t", "u", "stays"):
            await kit.create_topic(topic, 1)
        await ready(kit)
        member = await _commit(kit, 77)
        request = commit_request(member.group, {("u", 0): 8, ("stays", 0): 9})
        await kit.call(request, COMMIT)
        with monkeypatch.context() as patched:
            patched.setattr(Leader, "has_enough_replicas", lambda leader: False)
            await kit.delete_topic("t")
            await kit.create_topic("t", 1)
            await kit.delete_topic("u")
            await asyncio.sleep(1)
            await _become_coordinator(kit)
            assert [await member.committed(topic) for topic in ("t", "u", "stays")] == [-1, -1, 9]
        shard = kit.broker.groups.shards[0]
        await eventually(lambda: not shard.has_deleted_topics)
        await kit.restart()
        await ready(kit)
        assert [await member.committed(topic) for topic in ("t", "u", "stays")] == [-1, -1, 9]

    run(story, **ONE)


def test_a_coordinator_that_has_not_been_told_of_the_new_topic_yet_keeps_its_offsets() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1)
        await ready(kit)
        member = await _commit(kit, 77)
        topics = kit.broker.metadata.topics
        known = topics["t"]
        topics["t"] = known._replace(topic_id=b"of an older one.")
        await _become_coordinator(kit)
        assert await member.committed() == 77
        kit.broker.groups.topics_deleted({"t": topics["t"].topic_id})
        topics["t"] = known
        assert await member.committed() == 77

    run(story, **ONE)


def test_the_next_coordinator_knows_of_a_deletion_that_waits_for_a_broker_that_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until the broker is back the topic stands in the store, and all brokers have been told of its end before."""
    holders = Image.holders

    def also_on_another(image: Image, name: str) -> list[tuple[TopicPartition, int]]:
        return [*holders(image, name), (TopicPartition(name, 0), 2)]

    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1)
        await ready(kit)
        member = await _commit(kit, 77)
        with monkeypatch.context() as is_down, monkeypatch.context() as patched:
            is_down.setattr(Image, "holders", also_on_another)
            patched.setattr(Leader, "has_enough_replicas", lambda leader: False)
            await kit.delete_topic("t")
            await _become_coordinator(kit)
            assert await member.committed() == -1
        await kit.restart()
        await ready(kit)
        await kit.create_topic("t", 1)
        assert await member.committed() == -1

    run(story, **ONE)


def test_a_commit_after_the_session_was_lost_is_of_the_topic_that_there_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic was made anew meanwhile. The controller makes the broker coordinator, and tells it of topics later."""
    told = control._update_metadata

    async def late(broker: Broker, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        await asyncio.sleep(2)
        return told(broker, request)

    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1)
        await ready(kit)
        topics = kit.broker.metadata.topics
        topics["t"] = topics["t"]._replace(topic_id=b"of an older one.")
        monkeypatch.setattr(control, "_update_metadata", late)
        kit.expire_session()
        await eventually(lambda: not kit.broker.groups.shards)
        member = MemberKit(kit)
        while await member.commit(77) is not ErrorCode.NONE:
            await asyncio.sleep(0.05)
        await asyncio.sleep(5)
        assert await member.committed() == 77

    run(story, **ONE)


@pytest.mark.parametrize("away_s", [8, 30])
def test_a_coordinator_is_there_again_as_soon_as_the_store(away_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has read its log, and asks the store again, instead of beginning anew after a longer and longer rest."""
    among = DeletedBefore.among

    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1)
        await ready(kit)
        loop = asyncio.get_running_loop()
        is_away = True

        async def answers_when_it_is_there(self: DeletedBefore, groups: Groups) -> list[dict[str, bytes]]:
            if is_away:
                raise ConnectionLostError
            return await among(self, groups)

        monkeypatch.setattr(DeletedBefore, "among", answers_when_it_is_there)
        groups = kit.broker.groups
        groups.shards.pop(0).unload()
        groups.role_changed(kit.partition(GROUP_OFFSETS_TOPIC))
        await asyncio.sleep(away_s)
        assert not groups.shards[0].is_active
        is_away, back_s = False, loop.time()
        await eventually(lambda: groups.shards[0].is_active)
        assert loop.time() - back_s < 1

    run(story, **ONE)


@pytest.mark.parametrize(("piece", "order"), [(PIECE, "AB"), (0, "BA")], ids=["at once", "in pieces"])
def test_an_offset_of_a_deleted_topic_is_not_told_with_the_id_of_the_next(
    piece: int, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks for all offsets of two groups waits for what B has under way."""
    monkeypatch.setattr(group_offsets, "PIECE", piece)

    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1)
        await kit.create_topic("u", 1)
        await ready(kit)
        await kit.call(commit_request("A", {("t", 0): 77}), COMMIT)
        await kit.call(commit_request("B", {("u", 0): 1}), COMMIT)
        connection, other = await kit.connect(), await kit.connect()
        asked = [OffsetFetchRequestGroup(group_id=group_id, topics=None) for group_id in order]
        request = OffsetFetchRequest(require_stable=True, groups=asked)
        with monkeypatch.context() as patched:
            patched.setattr(Leader, "advance", lambda *given: False)
            commit = asyncio.ensure_future(other.call(commit_request("B", {("u", 0): 2}), COMMIT))
            await asyncio.sleep(0.1)
            told = asyncio.ensure_future(connection.call(request, TOPIC_IDS))
            await asyncio.sleep(0.1)
            metadata, old = kit.broker.metadata, kit.broker.metadata.id_of("t")
            metadata._forget("t")
            metadata.topics["t"] = TopicMetadata("t", b"of the next one.", {})
            metadata._names[b"of the next one."] = "t"
        kit.partition(GROUP_OFFSETS_TOPIC).check_isr()
        await commit
        found = {topic.topic_id for group in (await told).groups for topic in group.topics}
        assert found == {metadata.id_of("u")}
        assert old not in found

    run(story, **ONE)
