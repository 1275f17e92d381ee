"""What a log directory knows of its own past (edge case 9)."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tidelog.broker.storage import Storage
from tidelog.config.broker import BrokerConfig
from tidelog.config.topic import default_topic
from tidelog.host.disk import RealDisk
from tidelog.lab.broker import sim_settings
from tidelog.lab.world import SimHost, World
from tidelog.log import names
from tidelog.log.checkpoints import write_offset_checkpoint
from tidelog.log.continuity import BROKEN, BootNote, Continuity, continued, of_all, read_boot_note, write_boot_note
from tidelog.log.directory import LogDirectory
from tidelog.ports import Disk
from tidelog.types import NO_EPOCH, TopicPartition

NOTE = BootNote("boot 1", Continuity(5, 9))


@pytest.mark.parametrize(
    ("note", "boot_id", "was_clean", "expected"),
    [
        (NOTE, "boot 1", False, Continuity(5, 9)),
        (NOTE, "boot 2", False, BROKEN),
        (NOTE, "boot 2", True, Continuity(5, 9)),
        (None, "boot 1", True, BROKEN),
        # a machine that does not tell its boots
        (BootNote("", Continuity(5, 9)), "", False, BROKEN),
        (BootNote("", Continuity(5, 9)), "", True, Continuity(5, 9)),
        # a copy of the directory, made while it was in use, or after a clean stop
        (NOTE._replace(is_original=False), "boot 1", False, BROKEN),
        (NOTE._replace(is_original=False), "boot 1", True, Continuity(5, 9)),
        # the process before died before it was registered
        (BootNote("boot 1", BROKEN), "boot 1", False, BROKEN),
        (BootNote("boot 1", Continuity(5, -1)), "boot 1", False, Continuity(5, -1)),
    ],
)
def test_a_directory_is_whole_on_the_same_boot_or_after_a_clean_stop(
    note: BootNote | None, boot_id: str, was_clean: bool, expected: Continuity
) -> None:
    assert continued(note, boot_id, was_clean) == expected


def test_a_broker_is_as_whole_as_its_least_directory() -> None:
    assert of_all([Continuity(5, 9), Continuity(7, 9)]) == Continuity(7, 9)
    assert of_all([Continuity(5, 9), BROKEN]) == BROKEN
    assert of_all([Continuity(5, 9), Continuity(5, 3)]) == Continuity(5, 3), "one was away in the last lives"
    assert of_all([]) == BROKEN


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"bootId":1,"intactSince":2,"lastEpoch":3}',
        b'{"bootId":"b","intactSince":"2","lastEpoch":3}',
        b'{"bootId":"b","intactSince":2,"lastEpoch":3,"clusterId":4}',
    ],
)
def test_a_note_that_cannot_be_read_is_none(content: bytes) -> None:
    def story(host: SimHost) -> None:
        disk = host.disk
        disk.make_directory("/data")
        assert read_boot_note(disk, "/data") is None
        disk.write_file(f"/data/{names.BOOT_NOTE}", content)
        assert read_boot_note(disk, "/data") is None
        write_boot_note(disk, "/data", NOTE)
        assert read_boot_note(disk, "/data") == NOTE

    _on_a_host(story)


def test_a_note_knows_the_directory_that_it_was_written_in() -> None:
    def story(disk: Disk, root: str) -> None:
        for name in ("data", "copy"):
            disk.make_directory(f"{root}/{name}")
        write_boot_note(disk, f"{root}/data", NOTE)
        disk.write_file(f"{root}/copy/{names.BOOT_NOTE}", disk.read_file(f"{root}/data/{names.BOOT_NOTE}"))
        assert read_boot_note(disk, f"{root}/copy") == NOTE._replace(is_original=False)
        disk.rename(f"{root}/data", f"{root}/moved")
        assert read_boot_note(disk, f"{root}/moved") == NOTE

    _on_a_host(lambda host: story(host.disk, ""))
    with TemporaryDirectory() as root:
        disk = RealDisk()
        story(disk, root)
        disk.close()


def test_a_copy_that_gets_the_number_of_the_removed_directory_is_still_a_copy(tmp_path: Path) -> None:
    """rm -r data, cp -r backup data: file systems give the number of what was just removed to what is made next."""
    disk, data, backup = RealDisk(), str(tmp_path / "data"), str(tmp_path / "backup")
    disk.make_directory(data)
    for _ in range(20):
        number = os.stat(data).st_ino
        write_boot_note(disk, data, NOTE)
        shutil.copytree(data, backup)
        time.sleep(0.02)  # more than the tick of the kernel's clock
        shutil.rmtree(data)
        shutil.copytree(backup, data)
        note = read_boot_note(disk, data)
        assert note is not None
        assert not note.is_original
        shutil.rmtree(backup)
        if os.stat(data).st_ino == number:
            break
    disk.close()


def test_a_note_of_an_older_version_counts_after_a_clean_stop_only() -> None:
    def story(host: SimHost) -> None:
        host.disk.make_directory("/data")
        content = b'{"version":0,"bootId":"boot 1","intactSince":5,"lastEpoch":9,"directories":1}'
        host.disk.write_file(f"/data/{names.BOOT_NOTE}", content)
        assert read_boot_note(host.disk, "/data") == NOTE._replace(is_original=False)

    _on_a_host(story)


def test_a_note_that_the_disk_does_not_give_is_none() -> None:
    def story(host: SimHost) -> None:
        host.disk.make_directory("/data")
        write_boot_note(host.disk, "/data", NOTE)
        host.disk.fail_next("read", under=f"/data/{names.BOOT_NOTE}")
        assert read_boot_note(host.disk, "/data") is None

    _on_a_host(story)


def test_a_broker_with_fewer_directories_than_before_misses_some_of_its_replicas() -> None:
    note = BootNote("boot 1", Continuity(5, 9), 2)
    assert continued(note, "boot 1", False, 1) == continued(note, "boot 1", True, 1) == BROKEN
    assert continued(note, "boot 1", False, 2) == continued(note, "boot 1", False, 3) == Continuity(5, 9)


def test_a_note_that_does_not_count_the_directories_is_none() -> None:
    def story(host: SimHost) -> None:
        host.disk.make_directory("/data")
        content = b'{"version":0,"bootId":"boot 1","intactSince":5,"lastEpoch":9}'
        host.disk.write_file(f"/data/{names.BOOT_NOTE}", content)
        assert read_boot_note(host.disk, "/data") is None, "another directory may be missing"

    _on_a_host(story)


@pytest.mark.parametrize(
    ("found", "is_intact"),
    [
        ((), True),
        (("lost+found/",), True),
        # what a start leaves that ended before it wrote the note
        ((names.LOCK, f"{names.META_PROPERTIES}.tmp"), True),
        ((names.LOCK, f"{names.BOOT_NOTE}.tmp", names.RECOVERY_POINTS, names.HIGH_WATERMARKS), True),
        # what tells that it was in use
        (("t-0/",), False),
        ((f"t-0.{0:032x}-delete/",), False),
        ((f"t-0.{0:032x}-stray/",), False),
        ((names.BOOT_NOTE,), False),
        ((names.CLEAN_SHUTDOWN,), False),
        ((".tidelog-suspect",), False),
        (("of somebody else",), False),
    ],
)
def test_a_new_directory_takes_nothing_from_the_others_unless_it_was_in_use(
    found: Sequence[str], is_intact: bool
) -> None:
    async def story(host: SimHost) -> None:
        await _use(host, "/first,/second", 100)
        host.disk.make_directory("/third")
        for name in found:
            if name.endswith("/"):
                host.disk.make_directory(f"/third/{name.rstrip('/')}")
            else:
                host.disk.write_file(f"/third/{name}", b"")
        assert await _use(host, "/first,/second,/third", 200) == (Continuity(100, 100) if is_intact else BROKEN)

    _on_a_host(story)


def test_a_new_directory_was_in_use_if_its_checkpoints_name_a_partition() -> None:
    async def story(host: SimHost) -> None:
        await _use(host, "/first", 100)
        host.disk.make_directory("/second")
        write_offset_checkpoint(host.disk, f"/second/{names.HIGH_WATERMARKS}", {TopicPartition("t", 0): 7})
        assert await _use(host, "/first,/second", 200) == BROKEN

    _on_a_host(story)


@pytest.mark.parametrize("log_dirs", ["/first,/second", "/first,/second,/third", "/first,/third"])
def test_an_empty_directory_in_the_place_of_another_one_is_not_new(log_dirs: str) -> None:
    async def story(host: SimHost) -> None:
        await _use(host, "/first,/second", 100)
        host.disk.remove_directory("/second")
        assert await _use(host, log_dirs, 200) == BROKEN

    _on_a_host(story)


def test_a_new_directory_has_its_note_before_any_other_one_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a start that is killed in between leaves notes that count a directory without one, as if it were lost."""
    steps: list[tuple[str, str]] = []
    note_boot = LogDirectory.note_boot

    async def watched(directory: LogDirectory, note: BootNote) -> None:
        steps.append(("begins", directory.path))
        await note_boot(directory, note)
        steps.append(("ends", directory.path))

    async def story(host: SimHost) -> None:
        await _use(host, "/first,/second", 100)
        monkeypatch.setattr(LogDirectory, "note_boot", watched)
        await _use(host, "/first,/second,/third", 200)

    _on_a_host(story)
    assert steps[:2] == [("begins", "/third"), ("ends", "/third")]


