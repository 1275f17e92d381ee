"""One broker under a saboteur: what was acknowledged is there, once and in order, and what was seen stays.

Idempotent producers write through kills, stops, freezes, lost sessions and a bad network, each batch until it is
acknowledged. A kill keeps the page cache; a power loss does not, so it comes only where every record is flushed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import NamedTuple

import pytest

from tests.kits.brokerkit import FETCH_BY_NAME, PRODUCE_BY_NAME, Kit, fetch_request, produce_request
from tests.kits.logkit import batch
from tidelog.coordination.memory import MemoryCoordination
from tidelog.errors import ErrorCode
from tidelog.lab.broker import sim_settings
from tidelog.lab.world import World
from tidelog.net.calling import CannotConnectError, Connection, ConnectionClosedError
from tidelog.records.batch import decode
from tidelog.records.header import headers
from tidelog.wire.messages.transactions import InitProducerIdRequest

PARTITIONS = 2
_ANSWER_MS = 2_000.0
_FAILURES = (CannotConnectError, ConnectionClosedError)
_SEQUENCE_FAULTS = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,)


class Plan(NamedTuple):
    """What makes one run different from another beside its seed."""

    count: int = 120
    """Batches of each producer."""
    in_flight: int = 1
    """A restart remembers the last batch of a producer, as Kafka's snapshots do; with more in flight than that, a
    retry after it may find a gap where there is none."""
    ends: tuple[str, ...] = ("kill", "stop")
    flush: bool = False


class Producer:
    """Sends some batches at once; after a fault it goes on with the first that was not acknowledged."""

    def __init__(self, kit: Kit, name: str, index: int, plan: Plan, chance: random.Random) -> None:
        self._kit = kit
        self._name = name
        self._index = index
        self._count = plan.count
        self._in_flight = plan.in_flight
        self._chance = chance
        self._producer_id = -1
        self.acknowledged: dict[int, int] = {}
        """The offset of each."""

    async def run(self) -> None:
        while len(self.acknowledged) < self._count:
            try:
                connection = await Connection.open("b1", 9092, client_id=self._name, connect_timeout_ms=1_000)
            except _FAILURES:
                await asyncio.sleep(0.05)
                continue
            try:
                await self._write(connection)
            except _FAILURES:
                pass
            finally:
                connection.close()

    async def _write(self, connection: Connection) -> None:
        while self._producer_id < 0:
            request = InitProducerIdRequest(transactional_id=None)
            answer = await connection.call(request, 4, timeout_ms=_ANSWER_MS)
            assert answer.error_code == 0 or ErrorCode(answer.error_code).retriable
            self._producer_id = answer.producer_id
        while (first := len(self.acknowledged)) < self._count:
            last = min(first + self._chance.randrange(1, self._in_flight + 1), self._count)
            sent = [
                connection.send(self._request(number), PRODUCE_BY_NAME, timeout_ms=_ANSWER_MS)
                for number in range(first, last)
            ]
            results = await asyncio.gather(*sent, return_exceptions=True)
            for number, result in zip(range(first, last), results, strict=True):
                if isinstance(result, BaseException):
                    raise result
                one = result.responses[0].partition_responses[0]
                if one.error_code:
                    code = ErrorCode(one.error_code)
                    assert code.retriable or (code in _SEQUENCE_FAULTS and number > first), code
                    break
                self.acknowledged[number] = one.base_offset
            await asyncio.sleep(self._chance.uniform(0, 0.2))

    def _request(self, number: int) -> object:
        record = batch(
            [b"%s %d" % (self._name.encode(), number)],
            timestamp=self._kit.ports.clock.wall_ms(),
            producer_id=self._producer_id,
            producer_epoch=0,
            base_sequence=number,
        )
        acks = -1 if self._chance.random() < 0.7 else 1
        return produce_request({("t", self._index): record}, acks=acks, timeout_ms=1_000)


class Consumer:
    """Reads on and on, and remembers all it was given."""

    def __init__(self, index: int) -> None:
        self._index = index
        self.seen: dict[int, bytes | None] = {}

    async def run(self) -> None:
        while True:
            try:
                connection = await Connection.open("b1", 9092, client_id="reader", connect_timeout_ms=1_000)
                while True:
                    request = fetch_request({("t", self._index): len(self.seen)}, max_wait_ms=200)
                    answer = await connection.call(request, FETCH_BY_NAME, timeout_ms=_ANSWER_MS)
                    self._take(answer.responses[0].partitions[0])
                    await asyncio.sleep(0.01)
            except _FAILURES:
                await asyncio.sleep(0.05)

    def _take(self, answer: object) -> None:
        code = ErrorCode(answer.error_code)  # type: ignore[attr-defined]
        assert code == 0 or code.retriable, f"{code.name} at {len(self.seen)}"
        for record in decode(bytes(answer.records or b""), from_offset=len(self.seen)):  # type: ignore[attr-defined]
            assert record.offset == len(self.seen)
            self.seen[record.offset] = record.value


async def sabotage(world: World, kit: Kit, chance: random.Random, ends: tuple[str, ...]) -> None:
    """Until it is cancelled."""
    host, network = kit.host, world.network
    while True:
        await asyncio.sleep(chance.uniform(0.05, 0.5))
        fault = chance.randrange(8 if ends else 5) + (0 if ends else 3)
        if fault <= 2:
            await _end(kit, chance.choice(ends))
            await asyncio.sleep(chance.uniform(0, 3))
            await kit.start()
        elif fault == 3:
            host.freeze()
            await asyncio.sleep(chance.uniform(0.1, 12))
            host.thaw()
        elif fault == 4:
            kit.expire_session()
        elif fault == 5:
            client = chance.choice(["c0", "c1", "reader"])
            network.cut("b1", client, one_way=chance.random() < 0.5)
            await asyncio.sleep(chance.uniform(0.1, 3))
            network.heal("b1", client, reset=chance.random() < 0.5)
        elif fault == 6:
            network.reset("b1", chance.choice(["c0", "c1", "reader"]))
        else:
            kit.store.suspend()
            await asyncio.sleep(chance.uniform(0.1, 8))
            kit.store.resume()


async def _end(kit: Kit, how: str) -> None:
    if how == "stop":
        await kit.stop()
    elif how == "kill":
        kit.kill()
    else:
        kit.host.power_loss()


def tell(seed: int, plan: Plan) -> str:
    """The digest of the run, with all that was promised found kept."""
    with World(seed) as world:
        world.run(_story(world, plan), limit_s=3600)
        return world.trace.digest()


async def _story(world: World, plan: Plan) -> None:
    chance = world.chance_for("story")
    store = MemoryCoordination(world.host("store").clock, delay_s=lambda: chance.random() / 1e3)
    settings = sim_settings("b1", log_segment_bytes="2000", zookeeper_session_timeout_ms="4000")
    kit = Kit(world.host("b1"), store, settings, 1, "b1")
    for name in ("c0", "c1", "reader"):
        world.host(name)
    await kit.start()
    config = {"flush_messages": "1"} if plan.flush else {}
    await world.host("admin").start(kit.create_topic("t", PARTITIONS, **config))
    kit.disconnect()
    producers = [
        Producer(kit, f"c{number}", index, plan, world.chance_for(f"producer {number} {index}"))
        for number in range(2)
        for index in range(PARTITIONS)
    ]
    consumers = [Consumer(index) for index in range(PARTITIONS)]
    world.host("reader").start(_together([consumer.run for consumer in consumers]))
    faults = asyncio.ensure_future(sabotage(world, kit, world.chance_for("saboteur"), plan.ends))
    await asyncio.gather(
        world.host("c0").start(_together([one.run for one in producers[0:2]])),
        world.host("c1").start(_together([one.run for one in producers[2:4]])),
    )
    faults.cancel()
    await asyncio.gather(faults, return_exceptions=True)
    await _bring_back(world, kit)
    world.host("reader").kill()
    await world.host("admin").start(_check(kit, producers, consumers))
    await kit.stop()


async def _together(runs: list[Callable[[], object]]) -> None:
    await asyncio.gather(*(run() for run in runs))  # type: ignore[arg-type]


async def _bring_back(world: World, kit: Kit) -> None:
    kit.store.resume()
    kit.host.thaw()
    world.network.heal_all()
    if kit.host.process is not None:
        kit.host.kill()
    await kit.start()
    await kit.leads("t", PARTITIONS)


async def _check(kit: Kit, producers: list[Producer], consumers: list[Consumer]) -> None:
    for index in range(PARTITIONS):
        found = await kit.values("t", index)
        assert len(set(found)) == len(found), "nothing is there twice"
        for producer in producers:
            if producer._index == index:
                for number, offset in producer.acknowledged.items():
                    assert found[offset] == b"%s %d" % (producer._name.encode(), number)
                offsets = list(producer.acknowledged.values())
                assert offsets == sorted(offsets), "in the order they were sent"
        for offset, value in consumers[index].seen.items():
            assert found[offset] == value, "what was seen stays"
        log = kit.partition("t", index).log
        assert log.high_watermark == log.log_end_offset
        for segment in log.segments:
            for _, header in headers(segment.file.read_at(0, segment.size)):
                assert log.epochs.epoch_for_offset(header.base_offset) == header.partition_leader_epoch


@pytest.mark.parametrize("seed", range(5))
def test_acknowledged_records_are_there_exactly_once(seed: int) -> None:
    tell(seed, Plan())


@pytest.mark.parametrize("seed", range(50, 54))
def test_five_in_flight_while_the_broker_lives(seed: int) -> None:
    tell(seed, Plan(in_flight=5, ends=()))


@pytest.mark.parametrize("seed", range(100, 104))
def test_with_every_record_flushed_a_power_loss_takes_nothing(seed: int) -> None:
    tell(seed, Plan(count=60, ends=("kill", "power loss", "stop"), flush=True))


def test_the_same_seed_is_the_same_run() -> None:
    assert tell(7, Plan(count=40)) == tell(7, Plan(count=40))
