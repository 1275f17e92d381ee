"""The controller's shell: elections, topics, brokers that come and go, and what goes wrong on the way."""

from __future__ import annotations

import asyncio

import pytest

from tests.kits.controlkit import Cluster, play
from tidelog.broker.control.admin import Deletion, MorePartitions, TopicAdmin
from tidelog.broker.control.shell import NotControllerError
from tidelog.broker.pacing import SlowLane
from tidelog.controller import nodes
from tidelog.controller.events import ElectionRulesChanged
from tidelog.controller.topics import Defaults, NewTopic
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.types import NO_EPOCH, TopicPartition
from tidelog.wire.messages.controller import LeaderAndIsrRequest, UpdateMetadataRequest

T0 = TopicPartition("t", 0)


def test_one_of_many_is_controller_and_its_end_makes_another() -> None:
    async def story(cluster: Cluster) -> None:
        shells = [await cluster.start_shell(id) for id in (1, 2, 3)]
        await eventually(lambda: cluster.active)
        (first,) = cluster.active
        assert first.epoch == 1
        await eventually(lambda: {shell.controller_id for shell in shells} == {first.broker_id})
        await first.stop()
        assert first.epoch == NO_EPOCH
        await eventually(lambda: cluster.active)
        (second,) = cluster.active
        assert second is not first
        assert second.epoch == 2
        node = await cluster.node(nodes.CONTROLLER_EPOCH)
        assert node is not None
        assert node.data == b"2"

    play(story)


def test_a_lost_session_ends_the_term_and_another_session_begins_anew() -> None:
    async def story(cluster: Cluster) -> None:
        session = await cluster.connect()
        shell = await cluster.start_shell(1, session)
        await eventually(lambda: shell.is_active)
        cluster.store.expire(session.id)
        assert not shell.is_active
        await eventually(lambda: shell.epoch == NO_EPOCH)
        with pytest.raises(NotControllerError):
            await cluster.admin(shell).create_topics([NewTopic("t")])
        await shell.stop()
        await shell.start(await cluster.connect())
        await eventually(lambda: shell.is_active)
        assert shell.epoch == 2

    play(story)


def test_a_controller_whose_node_is_taken_away_resigns() -> None:
    async def story(cluster: Cluster) -> None:
        shell = await cluster.start_shell(1)
        await eventually(lambda: shell.is_active)
        await cluster.session.delete(nodes.CONTROLLER)
        await eventually(lambda: shell.epoch == 2)

    play(story)


def test_a_controller_that_was_replaced_writes_nothing() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.start_broker(1)
        shell = await cluster.start_shell(1)
        await eventually(lambda: shell.is_active and cluster.brokers[1].received)
        await cluster.session.set(nodes.CONTROLLER_EPOCH, b"40")
        with pytest.raises(NotControllerError):
            await cluster.admin(shell).create_topics([NewTopic("t", 1, 1)])
        assert await cluster.node("/brokers/topics/t") is None
        # Its own node is still there, so it finds itself elected, under the epoch of now.
        await eventually(lambda: shell.epoch == 40)

    play(story)


def test_a_topic_is_created_grown_and_deleted() -> None:
    async def story(cluster: Cluster) -> None:
        for id in (1, 2, 3):
            await cluster.start_broker(id)
        shell = await cluster.start_shell(1)
        await eventually(lambda: shell.is_active)
        admin = cluster.admin(shell)

        (result,) = await admin.create_topics([NewTopic("t", 3, 2, configs=[("retention.ms", "5")])])
        assert result.code is ErrorCode.NONE
        await eventually(lambda: cluster.shows("t", 3))
        config = await cluster.node("/config/topics/t")
        assert config is not None
        assert config.data == b'{"version":1,"config":{"retention.ms":"5"}}'
        state = await cluster.state("t", 0)
        assert state is not None
        assert (state.leader_epoch, state.version, len(state.isr)) == (0, 0, 2)
        held = {replica for broker in cluster.brokers.values() for replica in broker.replicas}
        assert held == {TopicPartition("t", index) for index in range(3)}

        (result,) = await admin.create_partitions([MorePartitions("t", 5)])
        assert result.code is ErrorCode.NONE
        await eventually(lambda: cluster.shows("t", 5))
        assert await cluster.state("t", 4) is not None

        (result,) = await admin.delete_topics([Deletion("t")])
        assert result.code is ErrorCode.NONE
        await admin.wait_deleted(["t"], 10)
        assert cluster.shows_no("t")
        assert not any(broker.replicas for broker in cluster.brokers.values())
        for path in ("/brokers/topics/t", "/config/topics/t", "/admin/delete_topics/t"):
            assert await cluster.node(path) is None
        (again,) = await admin.create_topics([NewTopic("t", 1, 1)])
        assert again.code is ErrorCode.NONE
        assert again.topic_id != result.topic_id

    play(story)


