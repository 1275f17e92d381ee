"""What makes one run different from another: the cluster, its settings, what clients do, and what goes wrong."""

from __future__ import annotations

import math
import random
from typing import Any, Literal, NamedTuple

from tidelog.lab.ambushes import AMBUSHES, ambush_of
from tidelog.lab.chance import stream
from tidelog.lab.directory_faults import DIRECTORY_FAULTS
from tidelog.lab.faults import ENDS, POWER, SLOW_CLIENT, TROUBLE
from tidelog.lab.store import StoreKind

SABOTEURS: tuple[tuple[tuple[str, ...], ...], ...] = (
    (ENDS + TROUBLE,),
    (ENDS, TROUBLE),
    (POWER,),
    (POWER, TROUBLE),
    (POWER, ENDS + TROUBLE),
    (TROUBLE, TROUBLE),
    (ENDS + TROUBLE, ENDS),
)
"""Who works side by side, with which faults each."""
_BULK_BYTES = (100_000, 300_000, 900_000)
_BULK_SEGMENT_BYTES = 2_000_000
_LASTS_S, _AMBUSH_LASTS_S = 15.0, 25.0
"""Many short runs find more than a few long ones in the same time. An ambush takes some seconds each time."""


Beyond = Literal["nothing", "power", "unclean"]
"""Power: any number of brokers lose it at any time. Unclean: the topic allows unclean elections, too."""


class Plan(NamedTuple):
    """A run, but for its seed."""

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
    """Of a consumer group that reads all and commits what it has read."""
    static: bool = False
    """The members keep their places over a restart."""
    segment_bytes: int = 3000
    longest_rest_s: float = 0.2
    """Between what a writer sends: the longer, the more goes wrong meanwhile."""
    lasts_s: float = math.inf
    """After this long writers begin no more records, so that a run does not spend its time on one long outage."""
    filling: tuple[int, ...] = (0,)
    """How many bytes a record has at least; one of these."""
    flush_each: bool = False
    """flush.messages=1: what is acknowledged is on the device."""
    directories: int = 1
    """Log directories of each broker, of which one may fail alone."""
    elections: bool = False
    """Preferred leaders are elected by hand."""
    changes: bool = False
    """The topic's settings change."""
    sides: bool = False
    """Three topics from which records go: by compaction, by DeleteRecords and by retention."""

    store: StoreKind = "memory"
    """Where the cluster agrees: a server of its own, or the embedded store on a machine that all brokers share."""
    late_bytes: bool = False
    """Bytes of closed connections between brokers may arrive after those of the next connection."""
    beyond: Beyond = "nothing"
    """What goes beyond what a cluster has to survive. Records may be lost then, and that is reported."""
    brief: bool = False
    """Writers take a new producer for every few records."""
    cold: bool = False
    """Disks are slow, and much of what is read is not in their page caches."""
    last_reads: bool = False
    """The reader that asks anybody asks for the last record that was read."""
    assignments: tuple[tuple[int, ...], ...] = ()
    """The replicas of each partition; if empty, they are dealt out."""
    patient: bool = False
    """Followers wait for a leader's answer as long as Kafka's do by default."""
    ambush: str = ""
    """The sequence of faults that one more saboteur lays again and again."""

    @property
    def may_lose_records(self) -> bool:
        return self.beyond != "nothing"

    @property
    def has_unlimited_power_losses(self) -> bool:
        """Either it does not matter what is lost, or nothing that is acknowledged is."""
        return self.flush_each or self.may_lose_records

    @property
    def settings(self) -> dict[str, str]:
        """Of every broker."""
        found = {"log_segment_bytes": str(self.segment_bytes)}
        if self.flush_each:
            found["log_flush_interval_messages"] = "1"
        if self.directories > 1:
            found["log_dirs"] = ",".join(f"/data{number}" for number in range(self.directories))
        if self.patient:
            found["replica_socket_timeout_ms"] = "30000"
        if self.sides:
            found["log_cleaner_backoff_ms"] = "500"
            found["log_retention_check_interval_ms"] = "500"
        return found


def plan_of(seed: int) -> Plan:
    """What a seed stands for. It is not told by its number: every fault and every noise is in some of any hundred."""
    chance = stream(seed, "plan")
    plan = Plan(
        chance.choice(SABOTEURS),
        brokers=chance.choice([3, 3, 4]),
        partitions=chance.choice([1, 2, 3]),
        records=chance.choice([10, 20, 30]),
        careless=chance.random() < 0.6,
        strays=chance.random() < 0.5,
        topics=chance.random() < 0.2,
        moves=chance.random() < 0.3,
        segment_bytes=chance.choice([1000, 3000, 100_000]),
        longest_rest_s=chance.choice([0.2, 1.0, 3.0]),
        lasts_s=_LASTS_S,
        members=chance.choice([0, 0, 0, 2]),
        static=chance.random() < 0.3,
        flush_each=chance.random() < 0.15,
        directories=chance.choice([1, 1, 1, 2]),
        elections=chance.random() < 0.2,
        changes=chance.random() < 0.2,
        sides=stream(seed, "sides").random() < 0.15,
        store=stream(seed, "store kind").choice(["memory", "memory", "memory", "embedded"]),
        late_bytes=stream(seed, "late bytes").random() < 0.25,
    )
    if chance.random() < 0.05:
        plan = plan._replace(**_bulk(chance))
    plan = plan._replace(
        brief=stream(seed, "brief").random() < 0.2,
        cold=stream(seed, "cold").random() < 0.15 and plan.filling != _BULK_BYTES,
        last_reads=stream(seed, "last reads").random() < 0.4,
    )
    if stream(seed, "slow clients").random() < 0.12:
        plan = plan._replace(saboteurs=(*plan.saboteurs, (SLOW_CLIENT,)))
    beyond = stream(seed, "beyond")
    if beyond.random() < 0.08:
        return plan._replace(**_beyond(beyond))
    if stream(seed, "directory faults").random() < 0.12 and not plan.has_unlimited_power_losses:
        plan = plan._replace(directories=2, saboteurs=(*plan.saboteurs, DIRECTORY_FAULTS))
    ambush = ambush_of({name: stream(seed, f"ambush {name}") for name in AMBUSHES})
    if not ambush:
        return plan
    return plan._replace(**{"ambush": ambush, "lasts_s": _AMBUSH_LASTS_S, **AMBUSHES[ambush].plan})


def _beyond(chance: random.Random) -> dict[str, Any]:
    """Without groups and side topics: what is promised of those is nothing when records may be lost."""
    return {
        "beyond": chance.choice(["power", "unclean"]),
        "saboteurs": chance.choice([(POWER,), (POWER, TROUBLE)]),
        "members": 0,
        "sides": False,
    }


def _bulk(chance: random.Random) -> dict[str, Any]:
    """Few records, each so large that a socket's buffer or an answer holds one or none.

    A follower copies all of them over the slowest link in a few seconds, so that rules of time hold.
    """
    return {
        "filling": _BULK_BYTES,
        "segment_bytes": _BULK_SEGMENT_BYTES,
        "records": chance.choice([3, 4]),
        "partitions": chance.choice([1, 2]),
    }
