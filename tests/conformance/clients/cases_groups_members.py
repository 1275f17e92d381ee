"""Cases for several members of a consumer group: who has what, and what happens when they come and go."""

from __future__ import annotations

import time
from contextlib import ExitStack

from cases import Table
from cases_groups import parts_of, spread
from driver import ClientError
from group_driver import (
    COOPERATIVE,
    HEARTBEAT_MS,
    INCONSISTENT_GROUP_PROTOCOL,
    RANGE,
    ROUND_ROBIN,
    STICKY,
    GroupDriver,
    Joining,
    Member,
    Parts,
)
from group_kafka_python import KafkaPythonGroups
from scene import Scene, eventually
from targets import GROUPS

TABLE = Table(needs=GROUPS)
_SECTION = "Rebalancing"
_CRASH_DEADLINE_S = 25.0
"""The session timeout, and the time for the group to notice."""
_MANY_HEARTBEATS_S = 5 * HEARTBEAT_MS / 1000


def wait_until_shared(members: list[Member], parts: Parts, sizes: list[int]) -> None:
    """Until the members have all parts between them, none of them twice, in shares of these sizes."""

    def is_shared() -> bool:
        for member in members:
            if member.error is not None:
                raise member.error
        shares = [member.share() for member in members]
        return sorted(map(len, shares)) == sorted(sizes) and frozenset().union(*shares) == parts

    eventually(is_shared)


@TABLE.case(_SECTION, "two members share the partitions, and read every record once between them")
def two_members(scene: Scene[GroupDriver]) -> None:
    topic = scene.topic(partitions=4)
    joining = Joining(scene.name(), (topic,))
    with scene.client.join(joining) as one, scene.client.join(joining) as two:
        wait_until_shared([one, two], parts_of(topic, 4), [2, 2])
        scene.feed(topic, spread(40, 4))
        eventually(lambda: len(one.read) + len(two.read) >= 40)
        assert sorted(one.values() + two.values(), key=repr) == sorted(
            (record.value for record in spread(40, 4)), key=repr
        )
        assert {(record.topic, record.partition) for record in one.read} == one.share()


@TABLE.case(_SECTION, "a member leaves: the other has all, and goes on where the first had committed")
def member_leaves(scene: Scene[GroupDriver]) -> None:
    topic = scene.topic(partitions=4)
    joining = Joining(scene.name(), (topic,))
    with scene.client.join(joining) as stays, scene.client.join(joining) as leaves:
        wait_until_shared([stays, leaves], parts_of(topic, 4), [2, 2])
        scene.feed(topic, spread(40, 4))
        stays.wait_for_records(20)
        leaves.wait_for_records(20)
        stays.commit()
        leaves.commit()
        leaves.leave()
        stays.wait_for_share(parts_of(topic, 4))
        scene.feed(topic, spread(8, 4, "later"))
        read = stays.wait_for_records(28)
    assert sorted(record.value or b"" for record in read[20:]) == sorted(
        record.value or b"" for record in spread(8, 4, "later")
    )


@TABLE.case(_SECTION, "a member crashes: after its session timeout the other has all")
def member_crashes(scene: Scene[GroupDriver]) -> None:
    topic = scene.topic(partitions=2)
    joining = Joining(scene.name(), (topic,), session_ms=6000)
    with scene.client.join(joining) as stays, scene.client.doomed(joining) as crashes:
        crashes.wait_for_share()
        stays.wait_for(lambda: len(stays.share()) == 1, "shares with one that will crash")
        crashes.crash()
        stays.wait_for_share(parts_of(topic, 2), _CRASH_DEADLINE_S)


@TABLE.case(_SECTION, "a member that does not poll (max.poll.interval.ms) loses its partitions, and comes back")
def member_does_not_poll(scene: Scene[GroupDriver]) -> None:
    topic = scene.topic(partitions=2)
    limit_ms = scene.client.least_poll_interval_ms
    joining = Joining(scene.name(), (topic,))
    idle_joining = Joining(joining.group, (topic,), session_ms=6000, poll_interval_ms=limit_ms)
    with scene.client.join(joining) as stays, scene.client.join(idle_joining) as idles:
        wait_until_shared([stays, idles], parts_of(topic, 2), [1, 1])
        with idles.held():
            stays.wait_for_share(parts_of(topic, 2), _CRASH_DEADLINE_S)


@TABLE.case(_SECTION, "a static member restarts: it has the same partitions, and nobody rebalances")
def static_member(scene: Scene[GroupDriver]) -> None:
    topic = scene.topic(partitions=4)
    group = scene.name()
    first, second = (Joining(group, (topic,), instance_id=name) for name in ("first", "second"))
    with scene.client.join(first) as stays:
        with scene.client.join(second) as restarts:
            wait_until_shared([stays, restarts], parts_of(topic, 4), [2, 2])
            had = restarts.share()
            revoked = list(stays.revoked)
        with scene.client.join(second) as restarts:
            restarts.wait_for_share(had)
            scene.feed(topic, spread(8, 4))
            restarts.wait_for_records(4)
            stays.wait_for_records(4)
            assert stays.revoked == revoked
            assert stays.share() == parts_of(topic, 4) - had