class _FullLane(SlowLane):
    """Clients keep it busy: a request gets no slice after its first elements, until there is room."""

    def __init__(self) -> None:
        super().__init__()
        self.has_room = asyncio.Event()

    async def turn(self, is_broker: bool = False) -> None:
        await self.has_room.wait()

    async def first_turn(self, elements: int, is_broker: bool = False) -> None:
        await self.has_room.wait()


def test_the_controller_goes_on_while_a_large_request_waits_for_its_slices() -> None:
    async def story(cluster: Cluster) -> None:
        for id in (1, 2):
            await cluster.start_broker(id)
        shell = await cluster.start_shell(1)
        await eventually(lambda: shell.is_active)
        lane = _FullLane()
        admin = TopicAdmin(shell, cluster.random, lambda: Defaults(1, 1), lambda configs: None, lane)
        topics = [NewTopic(f"t-{number}", 1, 1) for number in range(70)]
        waiting = [
            asyncio.ensure_future(admin.create_topics(topics, validate_only=True)),
            asyncio.ensure_future(admin.create_partitions([MorePartitions(topic.name, 2) for topic in topics])),
            asyncio.ensure_future(admin.delete_topics([Deletion(topic.name) for topic in topics] * 10)),
        ]
        for _ in range(3):
            await asyncio.wait_for(shell.ask(ElectionRulesChanged({})), 5)
        assert not any(one.done() for one in waiting)
        lane.has_room.set()
        created, grown, deleted = await asyncio.gather(*waiting)
        assert [result.name for result in created] == [topic.name for topic in topics]
        assert {result.code for result in created} == {ErrorCode.NONE}
        assert {result.code for result in (*grown, *deleted)} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert (len(grown), len(deleted)) == (70, 700)

    play(story)


def test_what_cannot_be_done_is_told_per_topic_and_a_rehearsal_writes_nothing() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.start_broker(1)
        shell = await cluster.start_shell(1)
        await eventually(lambda: shell.is_active)
        admin = cluster.admin(shell)
        new = [NewTopic("t", 1, 1), NewTopic("u", 1, 3), NewTopic("a/b", 1, 1)]
        for validate_only in (True, False):
            codes = [result.code for result in await admin.create_topics(new, validate_only=validate_only)]
            assert codes == [
                ErrorCode.NONE,
                ErrorCode.INVALID_REPLICATION_FACTOR,
                ErrorCode.INVALID_TOPIC_EXCEPTION,
            ]
            assert (await cluster.node("/brokers/topics/t") is None) is validate_only
        (result,) = await admin.create_topics([NewTopic("t", 1, 1)])
        assert result.code is ErrorCode.TOPIC_ALREADY_EXISTS
        (result,) = await admin.create_partitions([MorePartitions("t", 2)], validate_only=True)
        assert result.code is ErrorCode.NONE
        (result,) = await admin.create_partitions([MorePartitions("t", 1)])
        assert result.code is ErrorCode.INVALID_PARTITIONS
        assert [r.code for r in await admin.delete_topics([Deletion("nope"), Deletion("t")])] == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.NONE,
        ]

    play(story)


def test_topics_that_others_write_are_seen() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.start_broker(1)
        shell = await cluster.start_shell(1)
        await eventually(lambda: shell.is_active)
        data = b'{"version":3,"topic_id":"AAAAAAAAAAEAAAAAAAAAAg","partitions":{"0":[1]}}'
        await cluster.session.create("/brokers/topics/t", data)
        await cluster.session.create("/brokers/topics/nonsense", b"?")
        await eventually(lambda: cluster.shows("t", 1))
        await cluster.session.set("/brokers/topics/t", data.replace(b'"0":[1]', b'"0":[1],"1":[1]'))
        await eventually(lambda: cluster.shows("t", 2))
        await cluster.session.create("/admin/delete_topics/t")
        await cluster.session.create("/admin/delete_topics/never")
        await eventually(lambda: cluster.shows_no("t"))
        assert shell.image is not None
        await eventually(lambda: shell.image is not None and "t" not in shell.image.topics)
        assert await cluster.session.children("/admin/delete_topics") == []

    play(story)