def test_a_broker_all_of_whose_directories_are_new_is_not_intact() -> None:
    async def story(host: SimHost) -> None:
        assert await _use(host, "/first,/second", 100) == BROKEN
        assert await _use(host, "/third,/fourth", 200) == BROKEN

    _on_a_host(story)


async def _use(host: SimHost, log_dirs: str, epoch: int) -> Continuity:
    """Open the directories, register with that broker epoch, and close them in order. What the start found."""
    settings = {"broker.id": "1", **sim_settings("b1"), "log.dirs": log_dirs}
    storage = Storage(BrokerConfig.load(settings, hostname="b1"), host, lambda directory: None)
    await storage.open(1, "cluster", lambda topic: default_topic())
    found = storage.continuity
    await storage.registered(epoch)
    await storage.close(epoch)
    return found


def test_a_directory_of_another_cluster_is_never_whole() -> None:
    note = NOTE._replace(cluster_id="ours")
    for was_clean in (True, False):
        assert continued(note, "boot 1", was_clean, cluster_id="ours") == Continuity(5, 9)
        assert continued(note, "boot 1", was_clean, cluster_id="theirs") == BROKEN


def test_a_directory_that_was_used_with_a_later_state_of_the_store_counts_from_now_on() -> None:
    with World(1) as world:
        host = world.host("b1")

        async def main() -> None:
            config = BrokerConfig.load({"broker.id": "1", **sim_settings("b1")}, hostname="b1")
            storage = Storage(config, host, lambda directory: None)
            storage.continuity = Continuity(500, 600)
            await storage.registered(300)
            assert storage.continuity == Continuity(300, 300)
            await storage.registered(310)
            assert storage.continuity == Continuity(300, 310)

        world.run(main())


