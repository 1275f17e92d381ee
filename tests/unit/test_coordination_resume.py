"""What every home of the coordination port promises of sessions whose time is over, here or at the store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.kits.coordinationkit import (
    HOMES,
    HOMES_WITH_A_SERVER,
    Heard,
    RestartingStore,
    Store,
    becomes_true,
    catch_up,
    home,
    wait_for_state,
)
from tidelog.coordination.port import Create, Delete, Event, EventKind, SessionState

TIMEOUT_MS = 3_000


@pytest.mark.parametrize("name", [home(name) for name in HOMES_WITH_A_SERVER])
def test_edge_41_sessions_go_on_when_the_server_is_back(name: str, tmp_path: Path) -> None:
    """The server is away for longer than a session lasts."""

    async def story(store: RestartingStore) -> None:
        member, other = await store.connect(TIMEOUT_MS), await store.connect()
        states: list[SessionState] = []
        member.listen(states.append)
        await member.create("/mine", ephemeral=True)
        heard = Heard()
        await member.exists("/news", heard.watch())
        restarting = asyncio.ensure_future(store.restart(1.3 * TIMEOUT_MS / 1e3))
        await asyncio.sleep(1.2 * TIMEOUT_MS / 1e3)
        assert not member.is_current(), "its time is over"
        assert member.state is SessionState.SUSPENDED, "but the store may have it still"
        await restarting
        await wait_for_state(member, SessionState.CONNECTED)
        await catch_up(member)
        assert member.is_current()
        stat = await member.exists("/mine")
        assert stat is not None
        assert stat.owner == member.id
        await wait_for_state(other, SessionState.CONNECTED)
        await other.create("/news")
        assert await heard.wait() == [Event(EventKind.CREATED, "/news")]
        assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]

    HOMES_WITH_A_SERVER[name](story, tmp_path / "store")


@pytest.mark.parametrize("name", [home(name) for name in HOMES])
def test_an_ephemeral_node_changes_its_owner_in_one_step(name: str, tmp_path: Path) -> None:
    """Whoever watches the parent never sees it without the child, and the end of the old owner changes nothing."""

    async def story(store: Store) -> None:
        old, new, other = [await store.connect() for _ in range(3)]
        await old.ensure("/ids")
        await old.create("/ids/1", b"old", ephemeral=True)
        await catch_up(new)
        before = await new.exists("/ids/1")
        assert before is not None
        heard = Heard()
        await catch_up(other)
        await other.children("/ids", heard.watch())
        await new.multi([Delete("/ids/1", before.version), Create("/ids/1", b"new", ephemeral=True)])
        assert await heard.wait() == [Event(EventKind.CHILDREN, "/ids")]
        data, stat = await other.get("/ids/1")
        assert (data, stat.owner) == (b"new", new.id)
        assert stat.created_id > before.created_id
        await store.expire(old)

        async def is_lost() -> bool:
            return old.state is SessionState.LOST

        await becomes_true(is_lost)
        await catch_up(other)
        assert (await other.get("/ids/1")).stat == stat

    HOMES[name](story, tmp_path / "store")
