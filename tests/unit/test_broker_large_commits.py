"""OffsetCommit of very many partitions: readers see all of it or nothing, and so does the next coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from tests.kits.brokerkit import Kit, run
from tests.kits.memberkit import COMMIT, GROUP, commit_request, ready
from tidelog.broker.group.replies import Reply
from tidelog.broker.group.writes import Writes, WriteSettings
from tidelog.broker.pacing import SlowLane
from tidelog.broker.write_path import Written
from tidelog.controller.topics import GROUP_OFFSETS_TOPIC
from tidelog.errors import ErrorCode
from tidelog.groups import Write
from tidelog.lab.broker import eventually
from tidelog.net.calling import Connection
from tidelog.records.batch import decode
from tidelog.records.header import headers
from tidelog.wire import ZERO_UUID
from tidelog.wire.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from tidelog.wire.messages.groups import DeleteGroupsRequest, ListGroupsRequest

ONE = {"offsets_topic_replication_factor": "1", "offsets_topic_num_partitions": "1"}
MANY = 1_200
SMALL_BATCHES = 20_000
"""Bytes of a batch, so that a large commit needs about seven of them."""


def commit_of(partitions: Iterable[int], offset: int, group: str = GROUP) -> OffsetCommitRequest:
    return commit_request(group, {("t", index): offset for index in partitions})


def codes_of(answer: Any) -> set[int]:
    return {partition.error_code for topic in answer.topics for partition in topic.partitions}


async def commit(kit: Kit, partitions: Iterable[int], offset: int) -> set[int]:
    return codes_of(await kit.call(commit_of(partitions, offset), COMMIT))


async def committed(
    connection: Connection, asked: Sequence[int] | None, version: int = 9, topic_id: bytes = ZERO_UUID
) -> dict[int, int]:
    indexes = list(asked or ())
    request = OffsetFetchRequest()
    if version < 8:
        request.group_id = GROUP
        request.topics = None if asked is None else [OffsetFetchRequestTopic(name="t", partition_indexes=indexes)]
    else:
        topics = [OffsetFetchRequestTopics(name="t", topic_id=topic_id, partition_indexes=indexes)]
        request.groups = [OffsetFetchRequestGroup(group_id=GROUP, topics=None if asked is None else topics)]
    answer: Any = await connection.call(request, version, timeout_ms=20_000)
    (group,) = answer.groups if version >= 8 else [answer]
    assert group.error_code == 0
    assert codes_of(group) <= {0}
    return {p.partition_index: p.committed_offset for topic in group.topics for p in topic.partitions}


def batches(kit: Kit) -> int:
    """Of the log of the offsets topic."""
    log = kit.partition(GROUP_OFFSETS_TOPIC).log
    region = log.read_now(0, 1 << 30, log.log_end_offset)
    assert region is not None
    return sum(1 for _ in headers(bytes(region.read())))


async def _begin(kit: Kit, batch_bytes: int | None = None) -> None:
    await kit.create_topic("t", MANY)
    await ready(kit)
    if batch_bytes is not None:
        await kit.alter_topic(GROUP_OFFSETS_TOPIC, max_message_bytes=str(batch_bytes))


@pytest.mark.parametrize("batch_bytes", [None, SMALL_BATCHES])
def test_readers_never_see_half_of_a_commit(batch_bytes: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has a turn between two slices or two batches finds all of the old offsets, or all of the new ones."""
    turn, append = SlowLane.turn, Writes._append_records
    seen: list[set[int]] = []

    async def story(kit: Kit) -> None:
        def look() -> None:
            group = kit.broker.groups.shards[0].groups._groups.get(GROUP)
            values = {} if group is None else group.commits.by_topic.get("t", {})
            seen.append({value.offset for value in values.values()})

        async def turn_and_look(self: SlowLane, is_broker: bool = False) -> None:
            await turn(self, is_broker)
            look()

        def append_and_look(self: Writes, *given: Any) -> int:
            look()
            end = append(self, *given)
            look()
            return end

        await _begin(kit, batch_bytes)
        monkeypatch.setattr(SlowLane, "turn", turn_and_look)
        monkeypatch.setattr(Writes, "_append_records", append_and_look)
        for offset in range(3):
            assert await commit(kit, range(MANY), offset) == {0}
            look()
        assert len(seen) > 10
        assert [found for found in seen if len(found) > 1] == []
        assert seen[-1] == {2}

    run(story, **ONE)


