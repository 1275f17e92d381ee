"""Broker epochs as the store has them: each broker is read once, then watched."""

from __future__ import annotations

from tests.kits.brokerkit import Kit, run
from tests.kits.metricskit import value
from tidelog.broker.registrations import Registrations
from tidelog.controller import nodes
from tidelog.coordination.port import Session
from tidelog.lab.broker import eventually
from tidelog.metrics import Metrics
from tidelog.types import Epoch

OTHER = 2


async def _register(session: Session) -> Epoch:
    await session.create(nodes.broker_path(OTHER), b"{}", ephemeral=True)
    stat = await session.exists(nodes.broker_path(OTHER))
    assert stat is not None
    return stat.created_id


class Watched:
    """Registrations of a session of their own."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._metrics = Metrics()
        self.them = Registrations(lambda: self.session, self._metrics)

    @property
    def reads(self) -> float:
        return value(self._metrics, "tidelog_broker_registration_reads_total")

    async def knows(self, epoch: Epoch) -> None:
        await eventually(lambda: self.them.is_registered(OTHER, epoch))


def test_a_registration_is_read_once_and_followed_from_then_on() -> None:
    async def story(kit: Kit) -> None:
        watched, other = Watched(await kit.store.connect(6_000)), await kit.store.connect(6_000)
        assert not watched.them.is_registered(OTHER, 5)
        await eventually(lambda: watched.reads == 1)
        epoch = await _register(other)
        await watched.knows(epoch)
        assert not watched.them.is_registered(OTHER, epoch - 1)
        assert not watched.them.is_registered(OTHER, epoch + 1)
        assert watched.reads == 2, "strangers do not make it read"
        await other.close()
        await eventually(lambda: not watched.them.is_registered(OTHER, epoch))
        later = await _register(await kit.store.connect(6_000))
        await watched.knows(later)
        assert later > epoch
        assert not watched.them.is_registered(OTHER, epoch)
        await watched.them.stop()

    run(story)


def test_other_data_of_the_node_is_no_other_registration() -> None:
    async def story(kit: Kit) -> None:
        watched, other = Watched(await kit.store.connect(6_000)), await kit.store.connect(6_000)
        epoch = await _register(other)
        await watched.knows(epoch)
        for data in (b"1", b"2"):
            reads = watched.reads
            await other.set(nodes.broker_path(OTHER), data)
            await eventually(lambda reads=reads: watched.reads > reads)  # type: ignore[misc]
            assert watched.them.is_registered(OTHER, epoch)
        await watched.them.stop()

    run(story)


def test_what_the_store_did_not_tell_is_asked_again() -> None:
    async def story(kit: Kit) -> None:
        watched, other = Watched(await kit.store.connect(6_000)), await kit.store.connect(6_000)
        epoch = await _register(other)
        kit.store.suspend(watched.session.id)
        assert not watched.them.is_registered(OTHER, epoch)
        await eventually(lambda: watched.reads == 1)
        assert not watched.them.is_registered(OTHER, epoch)
        kit.store.resume(watched.session.id)
        await watched.knows(epoch)
        await watched.them.stop()

    run(story)


def test_another_session_asks_anew() -> None:
    """The watches of the former one are gone with it."""

    async def story(kit: Kit) -> None:
        watched, other = Watched(await kit.store.connect(6_000)), await kit.store.connect(6_000)
        epoch = await _register(other)
        await watched.knows(epoch)
        await watched.session.close()
        watched.session = await kit.store.connect(6_000)
        await other.close()
        await eventually(lambda: not watched.them.is_registered(OTHER, epoch))
        await watched.knows(await _register(await kit.store.connect(6_000)))
        await watched.them.stop()

    run(story)