def _grow(scene: Scene[GroupDriver], strategy: str, sizes: list[list[int]]) -> list[list[Parts]]:
    """Members join one after the other; the share of each after each join."""
    topics = (scene.topic(partitions=3), scene.topic(partitions=3))
    parts = parts_of(topics[0], 3) | parts_of(topics[1], 3)
    joining = Joining(scene.name(), topics, strategy=strategy)
    shares = []
    with ExitStack() as members:
        joined: list[Member] = []
        for expected in sizes:
            joined.append(members.enter_context(scene.client.join(joining)))
            wait_until_shared(joined, parts, expected)
            shares.append([member.share() for member in joined])
    return shares


@TABLE.case(_SECTION, "range: neighbours of each topic to the same member")
def range_strategy(scene: Scene[GroupDriver]) -> None:
    *_, shares = _grow(scene, RANGE, [[6], [4, 2]])
    numbers = sorted(sorted(number for _, number in share) for share in shares)
    assert numbers == [[0, 0, 1, 1], [2, 2]]


@TABLE.case(_SECTION, "round robin: all topics' partitions in turn")
def roundrobin_strategy(scene: Scene[GroupDriver]) -> None:
    *_, shares = _grow(scene, ROUND_ROBIN, [[6], [3, 3]])
    numbers = sorted(sorted(number for _, number in share) for share in shares)
    assert numbers == [[0, 1, 2], [0, 1, 2]]
    first, second = (min(topic for topic, _ in share) for share in shares)
    assert first == second, "each has partitions of both topics"


@TABLE.case(_SECTION, "sticky: balanced, and a member keeps what it need not give")
def sticky_strategy(scene: Scene[GroupDriver]) -> None:
    _, two, three = _grow(scene, STICKY, [[6], [3, 3], [2, 2, 2]])
    assert all(now <= before for before, now in zip(two, three, strict=False))


@TABLE.case(_SECTION, "cooperative sticky: balanced, and only what moves is revoked")
def cooperative_strategy(scene: Scene[GroupDriver]) -> None:
    _, two, three = _grow(scene, COOPERATIVE, [[6], [3, 3], [2, 2, 2]])
    assert all(now <= before for before, now in zip(two, three, strict=False))


@TABLE.case(_SECTION, "cooperative sticky: partitions that do not move are read on while the rebalance lasts")
def cooperative_flow(scene: Scene[GroupDriver]) -> None:
    """A member that does not poll keeps the group in PreparingRebalance for as long as the case wants."""
    topic = scene.topic(partitions=6)
    joining = Joining(scene.name(), (topic,), strategy=COOPERATIVE)
    slow_client = KafkaPythonGroups()
    slow_client.bootstrap = scene.bootstrap
    with scene.client.join(joining) as reads, slow_client.join(joining) as slow:
        wait_until_shared([reads, slow], parts_of(topic, 6), [3, 3])
        had, revoked_before = reads.share(), len(reads.revoked)
        with ExitStack() as held, scene.client.join(joining) as joins:
            held.enter_context(slow.held())
            eventually(lambda: slow_client.describe_group(joining.group).state == "PreparingRebalance")
            rounds, until = 0, time.monotonic() + _MANY_HEARTBEATS_S
            while time.monotonic() < until:
                rounds += 1
                scene.feed(topic, spread(12, 6, f"round-{rounds}"))
                reads.wait_for_records(6 * rounds)
            assert slow_client.describe_group(joining.group).state == "PreparingRebalance"
            assert {(record.topic, record.partition) for record in reads.read} == had
            assert len(reads.revoked) == revoked_before
            held.close()
            wait_until_shared([reads, slow, joins], parts_of(topic, 6), [2, 2, 2])
            assert reads.share() < had
            assert frozenset().union(*reads.revoked[revoked_before:]) == had - reads.share()


@TABLE.case(_SECTION, "a member that has no assignor in common with the others is refused")
def inconsistent_assignors(scene: Scene[GroupDriver]) -> None:
    topic = scene.topic(partitions=2)
    group = scene.name()
    with scene.client.join(Joining(group, (topic,), strategy=RANGE)) as member:
        member.wait_for_share(parts_of(topic, 2))
        stranger = scene.client.join(Joining(group, (topic,), strategy=ROUND_ROBIN))
        try:
            eventually(lambda: stranger.error is not None)
        finally:
            stranger.leave()
        assert isinstance(stranger.error, ClientError)
        assert stranger.error.code == INCONSISTENT_GROUP_PROTOCOL
        assert member.share() == parts_of(topic, 2)
