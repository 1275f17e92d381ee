"""The log: appends against bare writes, cost against size, recovery beside Kafka, appends while it is compacted."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from bench.kafka_recovery import kafka_recovery_seconds
from bench.table import Row, seconds
from tidelog.config.topic import default_topic
from tidelog.host.clock import SystemClock
from tidelog.host.disk import RealDisk
from tidelog.host.limits import raise_open_file_limit
from tidelog.log.cleaner import clean, plan_cleaning
from tidelog.log.directory import LogDirectory
from tidelog.log.log import Log
from tidelog.records.build import build_batch
from tidelog.types import TopicPartition

PARTITION = TopicPartition("bench", 0)
GIGABYTE = 1 << 30
IDLE_FEW, IDLE_MANY = 10, 10_000
NO_LIMIT = 10**9


def batch_of(record_bytes: int, batch_bytes: int, *, keys: Iterator[bytes] | None = None) -> bytearray:
    count = batch_bytes // (record_bytes + 8)
    now_ms = SystemClock().wall_ms()
    return bytearray(build_batch([(now_ms, next(keys) if keys else None, bytes(record_bytes)) for _ in range(count)]))


SIXTEEN_KB = batch_of(100, 16_300)


@contextmanager
def scratch() -> Iterator[str]:
    """On the disk that holds the checkout, which is a real one where /tmp may be memory."""
    base = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), ".cache")
    os.makedirs(base, exist_ok=True)
    path = tempfile.mkdtemp(prefix="bench-", dir=base)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def rows() -> list[Row]:
    raise_open_file_limit()
    return [
        append_against_writev(),
        *cost_against_idle_partitions(),
        *cost_against_log_size(),
        recovery_against_kafka(),
        append_during_compaction(),
    ]


# Appends and bare writes


def append_against_writev(megabytes: int = 256, rounds: int = 7) -> Row:
    """The same bytes to the same disk, once as a log takes them and once by os.writev alone; in turns."""
    count = (megabytes << 20) // len(SIXTEEN_KB)
    moved = count * len(SIXTEEN_KB)
    with scratch() as directory:
        asyncio.run(_append_seconds(f"{directory}/warm", count))
        pairs = [
            (asyncio.run(_append_seconds(f"{directory}/{turn}", count)), _writev_seconds(f"{directory}/bare", count))
            for turn in range(rounds)
        ]
    ours_s, bare_s = (statistics.median(side) for side in zip(*pairs, strict=True))
    return Row(
        "append of 16 kB batches, against os.writev",
        f"{moved / ours_s / 1e9:.2f} GB/s",
        f"{moved / bare_s / 1e9:.2f} GB/s",
        bare_s / ours_s,
        0.5,
    )


async def _append_seconds(path: str, count: int) -> float:
    disk = RealDisk()
    log = await Log.open(disk, SystemClock(), path, PARTITION, default_topic())
    took = seconds(lambda: [log.append_as_leader(SIXTEEN_KB, 0) for _ in range(count)])
    await log.work.run(lambda: None)
    disk.remove_directory(path)
    disk.close()
    return took


def _writev_seconds(path: str, count: int) -> float:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    view = memoryview(SIXTEEN_KB)
    took = seconds(lambda: [os.writev(fd, [view[:16], view[16:]]) for _ in range(count)])
    os.close(fd)
    os.unlink(path)
    return took


# What must not matter


def cost_against_idle_partitions() -> list[Row]:
    """Append and read on one partition, with few and with very many idle ones open beside it."""
    few, many = _costs_in_turns(_with_idle, IDLE_FEW, IDLE_MANY)
    return [
        Row(f"{what}, {IDLE_MANY:,} idle partitions against {IDLE_FEW}", _us(slow), _us(fast), fast / slow, 0.8)
        for what, slow, fast in zip(("append", "read"), many, few, strict=True)
    ]


async def _with_idle(path: str, idle: int) -> Log:
    directory = await LogDirectory.open(
        RealDisk(), SystemClock(), random.SystemRandom(), path, lambda topic: default_topic()
    )
    one = batch_of(100, 1000)
    for number in range(idle):
        (await directory.create(TopicPartition("idle", number))).append_as_leader(one, 0)
    return await directory.create(PARTITION)


def cost_against_log_size() -> list[Row]:
    """Append and read at the end of a small log and of a large one."""
    small, large = _costs_in_turns(_of_size, 1 << 20, 2 * GIGABYTE)
    return [
        Row(f"{what}, a log of 2 GB against one of 1 MB", _us(slow), _us(fast), fast / slow, 0.8)
        for what, slow, fast in zip(("append", "read"), large, small, strict=True)
    ]


async def _of_size(path: str, size: int) -> Log:
    log = await Log.open(RealDisk(), SystemClock(), path, PARTITION, default_topic(segment_bytes=64 << 20))
    while log.size_bytes < size:
        for _ in range(256):
            log.append_as_leader(SIXTEEN_KB, 0)
    await log.flush()
    return log


Costs = tuple[float, float]


def _costs_in_turns(prepare: Callable[[str, int], Awaitable[Log]], *sizes: int, repeats: int = 3) -> list[Costs]:
    """Costs of append and read for each size: medians over processes that are made anew, each at its best."""
    several = [_costs_once(prepare, sizes) for _ in range(repeats)]
    return [
        (statistics.median(append for append, _ in costs), statistics.median(read for _, read in costs))
        for costs in map(list, zip(*several, strict=True))
    ]


def _costs_once(prepare: Callable[[str, int], Awaitable[Log]], sizes: tuple[int, ...], rounds: int = 15) -> list[Costs]:
    """A process for each size, asked in turns, so that all meet the same noise."""
    spawn = multiprocessing.get_context("spawn")
    with scratch() as directory:
        workers = []
        for size in sizes:
            ours, theirs = spawn.Pipe()
            worker = spawn.Process(target=_serve_costs, args=(theirs, prepare, f"{directory}/{size}", size))
            worker.start()
            ours.recv()
            workers.append((worker, ours))
        os.sync()
        turns = [[_ask(pipe) for _, pipe in workers] for _ in range(rounds)]
        for worker, pipe in workers:
            pipe.send(False)
            worker.join()
    return [
        (min(append for append, _ in costs), min(read for _, read in costs))
        for costs in map(list, zip(*turns, strict=True))
    ]


def _ask(pipe: Connection) -> Costs:
    pipe.send(True)
    answer: Costs = pipe.recv()
    return answer


def _serve_costs(pipe: Connection, prepare: Callable[[str, int], Awaitable[Log]], path: str, size: int) -> None:
    async def serve() -> None:
        raise_open_file_limit()
        log = await prepare(path, size)
        pipe.send(True)
        while pipe.recv():
            pipe.send(_append_and_read_costs(log))

    asyncio.run(serve())


def _append_and_read_costs(log: Log, count: int = 2000) -> Costs:
    """Seconds of one append and of one located read near the end."""
    batch = batch_of(100, 1000)
    start = time.perf_counter()
    for _ in range(count):
        log.append_as_leader(batch, 0)
    middle = time.perf_counter()
    first = log.log_end_offset - 1000
    for step in range(count):
        log.read_now(first + step % 900, 4096).read()
    return (middle - start) / count, (time.perf_counter() - middle) / count


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us"


# Recovery


def recovery_against_kafka() -> Row:
    """1 GB in one partition, opened after a kill with nothing known to be synced; both read it from the page cache."""
    with scratch() as directory:
        partition = f"{directory}/{PARTITION}"
        asyncio.run(_write_log(partition, GIGABYTE))
        ours = statistics.median(asyncio.run(_recovery_seconds(partition)) for _ in range(3))
        kafka = statistics.median(kafka_recovery_seconds(partition) for _ in range(3))
    return Row(
        "recovery of 1 GB after a kill, against Kafka 3.9.1", f"{ours:.2f} s", f"{kafka:.2f} s", kafka / ours, 1.0
    )


async def _write_log(path: str, size: int) -> None:
    disk = RealDisk()
    log = await Log.open(disk, SystemClock(), path, PARTITION, default_topic())
    while log.size_bytes < size:
        log.append_as_leader(SIXTEEN_KB, 0)
    await log.flush()
    disk.close()


async def _recovery_seconds(path: str) -> float:
    disk = RealDisk()
    start = time.perf_counter()
    await Log.open(disk, SystemClock(), path, PARTITION, default_topic(), clean=False, recovery_point=0)
    took = time.perf_counter() - start
    disk.close()
    return took


# Compaction


def append_during_compaction(rounds: int = 5) -> Row:
    """p99 of an append on the loop, paced, while a disk thread compacts 1 GB, against the same without; in turns."""
    turns = []
    for _ in range(rounds):
        with scratch() as directory:
            turns.append(asyncio.run(_append_latencies(directory)))
    alone, during, took = (statistics.median(side) for side in zip(*turns, strict=True))
    what = f"p99 of append while 1 GB is compacted (in {took:.1f} s), against alone"
    return Row(what, _us(during), _us(alone), alone / during, 0.5)


async def _append_latencies(directory: str) -> tuple[float, float, float]:
    disk = RealDisk()
    config = default_topic(segment_bytes=128 << 20, cleanup_policy=("compact",))
    dirty = await Log.open(disk, SystemClock(), f"{directory}/dirty", PARTITION, config)
    keys = (b"key-%07d" % random.randrange(1_000_000) for _ in iter(int, 1))
    pool = [batch_of(100, 16_300, keys=keys) for _ in range(500)]
    while dirty.size_bytes < GIGABYTE:
        dirty.append_as_leader(random.choice(pool), 0)
    dirty.high_watermark = dirty.log_end_offset
    dirty.roll()
    await dirty.flush()
    busy = await Log.open(disk, SystemClock(), f"{directory}/busy", PARTITION, default_topic())
    plan = await plan_cleaning(dirty, 0)
    before = await _paced_appends(busy, lambda count: count >= 3000)
    start = time.perf_counter()
    cleaning = asyncio.create_task(clean(dirty, plan, random.SystemRandom()))
    during = await _paced_appends(busy, lambda count: cleaning.done())
    assert cleaning.result() is not None
    took = time.perf_counter() - start
    after = await _paced_appends(busy, lambda count: count >= 3000)
    disk.close()
    return _p99(before + after), _p99(during), took


def _p99(took: list[float]) -> float:
    return statistics.quantiles(took, n=100)[98]


async def _paced_appends(log: Log, enough: Callable[[int], bool]) -> list[float]:
    """Seconds of each append, a batch every half millisecond, as a busy partition gets them."""
    batch = batch_of(100, 1000)
    took: list[float] = []
    while not enough(len(took)):
        await asyncio.sleep(0.0005)
        start = time.perf_counter()
        log.append_as_leader(batch, 0)
        took.append(time.perf_counter() - start)
    return took