@pytest.mark.parametrize("asked", [range(MANY), None], ids=["each", "all"])
@pytest.mark.parametrize("version", [7, 8, 9, 10])
def test_a_large_fetch_sees_one_moment(
    asked: Sequence[int] | None, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = SlowLane.turn
    turns = []

    async def story(kit: Kit) -> None:
        async def commit_meanwhile(self: SlowLane, is_broker: bool = False) -> None:
            await turn(self, is_broker)
            turns.append(None)
            shard, now_ms = kit.broker.groups.shards[0], kit.broker.groups.now_ms()
            request = commit_of(range(MANY), len(turns))
            reply = Reply()
            shard.perform(shard.groups.commit_offsets(request, COMMIT, now_ms, reply))
            assert isinstance(await reply.wait(), OffsetCommitResponse)

        await _begin(kit)
        assert await commit(kit, range(MANY), 0) == {0}
        monkeypatch.setattr(SlowLane, "turn", commit_meanwhile)
        found = await committed(await kit.connect(), asked, version, topic_id=kit.partition().topic_id)
        assert turns
        assert len(found) == MANY
        assert len(set(found.values())) == 1
        assert -1 not in found.values()

    run(story, **ONE)


@pytest.mark.parametrize("count", [10, MANY], ids=["few", "many"])
def test_all_offsets_of_a_group_are_told_with_the_ids_of_their_topics(count: int) -> None:
    """v10 names topics by id, but whoever asks for all of them knows no ids."""

    async def story(kit: Kit) -> None:
        await _begin(kit)
        topic_ids = {"t": kit.partition().topic_id, "u": await kit.create_topic("u", 1)}
        assert await commit(kit, range(count), 7) == {0}
        assert codes_of(await kit.call(commit_request(GROUP, {("u", 0): 5}), COMMIT)) == {0}
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=None)])
        (group,) = (await kit.call(request, 10)).groups
        assert {topic.topic_id for topic in group.topics} == set(topic_ids.values())
        found = {topic.topic_id: topic.partitions for topic in group.topics}
        assert [(p.committed_offset, p.error_code) for p in found[topic_ids["t"]]] == [(7, 0)] * count
        assert [(p.committed_offset, p.error_code) for p in found[topic_ids["u"]]] == [(5, 0)]

    run(story, **ONE)


def test_a_commit_that_fits_into_one_batch_is_one() -> None:
    async def story(kit: Kit) -> None:
        await _begin(kit)
        before = batches(kit)
        assert await commit(kit, range(MANY), 1) == {0}
        assert batches(kit) == before + 1
        assert kit.partition(GROUP_OFFSETS_TOPIC).log.log_end_offset == MANY

    run(story, **ONE)


def test_commits_that_come_within_a_large_one_stand_behind_it_in_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    append = Writes._append_records
    small: list[Reply] = []

    async def story(kit: Kit) -> None:
        def with_others_in_between(self: Writes, records: Any) -> Written:
            written = append(self, records)
            if len(small) < 2:
                shard, now_ms = kit.broker.groups.shards[0], kit.broker.groups.now_ms()
                small.append(Reply())
                request = commit_of([0, MANY - 1], 1 + len(small))
                shard.perform(shard.groups.commit_offsets(request, COMMIT, now_ms, small[-1]))
            return written

        await _begin(kit, SMALL_BATCHES)
        monkeypatch.setattr(Writes, "_append_records", with_others_in_between)
        assert await commit(kit, range(MANY), 1) == {0}
        assert batches(kit) > 5
        await eventually(lambda: all(isinstance(reply.result, OffsetCommitResponse) for reply in small))
        expected = dict.fromkeys(range(MANY), 1) | {0: 3, MANY - 1: 3}
        assert await committed(await kit.connect(), range(MANY)) == expected
        await kit.restart()
        await ready(kit)
        assert await committed(await kit.connect(), range(MANY)) == expected

    run(story, **ONE)