@pytest.mark.parametrize(
    ("noted", "expected"),
    [
        (600, Continuity(500, 700)),
        (NO_EPOCH, Continuity(500, 700)),
        # killed after the directories had noted 600 and before the store had
        (550, Continuity(500, 700)),
        # put back from a copy
        (601, Continuity(700, 700)),
        # the store has something else there
        (None, Continuity(700, 700)),
    ],
)
def test_a_directory_that_does_not_know_the_last_epoch_of_its_broker_counts_from_now_on(
    noted: int | None, expected: Continuity
) -> None:
    with World(1) as world:

        async def main() -> None:
            config = BrokerConfig.load({"broker.id": "1", **sim_settings("b1")}, hostname="b1")
            storage = Storage(config, world.host("b1"), lambda directory: None)
            storage.continuity = Continuity(500, 600)
            storage.compare(noted)
            await storage.registered(700)
            assert storage.continuity == expected

        world.run(main())


def test_a_power_loss_is_another_boot_and_a_kill_is_not() -> None:
    with World(1) as world:
        host = world.host("b1")
        first = host.boot_id
        host.kill()
        assert host.boot_id == first
        host.power_loss()
        assert host.boot_id != first


def _on_a_host(story) -> None:  # type: ignore[no-untyped-def]
    with World(1) as world:

        async def main() -> None:
            told = story(world.host("b1"))
            if told is not None:
                await told

        world.run(main())
