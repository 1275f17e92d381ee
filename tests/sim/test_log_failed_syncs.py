"""After a failed sync nothing that only the page cache shows is trusted, in this process or in the next one.

The kernel may take the pages that it could not write for clean: a later sync succeeds and has written nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.kits.logkit import batch, values, with_config
from tidelog.errors import StorageError, SyncError
from tidelog.lab.world import SimHost, World
from tidelog.log import recovery
from tidelog.log.directory import LogDirectory
from tidelog.types import TopicPartition

PARTITION = TopicPartition("orders", 0)
CONFIG = with_config(segment_bytes=900, retention_ms=-1)
A, B = "/data/a", "/data/b"


async def opened(host: SimHost, path: str = A, others: Sequence[str] = ()) -> LogDirectory:
    return await LogDirectory.open(host.disk, host.clock, host.random, path, lambda topic: CONFIG, others=others)


async def first_life(host: SimHost, written: list[bytes], others: Sequence[str] = ()) -> None:
    """Some records are synced, and that is written down; then a sync of others fails."""
    directory = await opened(host, others=others)
    log = await directory.create(PARTITION)
    for number in range(40):
        written.append(b"%d" % number * 9)
        log.append_as_leader(batch([written[-1]]), 0)
        if number == 12:
            await log.flush()
            await directory.checkpoint()
        await asyncio.sleep(0.001)
    if host.disk.exists(B):
        host.disk.fail_next("write", count=None, under=A)
        host.disk.fail_next("sync", count=None, under=A)
    else:
        host.disk.fail_next("sync", under=f"{A}/{PARTITION}/")
    with pytest.raises(StorageError):
        await log.flush()
    assert directory.offline is not None
    await asyncio.sleep(1)


async def second_life(host: SimHost, written: list[bytes], others: Sequence[str] = (), is_marked: bool = True) -> None:
    """All is there, as the page cache shows it; it is synced again, and that is written down."""
    directory = await opened(host, others=others)
    assert directory.was_suspect is is_marked
    assert not directory.was_clean
    log = directory.logs[PARTITION]
    assert await values(log) == written
    await directory.trust()
    log.append_as_leader(batch([b"more"]), 0)
    written.append(b"more")
    await log.flush()
    await directory.checkpoint()
    assert log.recovery_point == log.log_end_offset
    await asyncio.sleep(1)


async def third_life(host: SimHost, written: list[bytes], others: Sequence[str] = ()) -> None:
    directory = await opened(host, others=others)
    assert not directory.was_suspect, "the next start is an ordinary one"
    assert await values(directory.logs[PARTITION]) == written


def story(seed: int, others: Sequence[str] = (), is_marked: bool = True) -> None:
    with World(seed) as world:
        host = world.host("b1")
        written: list[bytes] = []
        for other in others:
            host.disk.make_directory(other)
            host.disk.sync_directory("/data")
            host.disk.sync_directory("/")

        async def told() -> None:
            await host.start(first_life(host, written, others))
            host.kill()
            host.disk.mend()
            if not is_marked:
                host.disk.remove(f"{A}/.tidelog-suspect")
            await host.start(second_life(host, written, others, is_marked))
            host.power_loss()
            await host.start(third_life(host, written, others))

        world.run(told())


@pytest.mark.parametrize("seed", range(12))
def test_what_a_failed_sync_left_in_the_page_cache_is_written_anew(seed: int) -> None:
    story(seed)


@pytest.mark.parametrize("seed", range(12))
def test_a_process_that_was_killed_before_it_could_mark_the_failed_sync_has_not_vouched_for_it(seed: int) -> None:
    story(seed, is_marked=False)


@pytest.mark.parametrize("seed", range(6))
def test_a_directory_that_takes_no_mark_is_marked_in_another_one(seed: int) -> None:
    story(seed, [B])


def test_without_writing_anew_what_a_later_sync_vouched_for_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated disk is as treacherous as a real one: the fix turned off loses synced records."""
    monkeypatch.setattr(recovery, "_write_anew", lambda *_: None)
    lost = 0
    for seed in range(12):
        try:
            story(seed)
        except Exception:
            lost += 1
    assert lost > 3


@pytest.mark.parametrize("seed", range(10))
def test_a_sync_that_was_asked_for_before_the_failure_was_heard_of_does_not_succeed(seed: int) -> None:
    """Two appends, two flushes: the first sync fails for both, and the second would find nothing to write."""

    async def told(host: SimHost) -> None:
        directory = await opened(host)
        log = await directory.create(PARTITION)
        log.append_as_leader(batch([b"a"]), 0)
        await log.flush()
        host.disk.fail_next("sync", under=f"{A}/{PARTITION}/")
        log.append_as_leader(batch([b"b"]), 0)
        first = asyncio.ensure_future(log.flush())
        log.append_as_leader(batch([b"c"]), 0)
        second = asyncio.ensure_future(log.flush())
        await asyncio.sleep(0)
        if seed % 2:
            first.cancel()  # who asked for it is gone, so its failure is told to nobody
        results = await asyncio.gather(first, second, return_exceptions=True)
        assert isinstance(results[1], StorageError)
        assert log.recovery_point == 1
        assert directory.offline is not None
        await asyncio.sleep(1)
        assert host.disk.exists(f"{A}/.tidelog-suspect")

    with World(seed) as world:
        world.run(told(world.host("b1")))


def test_a_sync_that_fails_while_a_directory_is_opened_makes_it_suspect() -> None:
    async def told() -> None:
        written: list[bytes] = []
        await host.start(first_life(host, written))
        host.kill()
        host.disk.mend()
        host.disk.remove(f"{A}/.tidelog-suspect")
        host.disk.fail_next("sync", under=f"{A}/{PARTITION}/")
        with pytest.raises(SyncError):
            await opened(host)
        host.kill()
        assert (await opened(host)).was_suspect

    with World(1) as world:
        host = world.host("b1")
        world.run(told())


def test_a_directory_stays_suspect_until_it_is_trusted() -> None:
    """If the process ends before the cluster has heard of it, the next one has to tell."""

    async def told() -> None:
        written: list[bytes] = []
        await host.start(first_life(host, written))
        host.kill()
        host.disk.mend()
        for _ in range(2):
            directory = await opened(host)
            assert directory.was_suspect
            assert await values(directory.logs[PARTITION]) == written
            host.disk.kill()
        directory = await opened(host)
        await directory.trust()
        host.disk.kill()
        assert not (await opened(host)).was_suspect

    with World(1) as world:
        host = world.host("b1")
        world.run(told())


def test_a_write_that_fails_is_not_a_sync_that_fails() -> None:
    """What is in the page cache is still dirty, and the next sync writes it."""

    async def told(host: SimHost) -> None:
        directory = await opened(host)
        log = await directory.create(PARTITION)
        host.disk.fail_next("write", under=f"{A}/{PARTITION}/")
        with pytest.raises(StorageError):
            log.append_as_leader(batch([b"a"]), 0)
        assert directory.offline is not None
        await asyncio.sleep(1)
        assert not [name for name in host.disk.list(A) if "suspect" in name]

    with World(1) as world:
        world.run(told(world.host("b1")))
