"""Strays: logs that are set aside with all that is known of them, and that come back whole (edge case 35)."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Literal

import pytest
from click.testing import CliRunner

from tests.kits.logkit import FixedClock, batch, values, with_config
from tidelog.cli.main import main
from tidelog.host.disk import RealDisk
from tidelog.lab.world import SimHost, World
from tidelog.log import names
from tidelog.log.directory import LogDirectory
from tidelog.log.log import Log
from tidelog.log.strays import discard
from tidelog.log.trimming import advance_log_start
from tidelog.ports import Disk
from tidelog.types import TopicPartition

A = TopicPartition("orders", 3)
ID, OTHER_ID = b"1" * 16, b"2" * 16
SETTINGS = with_config(retention_ms=-1, file_delete_delay_ms=0)
KEPT = [b"%d" % number for number in range(7, 20)]


async def opened(disk: Disk, path: str) -> LogDirectory:
    return await LogDirectory.open(disk, FixedClock(), random.Random(1), path, lambda topic: SETTINGS)


async def filled(directory: LogDirectory, partition: TopicPartition = A) -> Log:
    """20 records, of which the first 7 were deleted."""
    log = await directory.create(partition, ID)
    for number in range(20):
        log.append_as_leader(batch([b"%d" % number]), 0)
    await log.flush()
    log.high_watermark = 15
    advance_log_start(log, 7)
    directory.cleaner_offsets[partition] = 5
    await directory.checkpoint()
    return log


def strays_in(disk: Disk, path: str) -> list[str]:
    return [name for name in disk.list(path) if name.endswith("-stray")]


@pytest.mark.parametrize("end", ["at once", "closed", "killed"])
def test_a_stray_comes_back_with_all_that_is_known_of_it(disk: Disk, directory: str, end: str) -> None:
    async def scenario() -> None:
        first = await opened(disk, directory)
        log = await filled(first)
        stray = await first.set_aside(A)
        assert (stray.partition, stray.topic_id, stray.end_offset) == (A, ID, 20)
        assert stray.size_bytes > log.size_bytes > 0
        assert strays_in(disk, directory) == [stray.name]
        assert stray.name.startswith("orders-3.")
        assert A not in first.logs
        if end == "closed":
            await first.close()
        elif end == "killed":
            first._lock.release()
        if end != "at once":
            first = await opened(disk, directory)
            assert list(first.strays.values()) == [stray]
            assert first.logs == {}
        again = await first.create(A, ID)
        assert await values(again) == KEPT
        assert (again.log_start_offset, again.high_watermark, again.log_end_offset) == (7, 15, 20)
        assert first.cleaner_offsets[A] == 5
        assert (first.strays, strays_in(disk, directory)) == ({}, [])
        assert not disk.exists(f"{again.directory}/{names.STRAY_NOTE}"), "the checkpoints speak of it again"
        await first.close()

    asyncio.run(scenario())


def test_a_stray_of_another_topic_stays(disk: Disk, directory: str) -> None:
    async def scenario() -> None:
        first = await opened(disk, directory)
        await filled(first)
        stray = await first.set_aside(A)
        for topic_id in (OTHER_ID, None):
            fresh = await first.create(A, topic_id)
            assert fresh.log_end_offset == 0
            assert stray.path in first.strays
            await first.delete(A)
        await filled(first, TopicPartition("orders", 4))
        back = await first.create(A, ID)
        assert await values(back) == KEPT
        await first.close()

    asyncio.run(scenario())


def test_of_several_strays_the_longest_comes_back(disk: Disk, directory: str) -> None:
    async def scenario() -> None:
        first = await opened(disk, directory)
        await filled(first)
        longest = await first.set_aside(A)
        held, first.strays = first.strays, {}
        log = await first.create(A, ID)
        log.append_as_leader(batch([b"x"]), 0)
        await first.set_aside(A)
        first.strays |= held
        assert first.stray_of(A, ID) == longest
        assert await values(await first.create(A, ID)) == KEPT
        assert len(first.strays) == 1
        await first.close()

    asyncio.run(scenario())


def test_a_long_topic_is_cut_in_the_name_of_the_directory_alone(disk: Disk, directory: str) -> None:
    long = TopicPartition("t" * 249, 12)

    async def scenario() -> None:
        first = await opened(disk, directory)
        await filled(first, long)
        stray = await first.set_aside(long)
        assert len(stray.name) == 255
        assert stray.name.endswith("-stray")
        await first.close()
        again = await opened(disk, directory)
        assert [found.partition for found in again.strays.values()] == [long]
        assert await values(await again.create(long, ID)) == KEPT
        await again.close()

    asyncio.run(scenario())


def test_a_stray_that_is_deleted_or_removed_does_not_come_back(disk: Disk, directory: str) -> None:
    async def scenario() -> None:
        first = await opened(disk, directory)
        await filled(first)
        await first.delete_stray(await first.set_aside(A))
        assert (first.strays, strays_in(disk, directory)) == ({}, [])
        await filled(first)
        removed = await first.set_aside(A)
        assert discard(disk, removed)
        assert not discard(disk, removed)
        fresh = await first.create(A, ID)
        assert fresh.log_end_offset == 0
        assert first.strays == {}
        await first.close()

    asyncio.run(scenario())


def test_offsets_of_a_log_that_is_gone_are_not_those_of_the_next_of_its_name(disk: Disk, directory: str) -> None:
    """The process died after the rename and before the checkpoints were written."""

    async def scenario() -> None:
        first = await opened(disk, directory)
        await filled(first)
        await first.checkpoint()
        first._lock.release()
        disk.rename(f"{directory}/orders-3", f"{directory}/orders-3.{'0' * 32}-stray")
        again = await opened(disk, directory)
        fresh = await again.create(A, OTHER_ID)
        fresh.append_as_leader(batch([b"new"]), 0)
        again._lock.release()
        third = await opened(disk, directory)
        assert await values(third.logs[A]) == [b"new"]
        await third.close()

    asyncio.run(scenario())


# Death within the renames


async def until_death(host: SimHost, change: int, how: Literal["kill", "power loss"]) -> None:
    directory = await opened(host.disk, "/data")
    log = await filled(directory)
    await log.flush()
    host.die_at(change, how)
    await directory.set_aside(A)
    await directory.create(A, ID)
    await directory.set_aside(A)


async def after_death(host: SimHost) -> None:
    directory = await opened(host.disk, "/data")
    log = await directory.create(A, ID)
    assert await values(log) == KEPT
    assert log.log_start_offset == 7
    assert (directory.strays, strays_in(host.disk, "/data")) == ({}, [])
    await directory.close()


@pytest.mark.parametrize("how", ["kill", "power loss"])
def test_edge_35_whenever_the_process_dies_the_records_are_there(how: Literal["kill", "power loss"]) -> None:
    for change in range(1, 200):
        with World(change) as world:
            host = world.host("b1")

            async def story(host: SimHost = host, change: int = change) -> str:
                host.start(until_death(host, change, how))
                ended = await host.ended()
                await host.start(after_death(host))
                return ended

            ended = world.run(story())
        if ended == "exit":
            assert change > 30, "all of it was tried"
            return
    raise AssertionError("it never came to its end")


# The operator's command


@pytest.mark.parametrize("suffix", [names.DELETE_DIRECTORY, names.STRAY_DIRECTORY])
def test_what_was_set_aside_of_one_topic_is_not_that_of_another_whose_name_begins_alike(suffix: str) -> None:
    unique = "0" * 32
    orders, long = TopicPartition("orders.eu", 0), TopicPartition("o" * 249, 0)
    assert names.is_aside(orders, ["x", names.aside(orders, unique, suffix)])
    assert names.is_aside(long, [names.aside(long, unique, suffix)]), "its name is cut"
    for other in (TopicPartition("o", 0), TopicPartition("orders", 0), TopicPartition("orders.eu", 1)):
        assert not names.is_aside(orders, [names.aside(other, unique, suffix)])
    assert not names.is_aside(long, [names.aside(TopicPartition("o" * 200, 0), unique, suffix)])
    assert not names.is_aside(orders, ["orders.eu-0", suffix, f".{unique}{suffix}"])


def test_strays_are_shown_and_deleted_by_name(tmp_path: Path) -> None:
    path = str(tmp_path)

    def run(*arguments: str) -> str:
        result = CliRunner().invoke(main, ["log", "strays", path, *arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    async def scenario() -> str:
        disk = RealDisk()
        directory = await opened(disk, path)
        await filled(directory)
        stray = await directory.set_aside(A)
        assert stray.name in run("--json")
        assert "orders" in run()
        unknown = CliRunner().invoke(main, ["log", "strays", path, "--delete", stray.name, "--delete", "orders-3"])
        assert unknown.exit_code == 1
        assert "nothing is deleted" in unknown.output
        assert f"deleted {stray.name}" in run("--delete", stray.name)
        assert (await directory.create(A, ID)).log_end_offset == 0
        await directory.close()
        disk.close()
        return run()

    assert "holds no strays" in asyncio.run(scenario())
