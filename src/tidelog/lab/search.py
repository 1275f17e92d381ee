"""A run is a seed: it decides what the cluster is, what clients do and what goes wrong; a search runs many."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple

from tidelog.lab import group_workload
from tidelog.lab.broker import eventually
from tidelog.lab.chance import stream
from tidelog.lab.checkers import ALL_RULES, BrokenRuleError, Rule
from tidelog.lab.clock import SimClock
from tidelog.lab.cluster import TOPIC, LabCluster, brokers_of, store_of
from tidelog.lab.faults import ENDS, POWER, TROUBLE
from tidelog.lab.group_workload import GroupLedger, GroupMember
from tidelog.lab.saboteur import Saboteur
from tidelog.lab.trace import Trace
from tidelog.lab.witness import Witness
from tidelog.lab.workload import Reader, Writer, careless_writes, come_and_go, move_about, stray_reads
from tidelog.lab.world import World
from tidelog.records.batch import decode
from tidelog.records.kernel import Record
from tidelog.types import TopicPartition

LIMIT_S = 3600.0
_SETTLED_S = 60.0
_NOISE = ("admin", "careless", "strays", "topics", "moves")
THE_RUN_ITSELF = "the cluster comes to rest, and nothing fails that nobody waits for"


class Plan(NamedTuple):
    """What makes one run different from another beside its seed."""

    saboteurs: tuple[tuple[str, ...], ...] = (ENDS + TROUBLE,)
    """The faults that each of them knows; they work side by side."""
    brokers: int = 3
    partitions: int = 2
    writers: int = 2
    readers: int = 1
    records: int = 40
    """That each writer writes to each partition."""
    careless: bool = False
    """Records with acks=1 in between, which an election may drop: replicas then part."""
    strays: bool = False
    """A reader that asks anybody, also those who lead no more and do not know."""
    topics: bool = False
    """Others come and go."""
    moves: bool = False
    """Partitions are reassigned."""
    members: int = 0
    """Of a consumer group that commits offsets."""
    segment_bytes: int = 3000
    longest_rest_s: float = 0.2
    """Between what a writer sends: the longer, the more goes wrong meanwhile."""


def plan_of(seed: int) -> Plan:
    """What a seed stands for. It is not told by its number: every fault and every noise is in some of any hundred."""
    chance = stream(seed, "plan")
    saboteurs = chance.choice([(ENDS + TROUBLE,), (ENDS, TROUBLE), (POWER,), (TROUBLE, TROUBLE)])
    return Plan(
        saboteurs,
        brokers=chance.choice([3, 3, 4]),
        partitions=chance.choice([1, 2, 3]),
        records=chance.choice([15, 30, 50]),
        careless=chance.random() < 0.6,
        strays=chance.random() < 0.5,
        topics=chance.random() < 0.2,
        moves=chance.random() < 0.3,
        segment_bytes=chance.choice([1000, 3000, 100_000]),
        longest_rest_s=chance.choice([0.2, 1.0, 3.0]),
        members=stream(seed, "members").choice([0, 0, 0, 2]),
    )


class Outcome(NamedTuple):
    """What became of a run. `broken` is the rule, if one was, and `what` how."""

    seed: int
    plan: Plan
    trace: Trace
    virtual_s: float
    broken: str | None = None
    what: str = ""

    @property
    def digest(self) -> str:
        return self.trace.digest()


def run(seed: int, plan: Plan | None = None, rules: Sequence[type[Rule]] = ALL_RULES) -> Outcome:
    """One run in a world of its own, by the seed's plan unless another is given. Rules look on and change nothing."""
    plan = plan_of(seed) if plan is None else plan
    broken, what = None, ""
    with World(seed) as world:
        try:
            world.run(_Run(world, plan, rules).story(), limit_s=LIMIT_S)
        except Exception as failure:  # whatever it is, it is what this run has found
            broken, what = _rule_of(failure)
            world.loop.note("broken", broken, what)
        return Outcome(seed, plan, world.trace, world.loop.time(), broken, what)


def _rule_of(failure: BaseException) -> tuple[str, str]:
    """A rule that a client's task found broken comes as the cause of that task's failure."""
    cause: BaseException | None = failure
    while cause is not None:
        if isinstance(cause, BrokenRuleError):
            return cause.rule, cause.what
        cause = cause.__cause__
    return THE_RUN_ITSELF, f"{type(failure).__name__}: {failure}"