def test_what_a_write_before_a_large_one_leads_to_stands_behind_it() -> None:
    """The first write is settled while the large one is appended, and adds another one then."""

    async def story(kit: Kit) -> None:
        await _begin(kit, SMALL_BATCHES)
        settled: list[str] = []
        done = {}

        def write(name: str, count: int) -> Write:
            made = Write([(f"{name}-{number}".encode(), None) for number in range(count)], lambda error, now_ms: [])
            done[id(made.done)] = name
            return made

        def settle(write_over: Write, code: ErrorCode) -> None:
            assert code is ErrorCode.NONE
            name = done[id(write_over.done)]
            settled.append(name)
            if name == "first":
                writes.add(write("later", 1))

        loop = asyncio.get_running_loop()
        writes = Writes(
            kit.partition(GROUP_OFFSETS_TOPIC),
            WriteSettings(),
            wall_ms=lambda: 0,
            at_end_of_turn=loop.call_soon,
            settle=settle,
        )
        for name, count in (("first", 1), ("large", 3_000), ("next", 1)):
            writes.add(write(name, count))
        await eventually(lambda: len(settled) == 4)
        assert settled == ["first", "large", "next", "later"]
        log = kit.partition(GROUP_OFFSETS_TOPIC).log
        region = log.read_now(0, 1 << 30, log.log_end_offset)
        assert region is not None
        names = [bytes(record.key or b"").split(b"-")[0].decode() for record in decode(bytes(region.read()))]
        assert list(dict.fromkeys(names)) == settled
        assert len(names) == 3_003
        assert names == sorted(names, key=settled.index), "each in one piece"

    run(story, **ONE)


def test_a_coordinator_that_ceases_to_lead_within_a_commit_refuses_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    appended = []
    append = Writes._append_records

    def until_it_follows(self: Writes, records: Any) -> Written:
        appended.append(len(records))
        if len(appended) == 4:
            self._partition.follow()
        return append(self, records)

    async def story(kit: Kit) -> None:
        await _begin(kit, SMALL_BATCHES)
        assert await commit(kit, range(MANY), 1) == {0}
        monkeypatch.setattr(Writes, "_append_records", until_it_follows)
        assert await commit(kit, range(MANY), 2) == {ErrorCode.NOT_COORDINATOR}
        assert 0 < sum(appended) < MANY
        monkeypatch.undo()
        assert await kit.lead_and_isr(GROUP_OFFSETS_TOPIC) == 0
        await ready(kit)
        assert await commit(kit, range(MANY), 3) == {0}
        connection = await kit.connect()
        assert set((await committed(connection, None)).values()) == {3}
        await kit.restart()
        await ready(kit)
        assert set((await committed(await kit.connect(), None)).values()) == {3}

    run(story, **ONE)


def test_a_large_commit_goes_on_when_its_coordinator_begins_a_further_term(monkeypatch: pytest.MonkeyPatch) -> None:
    append = Writes._append_records
    paused = []

    def pause(self: Writes, records: Any) -> Written:
        written = append(self, records)
        if not paused:
            paused.append(written.end_offset)
            self._partition.pause()
            asyncio.get_running_loop().call_later(1, self._partition.lead, written.leader)
        return written

    async def story(kit: Kit) -> None:
        await _begin(kit, SMALL_BATCHES)
        monkeypatch.setattr(Writes, "_append_records", pause)
        assert await commit(kit, range(MANY), 1) == {0}
        assert 0 < paused[0] < MANY
        assert kit.partition(GROUP_OFFSETS_TOPIC).log.log_end_offset == MANY
        assert await committed(await kit.connect(), None) == dict.fromkeys(range(MANY), 1)

    run(story, **ONE)


def test_a_large_commit_is_not_written_after_its_coordinator_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """This broker leads again before the write goes on: the groups that it has loaded anew know nothing of it."""
    append = Writes._append_records
    interrupted = []

    def interrupt(self: Writes, records: Any) -> Written:
        written = append(self, records)
        if not interrupted:
            interrupted.append(written.end_offset)
            self._partition.follow()
            self._partition.lead(written.leader)
        return written

    async def story(kit: Kit) -> None:
        await _begin(kit, SMALL_BATCHES)
        monkeypatch.setattr(Writes, "_append_records", interrupt)
        assert await commit(kit, range(MANY), 2) == {ErrorCode.NOT_COORDINATOR}
        assert kit.partition(GROUP_OFFSETS_TOPIC).log.log_end_offset == interrupted[0]
        await ready(kit)
        assert await commit(kit, range(MANY), 3) == {0}
        assert set((await committed(await kit.connect(), None)).values()) == {3}

    run(story, **ONE)


