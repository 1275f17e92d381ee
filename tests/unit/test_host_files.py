"""RealFile and its pool: few descriptors for many files, and system calls that do less than asked."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tidelog.errors import StorageError
from tidelog.host.clock import SystemClock, system_random
from tidelog.host.disk import RealDisk
from tidelog.host.limits import open_file_limit, raise_open_file_limit, shares
from tidelog.host.machine import RealPorts
from tidelog.ports import Ports


@pytest.fixture
def disk() -> Iterator[RealDisk]:
    disk = RealDisk(max_open=4)
    yield disk
    disk.close()


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_many_files_need_few_descriptors(disk: RealDisk, tmp_path: Path) -> None:
    before = _open_descriptors()
    files = [disk.open(f"{tmp_path}/{number}", create=True) for number in range(500)]
    for number, file in enumerate(files):
        file.write_at(0, [number.to_bytes(4, "big")])
    assert disk.open_descriptors == 4
    assert _open_descriptors() - before == 4
    for number, file in enumerate(files):
        assert file.read_at(0, 4) == number.to_bytes(4, "big")
    for file in files:
        file.close()
    assert disk.open_descriptors == 0
    assert _open_descriptors() == before


def test_files_opened_but_not_used_need_none(disk: RealDisk, tmp_path: Path) -> None:
    before = _open_descriptors()
    for number in range(100):
        disk.open(f"{tmp_path}/{number}", create=True)
    assert _open_descriptors() == before


def test_the_file_in_use_keeps_its_descriptor(disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An active segment is not the one that is given up while others come and go."""
    files = [disk.open(f"{tmp_path}/{number}", create=True) for number in range(50)]
    active = files[0]
    active.write_at(0, [b"x"])
    opened: list[str] = []
    real_open = os.open

    def counting_open(path: str, flags: int, *rest: int) -> int:
        opened.append(path)
        return real_open(path, flags, *rest)

    monkeypatch.setattr(os, "open", counting_open)
    for file in files[1:]:
        file.write_at(0, [b"y"])
        active.write_at(0, [b"x"])
    assert opened.count(active.path) == 0
    assert len(opened) == 49


def test_threads_share_a_pool_that_is_far_too_small(disk: RealDisk, tmp_path: Path) -> None:
    files = [disk.open(f"{tmp_path}/{number}", create=True) for number in range(40)]
    for number, file in enumerate(files):
        file.write_at(0, [bytes([number]) * 64])
    failures: list[BaseException] = []

    def use(start: int) -> None:
        try:
            for step in range(1500):
                number = (start * 7 + step * 11) % 40
                files[number].write_at(64 + start, [bytes([number])])
                if files[number].read_at(0, 64) != bytes([number]) * 64:
                    raise AssertionError(f"file {number} shows another file's bytes")
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=use, args=(start,)) for start in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert disk.open_descriptors <= 4 + len(threads)
    files[0].read_at(0, 1)
    files[1].read_at(0, 1)
    assert disk.open_descriptors <= 5


