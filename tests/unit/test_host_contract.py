"""What the Disk port promises, asked of both its homes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from tidelog.errors import StorageError
from tidelog.host.disk import RealDisk
from tidelog.lab.world import World
from tidelog.ports import Disk


class Home:
    """A disk, a directory on it, and the loop it belongs to."""

    def __init__(self, disk: Disk, root: str, loop: asyncio.AbstractEventLoop) -> None:
        self.disk = disk
        self.root = root
        self._loop = loop
        disk.make_directory(root)

    def at(self, name: str) -> str:
        return f"{self.root}/{name}"

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(main)


@pytest.fixture(params=["real", "real, one descriptor", "sim"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Home]:
    if request.param == "sim":
        with World(1) as world:
            yield Home(world.host("b1").disk, "/data/log", world.loop)
        return
    disk = RealDisk(max_open=1) if "one" in request.param else RealDisk()
    loop = asyncio.new_event_loop()
    yield Home(disk, str(tmp_path / "log"), loop)
    disk.close()
    loop.close()


def test_writes_are_gathered_and_read_back_at_any_position(home: Home) -> None:
    file = home.disk.open(home.at("a"), create=True)
    file.write_at(0, [b"hello", bytearray(b", "), memoryview(b"world")])
    file.write_at(7, [b"W"])
    assert file.size() == 12
    assert file.read_at(0, 100) == b"hello, World"
    assert file.read_at(7, 5) == b"World"
    assert file.read_at(12, 5) == b""
    assert file.read_at(99, 5) == b""
    assert file.read_at(3, 0) == b""


def test_a_write_past_the_end_leaves_zeros(home: Home) -> None:
    file = home.disk.open(home.at("a"), create=True)
    file.write_at(4, [b"x"])
    assert file.read_at(0, 10) == b"\0\0\0\0x"


@pytest.mark.parametrize("buffers", [[], [b""], [b"", b"ab", b""]])
def test_empty_buffers_are_no_trouble(home: Home, buffers: list[bytes]) -> None:
    file = home.disk.open(home.at("a"), create=True)
    file.write_at(0, buffers)
    assert file.size() == sum(map(len, buffers))


def test_thousands_of_buffers_make_one_write(home: Home) -> None:
    file = home.disk.open(home.at("a"), create=True)
    pieces = [bytes([number % 251]) * (number % 5) for number in range(5000)]
    file.write_at(10, pieces)
    assert file.read_at(10, 1 << 20) == b"".join(pieces)


def test_read_cached_is_read_at_or_nothing(home: Home) -> None:
    file = home.disk.open(home.at("a"), create=True)
    file.write_at(0, [bytes(range(200))])
    for position, size in [(0, 200), (50, 10), (150, 1000), (200, 5), (500, 5)]:
        assert file.read_cached(position, size) in (None, file.read_at(position, size))


def test_truncate_shortens_and_lengthens(home: Home) -> None:
    file = home.disk.open(home.at("a"), create=True)
    file.write_at(0, [b"abcdef"])
    file.truncate(3)
    assert (file.size(), file.read_at(0, 10)) == (3, b"abc")
    file.truncate(5)
    assert file.read_at(0, 10) == b"abc\0\0"


def test_two_files_of_one_path_see_the_same_bytes(home: Home) -> None:
    one = home.disk.open(home.at("a"), create=True)
    two = home.disk.open(home.at("a"))
    one.write_at(0, [b"abc"])
    one.close()
    assert two.read_at(0, 3) == b"abc"
    two.sync()


def test_to_create_what_is_there_keeps_its_bytes(home: Home) -> None:
    home.disk.write_file(home.at("a"), b"kept")
    assert home.disk.open(home.at("a"), create=True).read_at(0, 9) == b"kept"


def test_a_closed_file_cannot_be_used(home: Home) -> None:
    file = home.disk.open(home.at("a"), create=True)
    file.close()
    file.close()
    with pytest.raises(ValueError, match="closed"):
        file.read_at(0, 1)
    with pytest.raises(ValueError, match="closed"):
        file.write_at(0, [b"x"])


def test_missing_names_are_file_not_found(home: Home) -> None:
    disk, missing = home.disk, home.at("nothing")
    for attempt in (disk.open, disk.file_size, disk.modified_ms, disk.list, disk.read_file, disk.remove):
        with pytest.raises(FileNotFoundError):
            attempt(missing)
    for attempt in (disk.remove_directory, disk.sync_directory, disk.free_bytes, disk.total_bytes):
        with pytest.raises(FileNotFoundError):
            attempt(missing)
    with pytest.raises(FileNotFoundError):
        disk.rename(missing, home.at("b"))
    with pytest.raises(FileNotFoundError):
        disk.open(home.at("no/such/parent"), create=True)
    assert not disk.exists(missing)


def test_a_directory_is_no_file_and_a_file_no_directory(home: Home) -> None:
    home.disk.make_directory(home.at("d"))
    home.disk.write_file(home.at("f"), b"")
    with pytest.raises(StorageError, match="/d"):
        home.disk.open(home.at("d"))
    with pytest.raises(StorageError, match="/d"):
        home.disk.read_file(home.at("d"))
    with pytest.raises(StorageError, match="/f"):
        home.disk.list(home.at("f"))
    with pytest.raises(StorageError, match="/f"):
        home.disk.make_directory(home.at("f"))


def test_names_are_listed_in_order(home: Home) -> None:
    for name in ("b", "a", "c"):
        home.disk.open(home.at(name), create=True)
    home.disk.make_directory(home.at("B/deep/er"))
    home.disk.make_directory(home.at("B/deep"))
    assert home.disk.list(home.root) == ["B", "a", "b", "c"]
    assert home.disk.list(home.at("B/deep")) == ["er"]


def test_write_file_replaces_the_whole_and_leaves_nothing_else(home: Home) -> None:
    home.disk.write_file(home.at("checkpoint"), b"a long first version")
    home.disk.write_file(home.at("checkpoint"), memoryview(b"second"))
    assert home.disk.read_file(home.at("checkpoint")) == b"second"
    assert home.disk.file_size(home.at("checkpoint")) == 6
    assert home.disk.list(home.root) == ["checkpoint"]
    assert home.disk.modified_ms(home.at("checkpoint")) > 1_600_000_000_000


def test_an_open_file_follows_its_rename(home: Home) -> None:
    file = home.disk.open(home.at("0.log"), create=True)
    other = home.disk.open(home.at("1.log"), create=True)
    file.write_at(0, [b"abc"])
    home.disk.rename(home.at("0.log"), home.at("0.log.deleted"))
    other.write_at(0, [b"x"])  # where there is one descriptor only, this takes it away
    assert file.path == home.at("0.log.deleted")
    assert file.read_at(0, 3) == b"abc"


def test_open_files_follow_the_rename_of_their_directory(home: Home) -> None:
    home.disk.make_directory(home.at("orders-0/deep"))
    file = home.disk.open(home.at("orders-0/0.log"), create=True)
    deep = home.disk.open(home.at("orders-0/deep/x"), create=True)
    home.disk.rename(home.at("orders-0"), home.at("orders-0.1234-delete"))
    deep.write_at(0, [b"deep"])
    file.write_at(0, [b"abc"])
    assert home.disk.read_file(home.at("orders-0.1234-delete/0.log")) == b"abc"
    assert home.disk.read_file(home.at("orders-0.1234-delete/deep/x")) == b"deep"
    assert not home.disk.exists(home.at("orders-0"))


def test_a_name_that_goes_closes_its_files(home: Home) -> None:
    home.disk.make_directory(home.at("d"))
    files = [home.disk.open(home.at(name), create=True) for name in ("a", "b", "d/c")]
    home.disk.write_file(home.at("new"), b"new")
    home.disk.remove(home.at("a"))
    home.disk.rename(home.at("new"), home.at("b"))
    home.disk.remove_directory(home.at("d"))
    for file in files:
        with pytest.raises(ValueError, match="closed"):
            file.read_at(0, 1)
    assert home.disk.list(home.root) == ["b"]
    assert home.disk.read_file(home.at("b")) == b"new"


def test_a_lock_is_exclusive_until_released(home: Home) -> None:
    lock = home.disk.lock(home.at(".lock"))
    with pytest.raises(StorageError, match=r"\.lock: another broker"):
        home.disk.lock(home.at(".lock"))
    lock.release()
    lock.release()
    again = home.disk.lock(home.at(".lock"))
    again.release()
    assert home.disk.exists(home.at(".lock"))


def test_there_is_room(home: Home) -> None:
    assert 0 < home.disk.free_bytes(home.root) <= home.disk.total_bytes(home.root)


def test_submitted_work_keeps_its_order_per_key(home: Home) -> None:
    async def main() -> dict[str, list[int]]:
        done: dict[str, list[int]] = {"a": [], "b": [], "c": []}
        futures = [
            home.disk.submit(key, lambda key=key, number=number: done[key].append(number))  # type: ignore[misc]
            for number in range(100)
            for key in done
        ]
        for future in futures:
            await future
        return done

    assert home.run(main()) == {key: list(range(100)) for key in "abc"}


def test_submitted_work_returns_and_raises(home: Home) -> None:
    async def main() -> None:
        assert await home.disk.submit("k", lambda: 42) == 42
        with pytest.raises(FileNotFoundError):
            await home.disk.submit("k", lambda: home.disk.read_file(home.at("nothing")))
        with pytest.raises(RuntimeError, match="StopIteration"):
            await home.disk.submit("k", lambda: next(iter([])))
        assert await home.disk.submit("k", lambda: "still in order") == "still in order"

    home.run(main())


def test_cancelled_work_is_done_all_the_same(home: Home) -> None:
    async def main() -> None:
        file = home.disk.open(home.at("a"), create=True)
        first = home.disk.submit("k", lambda: file.write_at(0, [b"first"]))
        first.cancel()
        await home.disk.submit("k", lambda: file.write_at(5, [b" second"]))
        assert file.read_at(0, 100) == b"first second"

    home.run(main())