@pytest.mark.parametrize("by_id", [False, True])
@pytest.mark.parametrize("is_made_anew", [pytest.param(False, marks=pytest.mark.long), True])
@pytest.mark.parametrize("turn_of_deletion", [1, pytest.param(2, marks=pytest.mark.long)])
def test_offsets_of_a_topic_that_is_deleted_while_a_large_commit_is_read_are_not_stored(
    monkeypatch: pytest.MonkeyPatch, turn_of_deletion: int, is_made_anew: bool, by_id: bool
) -> None:
    """They would be read by the consumers of the next topic of that name. `gone` is in the first and the last piece."""
    turn, turns = SlowLane.turn, 0
    version = 10 if by_id else COMMIT

    async def story(kit: Kit) -> None:
        ids = {"gone": await kit.create_topic("gone", 1), "t": await kit.create_topic("t", MANY)}
        await ready(kit)
        assert codes_of(await kit.call(commit_request(GROUP, {("gone", 0): 1}), COMMIT)) == {0}

        is_time: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        go_on: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def turn_and_wait(self: SlowLane, is_broker: bool = False) -> None:
            nonlocal turns
            if kit.broker.groups.large_commits.locked() and not is_time.done():
                turns += 1
                if turns == turn_of_deletion:
                    is_time.set_result(None)
                    await go_on
            await turn(self, is_broker)

        request = commit_request(GROUP, {("gone", 0): 7, **{("t", index): 8 for index in range(MANY)}})
        request.topics += commit_request(GROUP, {("gone", 0): 9}).topics
        if by_id:
            for topic in request.topics:
                topic.topic_id = ids[topic.name]
        monkeypatch.setattr(SlowLane, "turn", turn_and_wait)
        committing = (await kit.connect()).send(request, version)
        await is_time
        await kit.delete_topic("gone")
        if is_made_anew:
            await kit.create_topic("gone", 1)
        go_on.set_result(None)
        answer: Any = await committing
        told = {(topic.name or topic.topic_id, p.error_code) for topic in answer.topics for p in topic.partitions}
        if by_id:
            assert told == {(ids["gone"], ErrorCode.UNKNOWN_TOPIC_ID), (ids["t"], 0)}
        else:
            assert told == {("gone", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), ("t", 0)}
        assert await _all_topics(kit) == {"t"}
        assert set((await committed(await kit.connect(), range(MANY))).values()) == {8}
        await kit.restart()
        await ready(kit)
        assert await _all_topics(kit) == {"t"}

    run(story, **ONE)


async def _all_topics(kit: Kit) -> set[str]:
    """For which the group has committed anything."""
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=GROUP, topics=None)])
    answer: Any = await kit.call(request, 9)
    return {topic.name for topic in answer.groups[0].topics}


def test_a_record_that_is_too_large_refuses_the_commit_before_anything_is_stored() -> None:
    async def story(kit: Kit) -> None:
        await _begin(kit, SMALL_BATCHES)
        await kit.alter_topic(GROUP_OFFSETS_TOPIC, max_message_bytes="2000")
        request = commit_of(range(MANY), 1)
        request.topics[0].partitions[-1].committed_metadata = "m" * 2_000
        assert codes_of(await kit.call(request, COMMIT)) == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
        assert kit.partition(GROUP_OFFSETS_TOPIC).log.log_end_offset == 0
        assert (await kit.call(ListGroupsRequest(), 5)).groups == []

    run(story, **ONE)


def test_a_commit_of_too_many_bytes_is_refused_whole() -> None:
    async def story(kit: Kit) -> None:
        await _begin(kit)
        request = commit_of(range(MANY), 1)
        for topic in request.topics:
            for partition in topic.partitions:
                partition.committed_metadata = "m" * 16_000
        assert codes_of(await kit.call(request, COMMIT)) == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}
        assert kit.partition(GROUP_OFFSETS_TOPIC).log.log_end_offset == 0

    run(story, offset_metadata_max_bytes="20000", **ONE)


@pytest.mark.parametrize("count", [500, MANY])
def test_what_a_group_committed_is_deleted_even_if_that_takes_several_batches(count: int) -> None:
    async def story(kit: Kit) -> None:
        await _begin(kit, 2_000)
        assert await commit(kit, range(count), 1) == {0}
        deleted = (await kit.call(DeleteGroupsRequest(groups_names=[GROUP]), 2)).results
        assert [result.error_code for result in deleted] == [0]
        assert kit.partition(GROUP_OFFSETS_TOPIC).log.log_end_offset == 2 * count + 1
        await kit.restart()
        await ready(kit)
        assert (await kit.call(ListGroupsRequest(), 5)).groups == []

    run(story, **ONE)


def test_a_large_commit_to_a_broker_that_does_not_coordinate_the_group() -> None:
    async def story(kit: Kit) -> None:
        await kit.create_topic("t", MANY)
        assert await commit(kit, range(MANY), 1) == {ErrorCode.NOT_COORDINATOR}
        await ready(kit)
        nameless = codes_of(await kit.call(commit_of(range(MANY), 1, group=""), COMMIT))
        assert nameless == {ErrorCode.INVALID_GROUP_ID}

    run(story, **ONE)
