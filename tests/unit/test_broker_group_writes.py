"""How writes of the groups are settled: in the order of the log, but for those that are not in it."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest

from tests.kits.brokerkit import Kit, run
from tidelog.broker.group.writes import Writes, WriteSettings
from tidelog.broker.partition import Partition
from tidelog.errors import ErrorCode
from tidelog.groups import Record, Write
from tidelog.lab.broker import eventually

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

    async def add(self, name: str, size: int = 1, count: int = 1) -> None:
        records = [(f"{name}-{number}".encode(), bytes(size)) for number in range(count)]
        write = Write(records, lambda error, now_ms: [])
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
        await settled.add("nothing under way", count=0)
        assert settled.found == [("nothing under way", OK)]
        settled.found.clear()
        await settled.add("first")
        await settled.add("waits", count=0)
        await asyncio.sleep(TIMEOUT_MS / 1000)
        assert settled.found == [("first", TOO_LATE), ("waits", TOO_LATE)]
        await settled.add("waits again", count=0)
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


def test_a_large_write_that_cannot_go_on_takes_too_long_at_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of it the broker does not know whether it leads yet."""

    async def story(kit: Kit) -> None:
        settled = await _led(kit)
        _commit(kit)
        looks = count()
        with monkeypatch.context() as patched:
            patched.setattr(Partition, "is_current", property(lambda partition: next(looks) == 0))
            await settled.add("large", count=3_000)
            await asyncio.sleep(TIMEOUT_MS / 1000 + 0.1)
            assert settled.found == [("large", TOO_LATE)]
        await eventually(lambda: settled.found[1:] == [("large", OK)])
        await settled.writes.close()

    run(story)


def test_what_waits_behind_a_large_write_that_cannot_go_on_hears_that_it_takes_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(kit: Kit) -> None:
        settled = await _led(kit)
        _commit(kit)
        looks = count()
        with monkeypatch.context() as patched:
            patched.setattr(Partition, "is_current", property(lambda partition: next(looks) == 0))
            await settled.add("large", count=3_000)
            await settled.add("behind")
            await asyncio.sleep(TIMEOUT_MS / 1000 - 0.1)
            await settled.add("later")
            assert settled.found == []
            await asyncio.sleep(0.2)
            assert settled.found == [("large", TOO_LATE), ("behind", TOO_LATE)]
            await asyncio.sleep(TIMEOUT_MS / 1000)
            assert settled.found[2:] == [("later", TOO_LATE)]
        await eventually(lambda: settled.found[3:] == [("large", OK), ("behind", OK), ("later", OK)])
        await settled.writes.close()

    run(story)


def test_a_large_write_that_failed_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(kit: Kit) -> None:
        settled = await _led(kit)
        _commit(kit)
        looks = count()
        with monkeypatch.context() as patched:
            patched.setattr(Partition, "is_current", property(lambda partition: next(looks) == 0))
            await settled.add("large", count=3_000)
            settled.writes.end()
            await asyncio.sleep(TIMEOUT_MS / 1000 + 1)
        assert settled.found == [("large", ErrorCode.NOT_LEADER_OR_FOLLOWER)]
        await settled.writes.close()

    run(story)


def test_nothing_is_appended_any_more_when_the_broker_stops_during_a_large_write() -> None:
    async def story(kit: Kit) -> None:
        settled = await _led(kit)
        _commit(kit)
        log = kit.partition().log
        for size in (3_000, 4_000):
            records: list[Record] = [(b"%d" % number, bytes(1_000)) for number in range(size)]
            settled.writes.add(Write(records, lambda error, now_ms: []))
        settled.writes.add(Write([(b"k", b"")], lambda error, now_ms: []))
        while log.log_end_offset == 0:
            await asyncio.sleep(0)
        await settled.writes.close()
        end = log.log_end_offset
        await asyncio.sleep(1)
        assert log.log_end_offset == end < 3_000

    run(story)
