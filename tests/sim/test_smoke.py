"""A seed is a bug report: the same seed gives the same run, event for event, wherever it runs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
import smoke_workload

from tidelog.lab.world import World


def test_the_same_seed_gives_the_same_trace() -> None:
    first, second = smoke_workload.run(1), smoke_workload.run(1)
    assert list(first.trace) == list(second.trace)
    assert first.trace.digest() == second.trace.digest()
    assert first.loop.time() == second.loop.time()
    texts = [event.text for event in first.trace]
    for word in ("cut", "heal", "kill", "power", "freeze", "client"):
        assert any(text.startswith(word) for text in texts), f"seed 1 has no {word} in it"


def test_another_seed_gives_another_trace() -> None:
    assert smoke_workload.run(1).trace.digest() != smoke_workload.run(2).trace.digest()


def test_the_trace_does_not_depend_on_the_hash_seed() -> None:
    digests = {
        subprocess.run(
            [sys.executable, Path(smoke_workload.__file__), "3"],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for hash_seed in ("0", "1", "4242")
    }
    assert digests == {smoke_workload.run(3).trace.digest()}


def test_nothing_acknowledged_is_lost() -> None:
    _search(range(10, 30))


def test_a_store_that_acknowledges_before_its_sync_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator can fail: without the sync some seed loses what was acknowledged."""

    async def hasty(self: smoke_workload.Store, number: int) -> None:
        self._file.write_at(self._end, [smoke_workload._record(number)])
        self._end += smoke_workload._RECORD.size

    monkeypatch.setattr(smoke_workload.Store, "append", hasty)
    with pytest.raises(AssertionError, match="and lost them"):
        _search(range(10, 30))


def _search(seeds: range) -> None:
    for seed in seeds:
        smoke_workload.run(seed, writes=60)


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


def _round_trips(seed: int, clients: int, count: int) -> str:
    async def serve() -> None:
        await asyncio.get_running_loop().create_server(Echo, "b1", 9092)
        await asyncio.Event().wait()

    async def call() -> None:
        reader, writer = await asyncio.open_connection("b1", 9092)
        for number in range(count):
            writer.write(number.to_bytes(100, "big"))
            assert int.from_bytes(await reader.readexactly(100), "big") == number
        writer.close()

    async def main() -> None:
        world.host("b1").start(serve())
        await asyncio.sleep(0.1)
        await asyncio.gather(*(world.host(f"c{number}").start(call()) for number in range(clients)))

    with World(seed) as world:
        world.run(main())
        return world.trace.digest()


def test_twenty_thousand_round_trips_replay() -> None:
    assert _round_trips(1, 4, 5000) == _round_trips(1, 4, 5000)
