"""A fault of ours with one group does not end what is done for all groups in the background."""

from __future__ import annotations

import asyncio

import pytest

from tests.kits.brokerkit import Kit, run
from tests.kits.memberkit import COMMIT, MemberKit, commit_request, ready
from tidelog.broker.group.shard import GroupShard
from tidelog.groups.forgetting import Forgetting
from tidelog.groups.group import Group
from tidelog.lab.broker import eventually

ONE = {"offsets_topic_replication_factor": "1", "offsets_topic_num_partitions": "1"}


def test_offsets_expire_though_a_check_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    failed: list[GroupShard] = []
    expire = GroupShard.expire_offsets

    def once_failing(shard: GroupShard, most: int) -> int:
        if not failed:
            failed.append(shard)
            raise ValueError("a reason that was not foreseen")
        return expire(shard, most)

    async def story(kit: Kit) -> None:
        monkeypatch.setattr(GroupShard, "expire_offsets", once_failing)
        await kit.create_topic("t", 1)
        await ready(kit)
        await kit.call(commit_request("g", {("t", 0): 5}), COMMIT)
        await eventually(lambda: bool(failed))
        await asyncio.sleep(70)
        assert await MemberKit(kit).committed() == -1

    run(story, offsets_retention_minutes="1", offsets_retention_check_interval_ms="1000", **ONE)


def test_offsets_of_a_deleted_topic_are_forgotten_though_one_group_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    forget = Forgetting._forget_deleted_of

    def failing(forgetting: Forgetting, group: Group) -> int:
        if group.id == "bad":
            raise ValueError("a reason that was not foreseen")
        return forget(forgetting, group)

    async def story(kit: Kit) -> None:
        await kit.create_topic("t", 1)
        await ready(kit)
        for name in ("bad", "good"):
            await kit.call(commit_request(name, {("t", 0): 5}), COMMIT)
        monkeypatch.setattr(Forgetting, "_forget_deleted_of", failing)
        await kit.delete_topic("t")
        groups = kit.broker.groups.shards[0].groups
        await eventually(lambda: not groups.commits_of("good"))
        await eventually(lambda: not groups.forgetting.has_deleted_topics)

    run(story, **ONE)