def test_deletion_may_be_forbidden() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.start_broker(1)
        shell = await cluster.start_shell(1)
        await eventually(lambda: shell.is_active)
        await cluster.admin(shell).create_topics([NewTopic("t", 1, 1)])
        await cluster.session.create("/admin/delete_topics/t")
        await eventually(lambda: cluster.shows("t", 1))
        while await cluster.session.children("/admin/delete_topics"):
            await eventually(lambda: True)
        assert await cluster.node("/brokers/topics/t") is not None

    play(story, delete_topic_enable=False)


def test_leaders_move_when_brokers_die_and_return() -> None:
    async def story(cluster: Cluster) -> None:
        for id in (1, 2):
            await cluster.start_broker(id)
        shell = await cluster.start_shell(9)
        await eventually(lambda: shell.is_active)
        await cluster.admin(shell).create_topics([NewTopic("t", assignments=[(0, [1, 2])])])
        await eventually(lambda: cluster.shows("t", 1))
        two = cluster.brokers[2]

        await cluster.stop_broker(1)
        await eventually(lambda: two.replicas[T0].leader == 2)
        state = await cluster.state("t", 0)
        assert state is not None
        assert (state.leader, state.isr, state.leader_epoch, state.version) == (2, (2,), 1, 1)
        assert list(two.metadata.brokers) == [2]

        await cluster.stop_broker(2)
        await eventually(lambda: shell.image is not None and not shell.image.brokers)
        state = await cluster.state("t", 0)
        assert state is not None
        assert (state.leader, state.isr) == (-1, (2,))

        one = await cluster.start_broker(1)
        await eventually(lambda: one.metadata.partition("t", 0) is not None and list(one.metadata.brokers) == [1])
        assert one.replicas[T0].leader == -1
        await cluster.start_broker(2)
        await eventually(lambda: one.replicas[T0].leader == 2 and two.replicas[T0].leader == 2)
        assert one.metadata.topic("t").has_leaders  # type: ignore[union-attr]

    play(story)


def test_edge_09_a_broker_that_bounced_unseen_leaves_the_isr() -> None:
    async def story(cluster: Cluster) -> None:
        for id in (1, 2):
            await cluster.start_broker(id)
        shell = await cluster.start_shell(9)
        await eventually(lambda: shell.is_active)
        await cluster.admin(shell).create_topics([NewTopic("t", assignments=[(0, [1, 2])])])
        await eventually(lambda: cluster.shows("t", 1))
        await shell.stop()  # nobody looks
        await cluster.stop_broker(1)
        await cluster.start_broker(1)
        await shell.start(await cluster.connect())
        await eventually(lambda: cluster.brokers[1].replicas[T0].leader == 2)
        state = await cluster.state("t", 0)
        assert state is not None
        assert (state.leader, state.isr) == (2, (2,))

    play(story)


def test_an_unclean_election_is_held_when_the_topic_allows_it() -> None:
    async def story(cluster: Cluster) -> None:
        for id in (1, 2):
            await cluster.start_broker(id)
        shell = await cluster.start_shell(9)
        await eventually(lambda: shell.is_active)
        await cluster.admin(shell).create_topics([NewTopic("t", assignments=[(0, [1, 2])])])
        await eventually(lambda: cluster.shows("t", 1))
        await cluster.stop_broker(2)
        await eventually(lambda: cluster.brokers[1].replicas[T0].isr == [1])
        await cluster.start_broker(2)
        await eventually(lambda: T0 in cluster.brokers[2].replicas)
        await cluster.stop_broker(1)
        await eventually(lambda: cluster.brokers[2].replicas[T0].leader == -1)
        await cluster.session.set("/config/topics/t", nodes.encode_config({"unclean.leader.election.enable": "true"}))
        shell.config_changed(["t"])
        await eventually(lambda: cluster.brokers[2].replicas[T0].leader == 2)
        assert shell.stats.unclean_elections == 1

    play(story)