class _Run:
    """A cluster, its clients and its saboteurs, from the start until all is quiet."""

    def __init__(self, world: World, plan: Plan, rules: Sequence[type[Rule]]) -> None:
        self._world = world
        self._plan = plan
        store = store_of(world)
        settings = group_workload.SETTINGS if plan.members else {}
        brokers = brokers_of(world, store, plan.brokers, log_segment_bytes=str(plan.segment_bytes), **settings)
        self._cluster = LabCluster(world, store, brokers)
        self._witness = Witness(self._cluster, rules)
        self._indexes = range(plan.partitions)
        self._writers = [
            Writer(self._cluster, self._witness, f"w{number}", self._indexes, plan.records, plan.longest_rest_s)
            for number in range(plan.writers)
        ]
        self._readers = [
            Reader(self._cluster, self._witness, f"r{number}", self._indexes) for number in range(plan.readers)
        ]
        self._ledger = GroupLedger()
        self._members = [GroupMember(self._cluster, self._ledger, f"m{number}") for number in range(plan.members)]
        for name in [*(reader.name for reader in self._readers), "client", *_NOISE]:
            world.host(name)
        self._over = asyncio.Event()

    async def story(self) -> None:
        self._set_latencies_and_clocks()
        await self._cluster.start()
        numbers = sorted(self._cluster.brokers)
        assignments = [[numbers[(index + place) % len(numbers)] for place in range(3)] for index in self._indexes]
        await self._world.host("admin").start(self._cluster.create_topic(assignments=assignments))
        witness = self._beside(self._witness.run())
        for reader in self._readers:
            self._on(reader.name, reader.run())
        for member in self._members:
            self._on(member.name, member.run())
        if self._plan.careless:
            self._on("careless", careless_writes(self._cluster, self._indexes, self._chance("careless")))
        if self._plan.strays:
            self._on("strays", stray_reads(self._cluster, self._witness, self._indexes, self._chance("strays")))
        saboteurs = [self._beside(one.run(self._over)) for one in self._saboteurs()]
        noise = asyncio.gather(*self._operators(), *saboteurs)
        await asyncio.gather(*(self._on(writer.name, writer.run()) for writer in self._writers))
        self._over.set()
        await noise
        for host in ("careless", "strays"):
            self._world.host(host).kill()
        await self._settle()
        witness.cancel()

    def _on(self, host: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._world.host(host).start(work)

    def _chance(self, name: str) -> random.Random:
        return self._world.chance_for(name)

    def _beside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Of no host. If it fails so does the run, and not only when somebody waits for it."""
        task = asyncio.ensure_future(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            self._world.loop.fail(f"beside the clients: {failure!r}", failure)

    def _set_latencies_and_clocks(self) -> None:
        for one in self._cluster.brokers:
            for other in range(one + 1, len(self._cluster.brokers) + 1):
                latency_ms = self._chance(f"latency {one} {other}").choice([0.2, 2.0, 20.0, 80.0])
                self._world.network.set_latency(f"b{one}", f"b{other}", latency_ms, latency_ms)
            clock = self._chance(f"clock {one}")
            self._cluster[one].host.clock = SimClock(
                self._world.loop, offset_ms=clock.randrange(-2000, 2000), drift_ppm=clock.uniform(-300, 300)
            )

    def _operators(self) -> list[asyncio.Task[None]]:
        working = []
        if self._plan.topics:
            working.append(self._on("topics", come_and_go(self._cluster, self._chance("topics"), self._over)))
        if self._plan.moves:
            working.append(
                self._on("moves", move_about(self._cluster, self._indexes, self._chance("moves"), self._over))
            )
        return working

    def _saboteurs(self) -> list[Saboteur]:
        clients = [
            *(one.name for one in self._writers),
            *(one.name for one in self._readers),
            *(one.name for one in self._members),
        ]
        return [
            Saboteur(self._cluster, self._indexes, known, self._chance(f"saboteur {number}"), clients)
            for number, known in enumerate(self._plan.saboteurs)
        ]

    async def _settle(self) -> None:
        """Nothing goes wrong any more: every replica has everything, every reader gets it, every rule holds."""
        logs: dict[TopicPartition, dict[int, list[Record]]] = {}
        for index in self._indexes:
            partition = TopicPartition(TOPIC, index)
            await eventually(partial(self._cluster.is_in_sync, index), _SETTLED_S, f"{partition} is in sync")
            logs[partition] = {
                number: decode(self._cluster.held(number, index)) for number in self._cluster.assigned(index)
            }
            end = self._cluster.ends(index)[self._cluster.leader(index)][0]
            for reader in self._readers:
                what = f"{reader.name} has read {partition} up to {end}"
                await eventually(partial(reader.has_read, partition, end), _SETTLED_S, what)
        if self._members:
            await group_workload.settled(self._ledger, self._indexes)
        self._witness.settled(logs)
