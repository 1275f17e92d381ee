"""Full and failing disks: what was acknowledged is untouched, and the directory says why it is offline (S10.5)."""

import asyncio

import pytest

from tests.kits.logkit import FixedClock, batch, open_log, values, with_config
from tidelog.errors import StorageError
from tidelog.lab.disk import SimDisk
from tidelog.lab.inode import Inode
from tidelog.lab.world import SimHost, World
from tidelog.log.log import Log
from tidelog.log.trimming import truncate_to

STEP_S = 0.001
"""Of virtual time, so that the disk's work gets its turn."""


async def append_until_it_fails(log: Log) -> list[bytes]:
    """The values that were taken, and so acknowledged."""
    written: list[bytes] = []
    while len(written) < 10_000:
        value = b"%d" % len(written) * (len(written) % 7)
        try:
            log.append_as_leader(batch([value]), 0)
        except StorageError:
            return written
        written.append(value)
        await asyncio.sleep(STEP_S)
    raise AssertionError("the disk never failed")


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("how", ["full", "write", "sync"])
def test_nothing_acknowledged_is_touched(seed: int, how: str):
    async def scenario(host: SimHost) -> None:
        failures: list[StorageError] = []
        chance = world.chance_for("test")
        log = await open_log(host.disk, "data", with_config(segment_bytes=700), on_failure=failures.append)
        before = [b"before"] * chance.randrange(30)
        for value in before:
            log.append_as_leader(batch([value]), 0)
        if how == "full":
            host.disk.capacity_bytes = host.disk.used_bytes + chance.randrange(2000)
        else:
            host.disk.fail_next(how, count=None, under="data/orders-0/")
        written = before + await append_until_it_fails(log)
        assert failures
        with pytest.raises(StorageError, match="offline"):
            log.append_as_leader(batch([b"refused"]), 0)
        host.disk.mend()
        assert await values(log) == written
        again = await open_log(host.disk, "data", with_config(segment_bytes=700), clock=FixedClock())
        found = await values(again)
        # The batch that failed may be there: a disk that fails to write may fail to cut as well.
        assert found[: len(written)] == written
        assert len(found) - len(written) <= (how == "write")

    with World(seed) as world:
        host = world.host("b1")
        world.run(scenario(host))


@pytest.mark.parametrize(("messages", "synced"), [(1, 5), (3, 3), (10, 0)])
def test_flush_messages_is_kept_before_the_acknowledgement(messages: int, synced: int):
    """After a power loss at least what flush.messages promised is there."""

    async def write(host: SimHost) -> None:
        log = await open_log(host.disk, "data", with_config(flush_messages=messages))
        host.disk.sync_directory("data")
        host.disk.sync_directory("")
        for number in range(5):
            log.append_as_leader(batch([b"%d" % number]), 0)
            await log.flush_if_due()
        assert log.recovery_point == synced

    async def story() -> None:
        await host.start(write(host))
        host.power_loss()
        log = await open_log(host.disk, "data")
        assert log.log_end_offset >= synced

    for seed in range(10):
        with World(seed) as world:
            host = world.host("b1")
            world.run(story())


def test_a_flush_syncs_the_records_alone_where_nothing_else_is_new(monkeypatch: pytest.MonkeyPatch):
    """Indexes and names are synced with the first flush of a segment, and when they have changed since."""

    async def scenario(host: SimHost) -> None:
        log = await open_log(host.disk, "data", with_config(segment_bytes=10**6, index_interval_bytes=1000))
        log.append_as_leader(batch([b"x"]), 0)
        await log.work.run(lambda: None)  # the leader epoch is written down
        synced: list[str] = []
        sync, sync_directory = SimDisk.sync, SimDisk.sync_directory

        def noted_sync(disk: SimDisk, inode: Inode, path: str) -> None:
            synced.append(path.rpartition(".")[2])
            sync(disk, inode, path)

        def noted_sync_directory(disk: SimDisk, path: str) -> None:
            synced.append("names")
            sync_directory(disk, path)

        monkeypatch.setattr(SimDisk, "sync", noted_sync)
        monkeypatch.setattr(SimDisk, "sync_directory", noted_sync_directory)

        async def flushed(*sizes: int) -> list[str]:
            synced.clear()
            for size in sizes:
                log.append_as_leader(batch([b"x" * size]), 0)
            await log.flush()
            return list(synced)

        assert await flushed(1) == ["log", "index", "timeindex", "names"]
        assert await flushed(1) == ["log"]
        assert await flushed(1, 1) == ["log"]
        assert "index" in await flushed(2000, 1), "an entry was added"
        assert await flushed(1) == ["log"]
        old = log.segments.active
        log.roll()
        while not old.sealed:
            await asyncio.sleep(STEP_S)
        assert await flushed(1) == ["log", "index", "timeindex", "names"]
        await truncate_to(log, log.log_end_offset - 1)  # the segment is made anew, under the same name
        assert "names" in await flushed(1)

    with World(1) as world:
        host = world.host("b1")
        world.run(scenario(host))
