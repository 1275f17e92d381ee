"""What a coordinator shows of its groups: members, committed offsets, and how far they are behind."""

from __future__ import annotations

import asyncio

import pytest

from tests.kits.brokerkit import Kit, run
from tests.kits.memberkit import COMMIT, commit_request, coordinator_of, ready
from tests.kits.metricskit import Page, parse
from tidelog.broker.group import gauges, log_ends
from tidelog.coordination.memory import MemoryCoordination
from tidelog.lab.broker import eventually, sim_settings
from tidelog.lab.world import World
from tidelog.wire.messages.topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest

ONE_SHARD = {"offsets_topic_num_partitions": "1", "offsets_topic_replication_factor": "1"}
TWO = {"tidelog_metrics_port": "9404", **ONE_SHARD}
LAG, OFFSET = "kafka_consumergroup_lag", "kafka_consumergroup_current_offset"


def _of_groups(page: Page, name: str) -> dict[tuple[str, ...], float]:
    return {tuple(sample.labels.values()): sample.value for sample in page[name].samples} if name in page else {}


def test_lag_is_what_is_committed_in_the_log_and_not_by_the_group() -> None:
    async def story(kit: Kit) -> None:
        await ready(kit)
        await kit.create_topic("t", 2)
        for _ in range(5):
            await kit.produce()
        odd = 'a "group"\n\\'
        await kit.call(commit_request("g", {("t", 0): 2, ("t", 1): 0}), COMMIT)
        await kit.call(commit_request(odd, {("t", 0): 9}), COMMIT)
        await kit.call(commit_request("reads-nothing-that-is-there", {("unknown", 0): 1}), COMMIT)
        page = parse(kit.broker.metrics.text())
        assert _of_groups(page, OFFSET) == {("g", "t", "0"): 2, ("g", "t", "1"): 0, (odd, "t", "0"): 9}
        assert _of_groups(page, LAG) == {("g", "t", "0"): 3, ("g", "t", "1"): 0, (odd, "t", "0"): 0}
        assert _of_groups(page, "kafka_consumergroup_lag_sum") == {("g", "t"): 3, (odd, "t"): 0}
        assert _of_groups(page, "kafka_consumergroup_members")[("g",)] == 0
        assert _of_groups(page, "tidelog_group_left_out_offsets") == {(): 0}

    run(story, **ONE_SHARD)


def test_a_page_shows_so_many_offsets_and_says_how_many_it_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gauges, "MOST_CHARACTERS", 1000)

    async def story(kit: Kit) -> None:
        await ready(kit)
        await kit.create_topic("t", 30)
        await kit.call(commit_request("g", {("t", index): 0 for index in range(30)}), COMMIT)
        page = parse(kit.broker.metrics.text())
        shown = len(page[OFFSET].samples)
        assert 5 < shown < 15
        assert len(page[LAG].samples) == shown
        assert _of_groups(page, "tidelog_group_left_out_offsets") == {(): 30 - shown}

    run(story, **ONE_SHARD)


async def _page(kit: Kit) -> Page:
    reader, writer = await asyncio.open_connection(kit.host_name, kit.broker.ports_bound["metrics"])
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    assert head.startswith("HTTP/1.1 200 OK")
    return parse(body)


async def _told(one: Kit, two: Kit) -> None:
    for kit in (one, two):
        await eventually(lambda kit=kit: sorted(kit.broker.metadata.brokers) == [1, 2])
    kits = {1: one, 2: two}
    coordinating = kits.pop(await coordinator_of(one))
    await ready(coordinating)
    ((leader, leading),) = kits.items()
    assigned = [CreatableReplicaAssignment(partition_index=0, broker_ids=[leader])]
    topic = CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=assigned)
    await one.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 7)
    await leading.leads("t")
    await eventually(lambda: coordinating.broker.metadata.partition("t", 0) is not None)
    for _ in range(3):
        assert (await leading.produce()).error_code == 0
    await coordinating.call(commit_request("g", {("t", 0): 1}), COMMIT)
    assert _of_groups(await _page(coordinating), LAG) == {}, "the leader is asked for what the last page missed"
    assert _of_groups(await _page(coordinating), LAG) == {("g", "t", "0"): 2}
    assert (await leading.produce()).error_code == 0
    assert _of_groups(await _page(coordinating), LAG) == {("g", "t", "0"): 2}, "it is not asked again so soon"
    await _rest(coordinating)
    assert _of_groups(await _page(coordinating), LAG) == {("g", "t", "0"): 3}
    assert _of_groups(await _page(leading), OFFSET) == {}, "only the coordinator shows a group"
    leading.kill()
    await _rest(coordinating)
    assert _of_groups(await _page(coordinating), LAG) == {}, "a lag that is not known is left out"
    assert _of_groups(await _page(coordinating), OFFSET) == {("g", "t", "0"): 1}


async def _rest(kit: Kit) -> None:
    """On the clock of the world, where time is free."""
    due_ns = kit.broker.clock.monotonic_ns() + log_ends.REST_NS
    await eventually(lambda: kit.broker.clock.monotonic_ns() > due_ns)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_leader_of_another_broker_is_asked(seed: int) -> None:
    async def whole(world: World) -> None:
        store = MemoryCoordination(world.host("store").clock)
        kits = [
            Kit(world.host(host), store, sim_settings(host, tidelog_metrics_host=host, **TWO), number, host)
            for number, host in ((1, "b1"), (2, "b2"))
        ]
        for kit in kits:
            await kit.start()
        await world.host("client").start(_told(*kits))

    with World(seed) as world:
        world.run(whole(world))
