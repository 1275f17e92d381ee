"""A broker's place in the cluster when its store restarts, and when a former session of its own holds its name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from tests.kits.brokerkit import Kit, code_of, run, within
from tidelog.broker.membership import BrokerIdTakenError, Membership, last_epoch, register, set_last_epoch
from tidelog.controller import nodes
from tidelog.coordination.memory import MemoryCoordination, MemorySession
from tidelog.coordination.port import BadVersionError, Op, OpResult, Set
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.lab.cluster import SESSION_MS
from tidelog.lab.world import World
from tidelog.ports import Clock
from tidelog.types import NO_EPOCH

ID = 7
PATH = nodes.broker_path(ID)
REGISTRATION = nodes.Registration((), None)
TIMEOUT_MS = 6_000


def test_edge_41_a_broker_goes_on_with_its_session_when_the_store_is_back() -> None:
    """The store is away for longer than a session lasts, nine times in a row."""

    async def story(kit: Kit) -> None:
        await kit.create_topic()
        epoch, session, leader = kit.broker.epoch, kit.broker.session.id, kit.partition().leader
        for _ in range(9):
            assert await code_of(kit.produce()) == ErrorCode.NONE
            kit.store.stop()
            await asyncio.sleep(2 * SESSION_MS / 1e3)
            assert await code_of(kit.produce()) == ErrorCode.NOT_LEADER_OR_FOLLOWER, "its session may be over"
            assert not kit.broker.controller.is_active
            kit.store.start()
            async with within(0.2):
                await eventually(lambda: kit.broker.is_current)
        assert (kit.broker.epoch, kit.broker.session.id, kit.partition().leader) == (epoch, session, leader)
        assert await code_of(kit.produce()) == ErrorCode.NONE
        await kit.create_topic("after")

    run(story)


def test_edge_41_a_broker_replaces_the_nodes_of_its_own_former_session() -> None:
    """The session is lost here, and the store does not know of it."""

    async def story(kit: Kit) -> None:
        await kit.create_topic()
        before, former = kit.broker.epoch, kit.broker.session
        assert isinstance(former, MemorySession)
        kit.store._in_context_of(former, former.lose)
        async with within(1):
            await eventually(lambda: kit.broker.epoch > before)
            await eventually(lambda: kit.broker.controller.is_active and kit.partition().leader is not None)
        assert former.id in kit.store._seats, "its old nodes have not expired"
        for path in (nodes.broker_path(1), nodes.CONTROLLER):
            assert kit.store.tree.get(path).stat.owner == kit.broker.session.id
        assert await code_of(kit.produce()) == ErrorCode.NONE

    run(story)


@pytest.mark.parametrize("restarts", [0, 3])
def test_edge_41_a_broker_that_was_killed_does_not_wait_for_the_end_of_its_session(restarts: int) -> None:
    """Each restart of the store would put that end off."""

    async def story(kit: Kit) -> None:
        await kit.create_topic()
        await kit.produce()
        before = kit.broker.epoch
        kit.kill()
        for _ in range(restarts):
            await kit.store.restart(1.0)
        async with within(1):
            await kit.start()
            await kit.leads("t")
        assert kit.broker.epoch > before
        assert len(kit.store._seats) == 2, "the session of the killed process has not expired"
        assert await code_of(kit.produce()) == ErrorCode.NONE
        assert len(await kit.values()) == 2

    run(story)


def test_a_broker_that_lost_power_waits_for_the_end_of_its_session() -> None:
    """The machine may be another one, with a copy of the directory; then the process that registered may be alive."""

    async def story(kit: Kit) -> None:
        await kit.create_topic()
        kit.lose_power()
        await asyncio.sleep(0.1)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await kit.start()
        assert loop.time() - began_s > 1
        assert len(kit.store._seats) == 1

    run(story)


Story = Callable[[MemoryCoordination, Clock], Coroutine[Any, Any, None]]


def tell(story: Story) -> None:
    with World(1) as world:
        clock = world.host("store").clock
        world.run(story(MemoryCoordination(clock), clock))


async def join(store: MemoryCoordination, clock: Clock, membership: Membership, session: MemorySession) -> int:
    return await register(session, ID, REGISTRATION, clock, 1.0, membership.is_former)


def test_edge_41_a_node_with_the_epoch_that_the_log_directories_note_is_replaced() -> None:
    """The process was killed. Its successor holds the lock on its log directories, and knows its last epoch."""

    async def story(store: MemoryCoordination, clock: Clock) -> None:
        membership = Membership(store, TIMEOUT_MS, lambda: None)
        killed, session = await store.connect(TIMEOUT_MS), await store.connect(TIMEOUT_MS)
        await session.ensure(nodes.BROKER_IDS)
        membership.former_epoch = await register(killed, ID, REGISTRATION, clock, 1.0)
        async with within(0.1):
            epoch = await join(store, clock, membership, session)
        assert epoch > membership.former_epoch
        assert store.tree.get(PATH).stat.owner == session.id
        await killed.close()
        assert store.tree.exists(PATH) is not None

    tell(story)


def test_a_node_of_another_process_is_never_replaced() -> None:
    async def story(store: MemoryCoordination, clock: Clock) -> None:
        membership = Membership(store, TIMEOUT_MS, lambda: None)
        other, session = await store.connect(TIMEOUT_MS), await store.connect(TIMEOUT_MS)
        await session.ensure(nodes.BROKER_IDS)
        membership.former_epoch = await register(other, ID, REGISTRATION, clock, 1.0) - 1
        with pytest.raises(BrokerIdTakenError, match=f"broker {ID} is registered already"):
            await join(store, clock, membership, session)
        assert store.tree.get(PATH).stat.owner == other.id

    tell(story)


def test_the_last_epoch_is_remembered_and_nothing_else_is_believed() -> None:
    async def story(store: MemoryCoordination, clock: Clock) -> None:
        session = await store.connect(TIMEOUT_MS)
        assert (await last_epoch(session, ID))[0] == NO_EPOCH
        await set_last_epoch(session, ID, 42)
        assert (await last_epoch(session, ID))[0] == 42
        await session.set(nodes.broker_epoch_path(ID), b"what?")
        assert (await last_epoch(session, ID))[0] is None

    tell(story)


def test_an_epoch_that_is_noted_while_the_name_is_waited_for_is_heard_of() -> None:
    """Another process of this id had the name, so what was known of the last epoch before counts no more."""

    async def story(store: MemoryCoordination, clock: Clock) -> None:
        other, session = await store.connect(TIMEOUT_MS), await store.connect(TIMEOUT_MS)
        await session.ensure(nodes.BROKER_IDS)
        _, is_last = await last_epoch(session, ID)
        epoch = await register(other, ID, REGISTRATION, clock, 1.0)
        waiting = asyncio.ensure_future(register(session, ID, REGISTRATION, clock, 1.0, checks=[is_last]))
        await asyncio.sleep(0.1)
        await set_last_epoch(other, ID, epoch)
        await other.close()
        with pytest.raises(BadVersionError):
            await waiting
        assert store.tree.exists(PATH) is None

    tell(story)


def test_a_controller_that_is_elected_while_the_old_node_is_replaced_stays() -> None:
    async def story(store: MemoryCoordination, clock: Clock) -> None:
        membership = Membership(store, TIMEOUT_MS, lambda: None)
        killed, session, rival = [await store.connect(TIMEOUT_MS) for _ in range(3)]
        await session.ensure(nodes.BROKER_IDS)
        await session.create(nodes.CONTROLLER_EPOCH, nodes.encode_controller_epoch(1))
        await killed.create(nodes.CONTROLLER, nodes.encode_controller(ID, 0), ephemeral=True)
        membership.former_epoch = await register(killed, ID, REGISTRATION, clock, 1.0)
        multi = session.multi

        async def too_late(ops: Sequence[Op]) -> list[OpResult]:
            if len(ops) > 1 and store.tree.get(nodes.CONTROLLER).stat.owner == killed.id:
                await killed.delete(nodes.CONTROLLER)  # sent before, and only now on its turn
                await rival.create(nodes.CONTROLLER, nodes.encode_controller(1, 0), ephemeral=True)
                await rival.multi([Set(nodes.CONTROLLER_EPOCH, nodes.encode_controller_epoch(2))])
            return await multi(ops)

        session.multi = too_late  # type: ignore[method-assign]
        await join(store, clock, membership, session)
        assert store.tree.get(nodes.CONTROLLER).stat.owner == rival.id
        assert store.tree.get(PATH).stat.owner == session.id

    tell(story)
