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
    """The same number of replicas for each partition, on these brokers alone, and with few moves.

    No broker has more than one replica more than another, neither of a topic nor in all. A replica moves from a broker
    that is not among them, or from one that has more than its share. Partitions that stay as they are, are left out.
    ValueError if a partition has more replicas than there are brokers.
    """
    targets = sorted(brokers)
    large = next((partition for partition, replicas in current.items() if len(replicas) > len(targets)), None)
    if large is not None:
        count = len(current[large])
        raise ValueError(f"partition {large} has {count} replicas, and they need as many brokers, not {len(targets)}")
    held = Counter(dict.fromkeys(targets, 0))
    after = {partition: [one for one in current[partition] if one in held] for partition in sorted(current)}
    held.update(broker for replicas in after.values() for broker in replicas)
    topics: dict[str, list[TopicPartition]] = {}
    for partition, kept in after.items():
        topics.setdefault(partition.topic, []).append(partition)
        _fill(kept, len(current[partition]), targets, held)
    of_topics = {name: _of_each_broker(partitions, after, targets) for name, partitions in topics.items()}
    for of_topic in of_topics.values():
        while move := _uneven(of_topic, held):
            _move(*move, of_topic, after, held)
    is_moving = True
    while is_moving:  # what each topic has over may all be on one broker
        is_moving = False
        for of_topic in of_topics.values():
            while move := _uneven_in_all(of_topic, held):
                _move(*move, of_topic, after, held)
                is_moving = True
    changing = {partition: kept for partition, kept in after.items() if set(kept) != set(current[partition])}
    preferred = Counter(replicas[0] for partition, replicas in current.items() if partition not in changing)
    return {partition: _with_a_leader(kept, preferred) for partition, kept in changing.items()}


Holding = dict[BrokerId, dict[TopicPartition, None]]
"""Which partitions of a topic each broker has, in the order of their numbers at first."""


def _of_each_broker(
    partitions: Sequence[TopicPartition], replicas: Mapping[TopicPartition, Sequence[BrokerId]], brokers: list[BrokerId]
) -> Holding:
    return {
        broker: dict.fromkeys(partition for partition in partitions if broker in replicas[partition])
        for broker in brokers
    }


def _uneven(of_topic: Holding, held: Counter[BrokerId]) -> tuple[BrokerId, BrokerId] | None:
    """The broker with the most partitions of the topic, and the one with the fewest, if that is not even."""
    ranked = sorted(of_topic, key=lambda broker: (len(of_topic[broker]), held[broker], broker))
    first, last = ranked[0], ranked[-1]
    return (last, first) if len(of_topic[last]) - len(of_topic[first]) > 1 else None


def _uneven_in_all(of_topic: Holding, held: Counter[BrokerId]) -> tuple[BrokerId, BrokerId] | None:
    """Two brokers whose shares of all topics come closer, and whose shares of this one change places."""
    pairs = [(more, fewer) for more in of_topic for fewer in of_topic if len(of_topic[more]) > len(of_topic[fewer])]
    best = max(pairs, key=lambda pair: held[pair[0]] - held[pair[1]], default=None)
    return best if best is not None and held[best[0]] - held[best[1]] > 1 else None


def _move(
    source: BrokerId,
    target: BrokerId,
    of_topic: Holding,
    replicas: Mapping[TopicPartition, list[BrokerId]],
    held: Counter[BrokerId],
) -> None:
    partition = next(one for one in of_topic[source] if one not in of_topic[target])
    replicas[partition][replicas[partition].index(source)] = target
    del of_topic[source][partition]
    of_topic[target][partition] = None
    held[source] -= 1
    held[target] += 1


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
