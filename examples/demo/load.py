"""The load: orders go to the topic, acknowledgements go into the books, and the topic and its reader are watched."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from examples.demo.ledger import Ledger
from examples.demo.orders import PARTITIONS, PER_CHUNK, Packet, Plan
from tidelog.client.addresses import parse_bootstrap
from tidelog.client.cluster import Cluster
from tidelog.client.group_offsets import committed_offsets
from tidelog.client.offsets import LATEST, list_offsets
from tidelog.client.produce import Produced, Producer
from tidelog.errors import TidelogError
from tidelog.records.build import build_batch
from tidelog.types import TopicPartition

IN_FLIGHT_CHUNKS = 4
"""No chunk is sent before the fourth one before it is acknowledged: so partitions never lie far apart in event time,
however long one of them has no leader, and no order becomes too late by that."""
_SAMPLE_S = 0.5


class Sample(NamedTuple):
    """At a time since the load began: records in the topic, and how many of them the pipeline has processed."""

    at_s: float
    written: int
    processed: int


class Load:
    """Runs beside the pipeline, on a thread of its own.

    `failure` is set if an order was not acknowledged: then nothing can be proved.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        group: str,
        plan: Plan,
        *,
        rate: int,
        kill: Callable[[int], None],
        has_watermark: Callable[[], bool],
    ) -> None:
        self._thread = threading.Thread(target=self._work, name="load", daemon=True)
        self.ledger = Ledger()
        self.samples: list[Sample] = []
        self.killed_s: float | None = None
        self.failure: BaseException | None = None
        self._bootstrap = parse_bootstrap(bootstrap)
        self._partitions = {number: TopicPartition(topic, number) for number in range(PARTITIONS)}
        self._group = group
        self._plan = plan
        self._rate = rate
        self._kill = kill
        self._has_watermark = has_watermark
        self._late = list(plan.late_packets())
        self._began_s = time.monotonic()
        self._loaded, self._close, self._closed = threading.Event(), threading.Event(), threading.Event()
        self._over = threading.Event()

    # For the thread of the pipeline

    def start(self) -> None:
        self._thread.start()

    @property
    def is_loaded(self) -> bool:
        """All but the last order are acknowledged."""
        self._check()
        return self._loaded.is_set()

    def close_minutes(self) -> None:
        """Send the order that closes the last minute. All before it must have been processed."""
        self._close.set()
        self._closed.wait()
        self._check()

    def end(self) -> None:
        self._over.set()
        self._close.set()
        self._thread.join()

    def _check(self) -> None:
        if self.failure is not None:
            raise SystemExit(f"the load failed: {self.failure}")

    # The thread of the load

    def _work(self) -> None:
        self._began_s = time.monotonic()
        try:
            asyncio.run(self._run())
        except Exception as failure:
            self.failure = failure
        finally:
            self._loaded.set()
            self._closed.set()

    async def _run(self) -> None:
        async with await Cluster.open(self._bootstrap, random=random.SystemRandom()) as cluster:
            await cluster.topic(self._partitions[0].topic)
            watching = asyncio.create_task(self._watch())
            producer = Producer(cluster)
            try:
                await self._send_all(cluster, producer)
                self._loaded.set()
                await self._until(self._close.is_set)
                if not self._over.is_set():
                    last = [*self._late, self._plan.closing_packet()]
                    await asyncio.gather(*(self._send(producer, packet) for packet in last))
                    self._closed.set()
                    await self._until(self._over.is_set)
            finally:
                producer.close()
                watching.cancel()

    async def _send_all(self, cluster: Cluster, producer: Producer) -> None:
        sent: list[asyncio.Future[list[None]]] = []
        due_s = time.monotonic()
        for number in range(self._plan.chunks):
            if number == self._plan.chunks // 2:
                await self._until(self._has_watermark)
                self._kill_leader(cluster)
            if number >= IN_FLIGHT_CHUNKS:
                await sent[number - IN_FLIGHT_CHUNKS]
            packets = self._plan.chunk(number) + self._due_late_packets()
            sent.append(asyncio.gather(*(self._send(producer, packet) for packet in packets)))
            due_s = max(due_s + PER_CHUNK / self._rate, time.monotonic())
            await asyncio.sleep(due_s - time.monotonic())
        await asyncio.gather(*sent)

    def _due_late_packets(self) -> list[Packet]:
        """One with each chunk, once the pipeline has a watermark: before it has one, nothing is too late."""
        return [self._late.pop()] if self._late and self._has_watermark() else []

    def _send(self, producer: Producer, packet: Packet) -> Coroutine[Any, Any, None]:
        now_ms = time.time_ns() // 1_000_000
        batch = build_batch([(now_ms, key, value) for key, value in packet.records])
        written = producer.send(self._partitions[packet.partition], batch)

        async def enter(written: asyncio.Future[Produced]) -> None:
            await written
            self.ledger.add(packet.ledger)

        return enter(written)

    def _kill_leader(self, cluster: Cluster) -> None:
        leader = cluster.metadata.leader(self._partitions[0])
        assert leader is not None, "the topic has a leader"
        self._kill(leader)
        self.killed_s = time.monotonic() - self._began_s

    async def _until(self, is_so: Callable[[], bool]) -> None:
        """Or until the demo is over, whatever ended it."""
        while not (is_so() or self._over.is_set()):
            await asyncio.sleep(_SAMPLE_S / 10)

    async def _watch(self) -> None:
        """With connections of its own, so that it never waits behind the load."""
        async with await Cluster.open(self._bootstrap, random=random.SystemRandom()) as cluster:
            await cluster.topic(self._partitions[0].topic)
            while True:
                # While a leader is away there may be no answer, and so no sample.
                with contextlib.suppress(TidelogError):
                    self.samples.append(await self._sample(cluster))
                await asyncio.sleep(_SAMPLE_S)

    async def _sample(self, cluster: Cluster) -> Sample:
        ends = await list_offsets(cluster, dict.fromkeys(self._partitions.values(), LATEST))
        done = await committed_offsets(cluster, self._group)
        written = sum(one.offset for one in ends.values())
        return Sample(time.monotonic() - self._began_s, written, sum(one.offset for one in done.values()))
