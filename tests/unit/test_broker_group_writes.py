"""How writes of the groups are settled: in the order of the log, but for those that are not in it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.brokerkit import Kit, run
from tidelog.broker.group.writes import Writes, WriteSettings
from tidelog.errors import ErrorCode
from tidelog.groups import Write

OK, TOO_LATE = ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT
TIMEOUT_MS = 5_000


class Settled:
    """Writes with names to a partition, and what became of them in its order."""

    def __init__(self, kit: Kit) -> None:
        self._names: dict[Any, str] = {}
        self.found: list[tuple[str, ErrorCode]] = []
        self.writes = Writes(
            kit.partition(),
            WriteSettings()._replace(timeout_ms=TIMEOUT_MS),
            wall_ms=lambda: 0,
            at_end_of_turn=asyncio.get_running_loop().call_soon,
            settle=lambda write, code: self.found.append((self._names[write.done], code)),
        )

    async def add(self, name: str, size: int | None = 1) -> None:
        write = Write([] if size is None else [(name.encode(), bytes(size))], lambda error, now_ms: [])
        self._names[write.done] = name
        self.writes.add(write)
        await asyncio.sleep(0.001)


async def _led(kit: Kit) -> Settled:
    """The follower has nothing yet, so nothing is committed until it has left the ISR."""
    await kit.create_topic()
    assert await kit.lead_and_isr(isr=[1, 2]) == 0
    return Settled(kit)


def _commit(kit: Kit) -> None:
    partition = kit.partition()
    partition.isr_changed([1])


def test_what_the_log_refuses_does_not_wait_for_what_is_in_it() -> None:
    async def story(kit: Kit) -> None:
        settled = await _led(kit)
        await settled.add("first")
        await settled.add("too large", size=2_000_000)
        await settled.add("second")
        assert settled.found == [("too large", ErrorCode.MESSAGE_TOO_LARGE)]
        _commit(kit)
        await asyncio.sleep(0.01)
        assert settled.found[1:] == [("first", OK), ("second", OK)]
        await settled.writes.close()

    run(story)


def test_who_waits_for_what_is_under_way_hears_of_its_end_or_that_it_takes_too_long() -> None:
    async def story(kit: Kit) -> None:
        settled = await _led(kit)
        await settled.add("nothing under way", size=None)
        assert settled.found == [("nothing under way", OK)]
        settled.found.clear()
        await settled.add("first")
        await settled.add("waits", size=None)
        await asyncio.sleep(TIMEOUT_MS / 1000)
        assert settled.found == [("first", TOO_LATE), ("waits", TOO_LATE)]
        await settled.add("waits again", size=None)
        _commit(kit)
        await asyncio.sleep(TIMEOUT_MS / 1000 + 1)
        assert settled.found[2:] == [("first", OK), ("waits again", OK)], "each of those that waited was told once"
        await settled.writes.close()

    run(story)


def test_a_write_that_fails_unexpectedly_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(kit: Kit) -> None:
        settled = await _led(kit)
        await settled.add("first")
        with monkeypatch.context() as patched:
            patched.setattr(Writes, "_append_records", lambda *given: 1 // 0)
            await settled.add("fails")
        assert settled.found == [("fails", ErrorCode.UNKNOWN_SERVER_ERROR)]
        await settled.add("last")
        _commit(kit)
        await asyncio.sleep(0.01)
        assert settled.found[1:] == [("first", OK), ("last", OK)]
        await settled.writes.close()

    run(story)
