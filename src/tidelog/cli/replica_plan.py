"""Which brokers get the replicas when partitions are to have more or fewer of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tidelog.types import BrokerId, TopicPartition

Plan = dict[TopicPartition, tuple[BrokerId, ...]]


def with_replicas(current: Mapping[TopicPartition, Sequence[BrokerId]], factor: int, alive: Sequence[BrokerId]) -> Plan:
    """So many replicas for each partition; those that have as many on living brokers are left out.

    Replicas stay where they are as far as possible. New ones go to the living brokers with the fewest. Of a partition
    that changes, the broker that is preferred by the fewest becomes the preferred leader.
    """
    if not 1 <= factor <= len(alive):
        raise ValueError(f"a replication factor of {factor} needs as many living brokers, and there are {len(alive)}")
    living = sorted(alive)
    held = Counter(dict.fromkeys(living, 0))
    held.update(broker for replicas in current.values() for broker in replicas)
    changing = {
        partition: replicas
        for partition, replicas in current.items()
        if len(replicas) != factor or not set(replicas) <= set(living)
    }
    preferred = Counter(replicas[0] for partition, replicas in current.items() if partition not in changing)
    plan: Plan = {}
    for partition, replicas in sorted(changing.items()):
        kept = [broker for broker in replicas if broker in living]
        chosen = kept if len(kept) <= factor else sorted(kept, key=lambda broker: held[broker])[:factor]
        _fill(chosen, factor, living, held)
        plan[partition] = _with_a_leader(chosen, preferred)
    return plan


def spread(current: Mapping[TopicPartition, Sequence[BrokerId]], brokers: Sequence[BrokerId]) -> Plan:
    """The same number of replicas for each partition, on these brokers alone, as even as few moves make it.

    A replica moves from a broker that is not among them, or from one that has more than its share. Partitions that stay
    as they are, are left out. ValueError if a partition has more replicas than there are brokers.
    """
    targets = sorted(brokers)
    large = next((partition for partition, replicas in current.items() if len(replicas) > len(targets)), None)
    if large is not None:
        count = len(current[large])
        raise ValueError(f"partition {large} has {count} replicas, and they need as many brokers, not {len(targets)}")
    share = -(-sum(map(len, current.values())) // len(targets))
    held = Counter(dict.fromkeys(targets, 0))
    kept: dict[TopicPartition, list[BrokerId]] = {}
    for partition, replicas in sorted(current.items()):
        kept[partition] = []
        for broker in replicas:
            if broker in targets and held[broker] < share:
                kept[partition].append(broker)
                held[broker] += 1
    changing = {partition for partition, replicas in current.items() if len(kept[partition]) < len(replicas)}
    preferred = Counter(replicas[0] for partition, replicas in current.items() if partition not in changing)
    plan: Plan = {}
    for partition in sorted(changing):
        _fill(kept[partition], len(current[partition]), targets, held)
        plan[partition] = _with_a_leader(kept[partition], preferred)
    return plan


def _fill(chosen: list[BrokerId], factor: int, brokers: Sequence[BrokerId], held: Counter[BrokerId]) -> None:
    """Add brokers with the fewest replicas until there are so many."""
    while len(chosen) < factor:
        others = (broker for broker in brokers if broker not in chosen)
        chosen.append(min(others, key=lambda broker: held[broker]))
        held[chosen[-1]] += 1


def _with_a_leader(chosen: Sequence[BrokerId], preferred: Counter[BrokerId]) -> tuple[BrokerId, ...]:
    """The broker that is preferred by the fewest comes first."""
    first = min(chosen, key=lambda broker: (preferred[broker], chosen.index(broker)))
    preferred[first] += 1
    return (first, *(broker for broker in chosen if broker != first))
