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
        while len(chosen) < factor:
            chosen.append(min((one for one in living if one not in chosen), key=lambda broker: held[broker]))
            held[chosen[-1]] += 1
        first = min(chosen, key=lambda broker: (preferred[broker], chosen.index(broker)))
        preferred[first] += 1
        plan[partition] = (first, *(broker for broker in chosen if broker != first))
    return plan