def test_a_failed_log_directory_moves_the_leader() -> None:
    async def story(cluster: Cluster) -> None:
        for id in (1, 2):
            await cluster.start_broker(id)
        shell = await cluster.start_shell(9)
        await eventually(lambda: shell.is_active)
        await cluster.admin(shell).create_topics([NewTopic("t", assignments=[(0, [1, 2])])])
        await eventually(lambda: cluster.shows("t", 1))
        cluster.brokers[1].failing.add(T0)
        await cluster.session.create(nodes.LOG_DIR_EVENT_PREFIX, nodes.encode_log_dir_event(1), sequential=True)
        await eventually(lambda: cluster.brokers[2].replicas[T0].leader == 2)
        assert cluster.brokers[2].metadata.partition("t", 0).offline_replicas == (1,)  # type: ignore[union-attr]
        assert await cluster.session.children(nodes.LOG_DIR_EVENTS) == []

    play(story)


def test_isr_changes_that_are_notified_are_told() -> None:
    async def story(cluster: Cluster) -> None:
        for id in (1, 2):
            await cluster.start_broker(id)
        shell = await cluster.start_shell(9)
        await eventually(lambda: shell.is_active)
        await cluster.admin(shell).create_topics([NewTopic("t", assignments=[(0, [1, 2])])])
        await eventually(lambda: cluster.shows("t", 1))
        state = await cluster.state("t", 0)
        assert state is not None
        await cluster.session.set(nodes.state_path(T0), nodes.encode_state(state._replace(isr=(1,))), 0)
        await cluster.session.create(nodes.ISR_CHANGE_PREFIX, nodes.encode_isr_change([T0]), sequential=True)
        await eventually(lambda: cluster.brokers[2].metadata.partition("t", 0).isr == (1,))  # type: ignore[union-attr]
        assert await cluster.session.children(nodes.ISR_CHANGES) == []

    play(story)


def test_a_state_that_somebody_else_wrote_makes_it_read_everything_again() -> None:
    async def story(cluster: Cluster) -> None:
        for id in (1, 2):
            await cluster.start_broker(id)
        shell = await cluster.start_shell(9)
        await eventually(lambda: shell.is_active)
        await cluster.admin(shell).create_topics([NewTopic("t", assignments=[(0, [1, 2])])])
        await eventually(lambda: cluster.shows("t", 1))
        state = await cluster.state("t", 0)
        assert state is not None
        await cluster.session.set(nodes.state_path(T0), nodes.encode_state(state._replace(leader_epoch=7)), 0)
        await cluster.stop_broker(1)
        await eventually(lambda: cluster.brokers[2].replicas[T0].leader == 2)
        assert cluster.brokers[2].replicas[T0].leader_epoch == 8
        assert shell.epoch == 1

    play(story)


def test_requests_are_sent_until_they_are_answered() -> None:
    async def story(cluster: Cluster) -> None:
        one = await cluster.start_broker(1)
        one.refuses_connections = True
        shell = await cluster.start_shell(9)
        await eventually(lambda: shell.is_active)
        admin = cluster.admin(shell)
        await admin.create_topics([NewTopic("t", 1, 1)])
        one.refuses_connections = False
        one.drops_answers = 3
        await eventually(lambda: cluster.shows("t", 1))
        kinds = [type(request) for request in one.received]
        assert kinds.count(UpdateMetadataRequest) + kinds.count(LeaderAndIsrRequest) == len(kinds) >= 8

    play(story)


def test_while_nobody_answers_brokers_are_told_nothing_and_then_everything() -> None:
    async def story(cluster: Cluster) -> None:
        for id in (1, 2):
            await cluster.start_broker(id)
        session = await cluster.connect()
        shell = await cluster.start_shell(9, session)
        await eventually(lambda: shell.is_active)
        await cluster.admin(shell).create_topics([NewTopic("t", assignments=[(0, [1, 2])])])
        await eventually(lambda: cluster.shows("t", 1))
        cluster.store.suspend(session.id)
        await cluster.stop_broker(1)
        cluster.store.resume(session.id)
        await eventually(lambda: cluster.brokers[2].replicas[T0].leader == 2)
        assert shell.epoch == 1

    play(story)


def test_who_waits_for_a_controller_that_stops_is_told() -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.start_broker(1)
        session = await cluster.connect()
        shell = await cluster.start_shell(1, session)
        await eventually(lambda: shell.is_active and cluster.brokers[1].received)
        asked = [asyncio.ensure_future(cluster.admin(shell).create_topics([NewTopic(name, 1, 1)])) for name in "tuv"]
        await asyncio.sleep(0)
        await shell.stop()
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(result, NotControllerError) for result in results)

    play(story)