def test_a_file_closed_in_mid_call_gives_its_descriptor_back_after_it(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = disk.open(f"{tmp_path}/a", create=True)
    file.write_at(0, [b"abc"])
    inside, go_on = threading.Event(), threading.Event()
    real_pread = os.pread

    def slow_pread(fd: int, size: int, position: int) -> bytes:
        inside.set()
        assert go_on.wait(10)
        return real_pread(fd, size, position)

    monkeypatch.setattr(os, "pread", slow_pread)
    results: list[bytes] = []
    reader = threading.Thread(target=lambda: results.append(file.read_at(0, 3)))
    reader.start()
    assert inside.wait(10)
    disk.remove(file.path)
    assert disk.open_descriptors == 1
    go_on.set()
    reader.join()
    assert results == [b"abc"]
    assert disk.open_descriptors == 0


def test_short_writes_go_on(disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_pwritev = os.pwritev

    def three_bytes_at_most(fd: int, buffers: Sequence[Any], position: int) -> int:
        return real_pwritev(fd, [b"".join(buffers)[:3]], position)

    monkeypatch.setattr(os, "pwritev", three_bytes_at_most)
    file = disk.open(f"{tmp_path}/a", create=True)
    file.write_at(2, [b"abcd", b"", b"ef", b"ghijk"])
    assert file.read_at(0, 100) == b"\0\0abcdefghijk"


def test_short_reads_go_on(disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, position: real_pread(fd, min(size, 3), position))
    file = disk.open(f"{tmp_path}/a", create=True)
    file.write_at(0, [b"abcdefgh"])
    assert file.read_at(1, 6) == b"bcdefg"
    assert file.read_at(1, 100) == b"bcdefgh"


def test_a_full_device_is_a_storage_error_that_names_it(disk: RealDisk) -> None:
    file = disk.open("/dev/full")
    with pytest.raises(StorageError, match=r"cannot write /dev/full: .*\(ENOSPC\); free space") as caught:
        file.write_at(0, [b"x"])
    assert isinstance(caught.value.__cause__, OSError)


def test_a_failed_sync_is_a_storage_error(disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    file = disk.open(f"{tmp_path}/a", create=True)
    with pytest.raises(StorageError, match=r"cannot sync .*/a: .*\(EIO\)"):
        file.sync()


def test_a_file_removed_behind_our_back_is_a_storage_error(disk: RealDisk, tmp_path: Path) -> None:
    file = disk.open(f"{tmp_path}/a", create=True)
    os.unlink(file.path)
    with pytest.raises(StorageError, match=r"cannot open .*/a: .*\(ENOENT\)"):
        file.read_at(0, 1)


@pytest.mark.parametrize(
    ("answer", "expected", "asked_again"),
    [
        (OSError(errno.EAGAIN, "not in memory"), None, True),
        (OSError(errno.EOPNOTSUPP, "tmpfs"), None, False),
        (4, None, True),
        (10, b"\0" * 10, True),
    ],
)
def test_read_cached_by_what_the_kernel_says(
    disk: RealDisk,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: OSError | int,
    expected: bytes | None,
    asked_again: bool,
) -> None:
    """A short count in the middle of a file means that the next page is missing."""
    file = disk.open(f"{tmp_path}/a", create=True)
    file.write_at(0, [b"\0" * 20])
    asked: list[int] = []

    def preadv(fd: int, buffers: Sequence[Any], position: int, flags: int) -> int:
        asked.append(flags)
        if isinstance(answer, OSError):
            raise OSError(answer.errno, answer.strerror)
        return answer

    monkeypatch.setattr(os, "preadv", preadv)
    assert file.read_cached(0, 10) == expected
    assert file.read_cached(0, 10) == expected
    assert asked == [os.RWF_NOWAIT] * (2 if asked_again else 1)


def test_write_file_keeps_the_old_one_when_it_fails(
    disk: RealDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"{tmp_path}/checkpoint"
    disk.write_file(path, b"old")

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="checkpoint"):
        disk.write_file(path, b"new")
    assert disk.read_file(path) == b"old"
    assert disk.list(str(tmp_path)) == ["checkpoint"]


_HOLD_LOCK = """
import fcntl, sys
file = open(sys.argv[1], "w")
getattr(fcntl, sys.argv[2])(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["flock", "lockf"])
def test_a_lock_held_by_another_process_ends_with_it(disk: RealDisk, tmp_path: Path, kind: str) -> None:
    """flock is ours; lockf is what Apache Kafka's JVM takes on the same file."""
    path = f"{tmp_path}/.lock"
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD_LOCK, path, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(StorageError, match="another broker"):
            disk.lock(path)
        holder.kill()
    disk.lock(path).release()


def test_close_waits_for_what_was_submitted(tmp_path: Path) -> None:
    disk = RealDisk(num_io_threads=2)
    gate = threading.Event()
    done: list[int] = []

    async def main() -> None:
        futures = [disk.submit("a", gate.wait), disk.submit("b", gate.wait)]
        futures += [disk.submit("a", lambda n=number: done.append(n) or True) for number in range(20)]  # type: ignore
        threading.Thread(target=gate.set).start()
        disk.close()
        assert done == list(range(20))
        assert await asyncio.gather(*futures)
        with pytest.raises(RuntimeError, match="closed"):
            disk.submit("a", gate.wait)

    asyncio.run(main())


def test_keys_do_not_wait_for_each_other(disk: RealDisk) -> None:
    async def main() -> None:
        gate = threading.Event()
        stuck = disk.submit("a", gate.wait)
        behind = disk.submit("a", lambda: "behind")
        assert await disk.submit("b", lambda: "b") == "b"
        assert not stuck.done()
        gate.set()
        assert await behind == "behind"

    asyncio.run(main())


def test_work_that_outlives_its_loop_harms_nobody(disk: RealDisk) -> None:
    gate = threading.Event()

    async def leave() -> None:
        disk.submit("a", gate.wait)

    asyncio.run(leave())
    gate.set()

    async def go_on() -> int:
        return await disk.submit("a", lambda: 1)

    assert asyncio.run(go_on()) == 1


def test_limits_are_raised_and_shared() -> None:
    limit = raise_open_file_limit()
    assert limit == open_file_limit()
    assert 16 <= shares(limit).log_files <= max(16, limit // 2)


def test_the_machine_has_all_ports(tmp_path: Path) -> None:
    machine = RealPorts(num_io_threads=1)
    ports: Ports = machine
    assert ports.clock.wall_ms() > 1_600_000_000_000
    assert machine.open_file_limit >= 16
    machine.close()


def test_clock_and_chance() -> None:
    clock = SystemClock()
    assert clock.monotonic_ns() <= clock.monotonic_ns()
    assert system_random().randbytes(16) != system_random().randbytes(16)


def test_what_is_in_the_page_cache_goes_straight_into_a_socket(disk: RealDisk, directory: str):
    file = disk.open(os.path.join(directory, "f"), create=True)
    content = os.urandom(300_000)
    file.write_at(0, [content])
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    try:
        sent = file.send_cached(ours.fileno(), 1_000, 200_000)
        assert sent is not None
        assert 0 < sent <= 200_000
        assert theirs.recv(sent, socket.MSG_WAITALL) == content[1_000 : 1_000 + sent]
        while file.send_cached(ours.fileno(), 0, len(content)):
            pass
        assert file.send_cached(ours.fileno(), 0, len(content)) == 0, "a full socket takes nothing, and nobody waits"
        assert file.send_cached(ours.fileno(), 299_999, 10) is None, (
            "what is behind the end has to be read to be missed"
        )
    finally:
        ours.close()
        theirs.close()
    assert file.send_cached(ours.fileno(), 0, 10) is None, "a closed socket is for others to find"
