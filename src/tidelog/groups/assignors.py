"""Who reads which partition: the assignors of the classic consumer protocol (S8.7). Pure.

The member that leads its group has everybody's subscription and deals out the partitions. Members of other clients
may lead at another time, so the same input gives what Kafka's own assignors give: to the partition for range and round
robin, in balance and in what stays where it is for the sticky ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from tidelog.types import TopicPartition

NO_GENERATION = -1


class Subscription(NamedTuple):
    """What a member wants, and what it held in the generation it knows of."""

    topics: Sequence[str]
    owned: Sequence[TopicPartition] = ()
    generation: int = NO_GENERATION
    instance_id: str | None = None


Subscriptions: TypeAlias = Mapping[str, Subscription]
"""By member id."""

Assigned: TypeAlias = dict[str, list[TopicPartition]]
"""The share of each member, by member id, sorted; members without a share have an empty one."""


class Assignor(NamedTuple):
    """An assignor by the name that members agree on.

    Members of a cooperative one keep what they hold while they join, and give up only what goes to others.
    """

    name: str
    assign: Callable[[Subscriptions, Mapping[str, int]], Assigned]
    is_cooperative: bool = False


# Range and round robin


def assign_range(members: Subscriptions, partition_counts: Mapping[str, int]) -> Assigned:
    """Of each topic a run of neighbours; the first members get one more where it does not divide."""
    assigned: Assigned = {member: [] for member in members}
    for topic in _topics(members, partition_counts):
        readers = [member for member in _in_order(members) if topic in members[member].topics]
        share, longer = divmod(partition_counts[topic], len(readers))
        start = 0
        for place, member in enumerate(readers):
            end = start + share + (place < longer)
            assigned[member] += [TopicPartition(topic, number) for number in range(start, end)]
            start = end
    return assigned


def assign_round_robin(members: Subscriptions, partition_counts: Mapping[str, int]) -> Assigned:
    """All partitions of all topics in turn; a member that does not read the topic is passed over."""
    assigned: Assigned = {member: [] for member in members}
    turn = deque(_in_order(members))
    for partition in _partitions(members, partition_counts):
        while partition.topic not in members[turn[0]].topics:
            turn.rotate(-1)
        assigned[turn[0]].append(partition)
        turn.rotate(-1)
    return assigned


# Sticky


def assign_sticky(members: Subscriptions, partition_counts: Mapping[str, int]) -> Assigned:
    """As even as subscriptions allow, and of that what moves the fewest partitions.

    Everybody keeps what it has, the rest goes to those with the least, and then those with the least take from those
    with the most, be it through others between them that read the topics of both.
    """
    partitions = _partitions(members, partition_counts)
    owners = _owners(members, partitions)
    topics = {member: frozenset(members[member].topics) for member in sorted(members)}
    held: Assigned = {member: [] for member in topics}
    for partition, owner in owners.items():
        held[owner].append(partition)
    for partition in partitions:
        if partition not in owners:
            readers = (member for member in held if partition.topic in topics[member])
            held[min(readers, key=lambda member: len(held[member]))].append(partition)
    while (path := _uneven_path(held, topics)) is not None:
        for taker, giver in pairwise(path):
            _take(held, owners, taker, giver, topics[taker])
    return {member: sorted(held[member]) for member in members}


def assign_cooperative_sticky(members: Subscriptions, partition_counts: Mapping[str, int]) -> Assigned:
    """Like sticky, but what somebody else still holds is given to nobody: its holder gives it up and all join again."""
    assigned = assign_sticky(members, partition_counts)
    given_up = {
        partition
        for member, subscription in members.items()
        for partition in set(subscription.owned).difference(assigned[member])
    }
    return {
        member: [
            partition for partition in partitions if partition in members[member].owned or partition not in given_up
        ]
        for member, partitions in assigned.items()
    }


def _owners(members: Subscriptions, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
    """Who held what still exists and is still wanted: of several the one of the latest generation, of equals nobody."""
    existing = set(partitions)
    claims: dict[TopicPartition, list[tuple[int, str]]] = {}
    for member in sorted(members):
        subscription = members[member]
        for partition in dict.fromkeys(subscription.owned):
            if partition in existing and partition.topic in subscription.topics:
                claims.setdefault(partition, []).append((subscription.generation, member))
    owners: dict[TopicPartition, str] = {}
    for partition, claimed in sorted(claims.items()):
        latest = max(generation for generation, _ in claimed)
        of_latest = [member for generation, member in claimed if generation == latest]
        if len(of_latest) == 1:
            owners[partition] = of_latest[0]
    return owners


def _uneven_path(held: Assigned, topics: Mapping[str, frozenset[str]]) -> list[str] | None:
    """Members of which each can take a partition from the next, and the last has at least two more than the first."""
    most = max((len(partitions) for partitions in held.values()), default=0)
    read_by_giver = {member: {partition.topic for partition in partitions} for member, partitions in held.items()}
    for taker in sorted(held, key=lambda member: len(held[member])):
        if len(held[taker]) + 2 > most:
            return None
        takers = {taker: ""}
        reached = deque([taker])
        while reached:
            by = reached.popleft()
            givers = [giver for giver in held if giver not in takers and topics[by] & read_by_giver[giver]]
            for giver in sorted(givers, key=lambda member: -len(held[member])):
                takers[giver] = by
                if len(held[giver]) >= len(held[taker]) + 2:
                    return _way_back(takers, giver)
                reached.append(giver)
    return None


def _way_back(takers: Mapping[str, str], giver: str) -> list[str]:
    path = [giver]
    while taker := takers[path[-1]]:
        path.append(taker)
    return path[::-1]


def _take(held: Assigned, owners: Mapping[TopicPartition, str], taker: str, giver: str, topics: frozenset[str]) -> None:
    """One partition changes hands: rather one that comes back than a new one, rather a new one than an old one."""
    partition = min(
        (partition for partition in reversed(held[giver]) if partition.topic in topics),
        key=lambda partition: (owners.get(partition) != taker, owners.get(partition) == giver),
    )
    held[giver].remove(partition)
    held[taker].append(partition)


# What they share


def _in_order(members: Subscriptions) -> list[str]:
    """Static members first, by their names, so that a restart with another member id changes nothing."""

    def place(member: str) -> tuple[bool, str]:
        instance_id = members[member].instance_id
        return instance_id is None, member if instance_id is None else instance_id

    return sorted(members, key=place)


def _topics(members: Subscriptions, partition_counts: Mapping[str, int]) -> list[str]:
    """Those that somebody reads and that exist."""
    wanted = {topic for subscription in members.values() for topic in subscription.topics}
    return sorted(topic for topic in wanted if partition_counts.get(topic))


def _partitions(members: Subscriptions, partition_counts: Mapping[str, int]) -> list[TopicPartition]:
    return [
        TopicPartition(topic, number)
        for topic in _topics(members, partition_counts)
        for number in range(partition_counts[topic])
    ]


RANGE = Assignor("range", assign_range)
ROUND_ROBIN = Assignor("roundrobin", assign_round_robin)
STICKY = Assignor("sticky", assign_sticky)
COOPERATIVE_STICKY = Assignor("cooperative-sticky", assign_cooperative_sticky, is_cooperative=True)

ASSIGNORS = {assignor.name: assignor for assignor in (RANGE, ROUND_ROBIN, STICKY, COOPERATIVE_STICKY)}
