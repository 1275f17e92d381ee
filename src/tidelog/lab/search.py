"""A run is a seed: it decides what the cluster is, what clients do and what goes wrong; a search runs many."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple

from tidelog.errors import TidelogError
from tidelog.lab import group_workload
from tidelog.lab.broker import WaitedInVainError
from tidelog.lab.budget import PowerBudget
from tidelog.lab.checkers import ALL_RULES, TRUE_AFTER_LOSSES, ReplicasAgree
from tidelog.lab.client_faults import WRITER_PREFIX, Program
from tidelog.lab.clock import SimClock
from tidelog.lab.cluster import TOPIC, LabCluster, brokers_of, store_of
from tidelog.lab.group_workload import GroupLedger, GroupMember
from tidelog.lab.healing_rules import (
    ALL_IN_SYNC_S,
    GROUP_GOES_ON_S,
    METADATA_S,
    AllInSyncInTime,
    GroupGoesOn,
    MetadataInTime,
)
from tidelog.lab.health import is_told
from tidelog.lab.operators import (
    PASSING,
    change_settings,
    come_and_go,
    elect_preferred,
    make_passing_topics,
    move_about,
)
from tidelog.lab.plans import Plan, plan_of
from tidelog.lab.rules import BrokenRuleError, Rule
from tidelog.lab.saboteur import Saboteur
from tidelog.lab.side_topics import CompactedTopic, RetainedTopic, ShortenedTopic, SideTopic
from tidelog.lab.trace import Trace
from tidelog.lab.witness import Witness
from tidelog.lab.workload import Reader, Writer, careless_writes, last_reads, stray_reads
from tidelog.lab.world import World
from tidelog.records.batch import decode
from tidelog.records.kernel import Record
from tidelog.types import BrokerId, Offset, TopicPartition

LIMIT_S = 3600.0
_SETTLED_S = 60.0
_LATE_MS, _LATE_CHANCE = 8_000.0, 0.5
_COLD_CHANCE, _COLD_MS = 0.8, (5.0, 60.0)
_NOISE_REST_S = 0.3
_LOOK_S = 0.2
_QUIET_S = 1.0
"""What the noise has sent before its end is in the logs by then."""
_NOISE = ("admin", "careless", "strays", "last", "topics", "moves", "elections", "settings")
THE_RUN_ITSELF = "the cluster comes to rest, and nothing fails that nobody waits for"


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
    causes: list[BaseException] = []
    cause: BaseException | None = failure
    while cause is not None and cause not in causes:  # an exception that is raised again may be its own cause
        if isinstance(cause, BrokenRuleError):
            return cause.rule, cause.what
        causes.append(cause)
        cause = cause.__cause__
    return THE_RUN_ITSELF, f"{type(failure).__name__}: {failure}"


class _Run:
    """A cluster, its clients and its saboteurs, from the start until all is quiet."""

    def __init__(self, world: World, plan: Plan, rules: Sequence[type[Rule]]) -> None:
        self._world = world
        self._plan = plan
        self._rules = [rule for rule in rules if rule in TRUE_AFTER_LOSSES] if plan.may_lose_records else rules
        store = store_of(world, plan.store)
        settings = plan.settings | (group_workload.SETTINGS if plan.members else {})
        self._cluster = LabCluster(world, store, brokers_of(world, store, plan.brokers, **settings))
        self._witness = Witness(self._cluster, self._rules)
        self._indexes = range(plan.partitions)
        self._writers = [
            Writer(
                self._cluster,
                self._witness,
                f"{WRITER_PREFIX}{number}",
                self._indexes,
                plan.records,
                plan.longest_rest_s,
                plan.filling,
                is_brief=plan.brief,
                lasts_s=plan.lasts_s,
            )
            for number in range(plan.writers)
        ]
        self._readers = [
            Reader(self._cluster, self._witness, f"r{number}", self._indexes) for number in range(plan.readers)
        ]
        self._ledger = GroupLedger()
        self._members = [
            GroupMember(self._cluster, self._witness, self._ledger, number, is_static=plan.static)
            for number in range(plan.members)
        ]
        for name in [*(reader.name for reader in self._readers), "client", *_NOISE]:
            world.host(name)
        self._over = asyncio.Event()
        self._sides: list[SideTopic] = []
        if plan.sides:
            for kind in (CompactedTopic, ShortenedTopic, RetainedTopic):
                self._sides.append(kind(self._cluster, self._chance(kind.partition.topic), self._over))

    async def story(self) -> None:
        self._set_latencies_and_clocks()
        await self._cluster.start()
        config = {"unclean_leader_election_enable": "true"} if self._plan.beyond == "unclean" else {}
        await self._world.host("admin").start(self._cluster.create_topic(assignments=self._assignments(), **config))
        witness = self._beside(self._witness.run())
        for reader in self._readers:
            self._on(reader.name, reader.run())
        for member in self._members:
            self._on(member.name, member.run())
        rest_s = max(_NOISE_REST_S, self._plan.longest_rest_s / 2)  # noise that drowns the writers finds nothing more
        if self._plan.careless:
            self._on("careless", careless_writes(self._cluster, self._indexes, self._chance("careless"), rest_s))
        if self._plan.strays:
            stray = stray_reads(self._cluster, self._witness, self._indexes, self._chance("strays"), rest_s)
            self._on("strays", stray)
        if self._plan.last_reads:
            self._on("last", last_reads(self._cluster, self._witness, self._indexes, self._chance("last"), rest_s))
        saboteurs = [self._beside(work) for work in self._sabotage()]
        noise = asyncio.gather(*self._operators(), *saboteurs)
        for writer in self._writers:
            self._on(writer.name, writer.run())
        await asyncio.gather(*(writer.done.wait() for writer in self._writers))
        self._over.set()
        await noise
        for host in ("careless", "strays", "last"):
            self._world.host(host).kill()
        await asyncio.sleep(_QUIET_S)
        await self._settle()
        witness.cancel()

    def _assignments(self) -> Sequence[Sequence[int]]:
        if self._plan.assignments:
            return self._plan.assignments
        numbers = sorted(self._cluster.brokers)
        firsts = [0 if self._plan.cold else index for index in self._indexes]  # cold reads of one delay those of others
        return [[numbers[(first + place) % len(numbers)] for place in range(3)] for first in firsts]

    def _on(self, host: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._world.host(host).start(work)

    def _chance(self, name: str) -> random.Random:
        return self._world.chance_for(name)

    def _beside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Of no host. If it fails so does the run, and not only when somebody waits for it."""
        task = asyncio.create_task(work)
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
                if self._plan.late_bytes:
                    self._world.network.set_late_bytes(f"b{one}", f"b{other}", _LATE_MS, _LATE_CHANCE)
            if self._plan.cold:
                disk = self._cluster[one].host.disk
                disk.cold_chance, disk.work.delay_ms = _COLD_CHANCE, _COLD_MS
            clock = self._chance(f"clock {one}")
            self._cluster[one].host.clock = SimClock(
                self._world.loop, offset_ms=clock.randrange(-2000, 2000), drift_ppm=clock.uniform(-300, 300)
            )

    def _operators(self) -> list[asyncio.Task[None]]:
        plan, cluster, indexes, over = self._plan, self._cluster, self._indexes, self._over
        working: list[tuple[str, Coroutine[Any, Any, None]]] = []
        if plan.topics:
            working.append(("topics", come_and_go(cluster, self._chance("topics"), over)))
        if plan.moves:
            working.append(("moves", move_about(cluster, indexes, self._chance("moves"), over)))
        if plan.elections:
            working.append(("elections", elect_preferred(cluster, indexes, self._chance("elections"), over)))
        if plan.changes:
            working.append(("settings", change_settings(cluster, self._chance("settings"), over)))
        working += [(side.name, side.run()) for side in self._sides]
        return [self._on(host, work) for host, work in working]

    def _sabotage(self) -> list[Coroutine[Any, Any, None]]:
        clients: dict[str, Program] = {writer.name: writer.run for writer in self._writers}
        clients |= {reader.name: reader.run for reader in self._readers}
        clients |= {member.name: member.run for member in self._members}
        watched = [TopicPartition(TOPIC, index) for index in self._indexes]
        if self._plan.members:
            watched.append(group_workload.OFFSETS)
        watched += [side.partition for side in self._sides]
        budget = PowerBudget(self._cluster, watched, is_unlimited=self._plan.has_unlimited_power_losses)

        def saboteur(name: str, known: Sequence[str]) -> Saboteur:
            return Saboteur(self._cluster, self._indexes, known, self._chance(name), clients, budget)

        plan, over = self._plan, self._over
        work = [saboteur(f"saboteur {number}", known).run(over) for number, known in enumerate(plan.saboteurs)]
        return [*work, saboteur("ambush", ()).lie_in_ambush(plan.ambush, over)] if plan.ambush else work

    async def _settle(self) -> None:
        """Nothing goes wrong any more: every replica has everything, every reader gets it, every rule holds."""
        logs: dict[TopicPartition, dict[int, list[Record]]] = {}
        for index in self._indexes:
            partition = TopicPartition(TOPIC, index)
            await self._cluster.until(partial(self._cluster.is_in_sync, index), _SETTLED_S, f"{partition} is in sync")
            logs[partition] = {number: self._log_of(number, partition) for number in self._cluster.assigned(index)}
            end = self._cluster.ends(index)[self._cluster.leader(index)][0]
            for reader in self._readers:
                what = f"{reader.name} has read {partition} up to {end}"
                await self._cluster.until(partial(reader.has_read, partition, end), _SETTLED_S, what)
            await self._check_group(partition, end)
        if MetadataInTime in self._rules:
            await self._tell_all(f"{METADATA_S:.0f} s after every replica is in sync")
            if self._plan.late_bytes:
                await asyncio.sleep(_LATE_MS / 1e3)
                await self._tell_all("after the last bytes of closed connections have arrived")
        await self._check_other_topics()
        for side in self._sides:
            if side.rule in self._rules:
                await self._on(side.name, side.check())
        self._witness.settled(logs)

    async def _check_other_topics(self) -> None:
        """They have nothing to do with the records that matter, so only their health is looked at."""
        if AllInSyncInTime not in self._rules:
            return
        others = [side.partition for side in self._sides]
        if self._plan.topics:
            await self._on("topics", make_passing_topics(self._cluster))
            others += [TopicPartition(name, index) for name in PASSING for index in range(2)]
        for topic, index in others:
            is_in_sync = partial(self._cluster.is_in_sync, index, topic=topic)
            if not await self._cluster.lookout.until(is_in_sync, ALL_IN_SYNC_S, _LOOK_S):
                AllInSyncInTime().broken(f"a replica of {topic}-{index} is not in sync after {ALL_IN_SYNC_S:.0f} s")

    async def _tell_all(self, when: str) -> None:
        """Every broker's metadata is that of the store, or is so soon."""
        told = partial(is_told, self._cluster, self._indexes)
        if not await self._cluster.lookout.until(told, METADATA_S, _LOOK_S):
            MetadataInTime().broken(f"{when} a broker tells something else than the store has")

    async def _check_group(self, partition: TopicPartition, end: Offset) -> None:
        if not self._members:
            return
        what = f"the group has committed {partition} up to {end}"
        try:
            await self._cluster.until(partial(self._ledger.has_committed, partition, end), GROUP_GOES_ON_S, what)
        except WaitedInVainError as failure:
            if GroupGoesOn not in self._rules:
                raise
            GroupGoesOn().broken(str(failure))

    def _log_of(self, number: BrokerId, partition: TopicPartition) -> list[Record]:
        """All of it, of which all is committed by now."""
        try:
            return decode(self._cluster.held(number, partition.partition))
        except TidelogError as damage:
            if ReplicasAgree not in self._rules:
                raise
            ReplicasAgree().cannot_be_read(number, partition, damage)
