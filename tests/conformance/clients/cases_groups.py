"""Cases for one member of a consumer group: reading, committing, going on where it or another had stopped."""

from __future__ import annotations

from cases import Table
from cases_records import some_records
from driver import Record
from group_driver import RANGE, GroupDriver, Joining, Parts
from scene import Scene, eventually
from targets import GROUPS

TABLE = Table(needs=GROUPS)
OFFSET_SECTION = "Offsets of groups"


def parts_of(topic: str, count: int, first: int = 0) -> Parts:
    return frozenset((topic, number) for number in range(first, first + count))


def spread(count: int, partitions: int, prefix: str = "value") -> list[Record]:
    """Records with distinct values, dealt to the partitions in turn."""
    return [Record(None, f"{prefix}-{i}".encode(), partition=i % partitions) for i in range(count)]


def _values(records: list[Record]) -> list[bytes]:
    return sorted(record.value or b"" for record in records)


@TABLE.case("Consumer groups", "subscribe to several topics: all partitions, every record once, in order")
def group_consume(scene: Scene[GroupDriver]) -> None:
    topics = (scene.topic(partitions=3), scene.topic(partitions=2))
    records = spread(60, 2)
    for topic in topics:
        scene.feed(topic, records)
    with scene.client.join(Joining(scene.name(), topics)) as member:
        member.wait_for_share(parts_of(topics[0], 3) | parts_of(topics[1], 2))
        read = member.wait_for_records(120)
    assert _values([record for record in read if record.topic == topics[1]]) == _values(records)
    for topic, partition in parts_of(topics[0], 2) | parts_of(topics[1], 2):
        offsets = [record.offset for record in read if (record.topic, record.partition) == (topic, partition)]
        assert offsets == list(range(30))


@TABLE.case(OFFSET_SECTION, "commit and wait: what was read is what is committed")
def commit_sync(scene: Scene[GroupDriver]) -> None:
    topic = scene.topic(partitions=2)
    scene.feed(topic, spread(20, 2))
    with scene.client.join(Joining(scene.name(), (topic,))) as member:
        member.wait_for_records(20)
        assert member.committed((topic, 0)) is None
        member.commit()
        assert [member.committed((topic, number)) for number in range(2)] == [10, 10]


@TABLE.case(OFFSET_SECTION, "commit without waiting: the client is told when it is stored")
def commit_async(scene: Scene[GroupDriver]) -> None:
    topic = scene.topic()
    scene.feed(topic, some_records(12))
    with scene.client.join(Joining(scene.name(), (topic,))) as member:
        member.wait_for_records(12)
        member.commit_async()
        assert member.committed((topic, 0)) == 12


@TABLE.case(OFFSET_SECTION, "commit exact offsets, forward and back")
def commit_exact(scene: Scene[GroupDriver]) -> None:
    topic = scene.topic(partitions=2)
    scene.feed(topic, spread(20, 2))
    with scene.client.join(Joining(scene.name(), (topic,))) as member:
        member.wait_for_records(20)
        member.commit({(topic, 0): 7})
        assert [member.committed((topic, number)) for number in range(2)] == [7, None]
        member.commit({(topic, 0): 3, (topic, 1): 9})
        assert [member.committed((topic, number)) for number in range(2)] == [3, 9]


@TABLE.case(OFFSET_SECTION, "the position is after the last record that was read")
def position(scene: Scene[GroupDriver]) -> None:
    topic = scene.topic()
    scene.feed(topic, some_records(12))
    with scene.client.join(Joining(scene.name(), (topic,))) as member:
        member.wait_for_records(12)
        assert member.position((topic, 0)) == 12
        scene.feed(topic, some_records(3))
        member.wait_for_records(15)
        assert member.position((topic, 0)) == 15


@TABLE.case(OFFSET_SECTION, "a restarted member goes on where it had committed")
def resume_from_committed(scene: Scene[GroupDriver]) -> None:
    topic = scene.topic()
    joining = Joining(scene.name(), (topic,))
    scene.feed(topic, spread(10, 1))
    with scene.client.join(joining) as member:
        member.wait_for_records(10)
        member.commit({(topic, 0): 7})
    with scene.client.join(joining) as member:
        assert [record.offset for record in member.wait_for_records(3)] == [7, 8, 9]


@TABLE.case(OFFSET_SECTION, "what was read is committed when a member closes (enable.auto.commit)")
def auto_commit(scene: Scene[GroupDriver]) -> None:
    topic = scene.topic()
    joining = Joining(scene.name(), (topic,), auto_commit=True)
    scene.feed(topic, spread(10, 1))
    with scene.client.join(joining) as member:
        member.wait_for_records(10)
    scene.feed(topic, spread(2, 1))
    with scene.client.join(joining) as member:
        assert [record.offset for record in member.wait_for_records(2)] == [10, 11]


@TABLE.case(OFFSET_SECTION, "nothing committed: from the latest offset (auto.offset.reset)")
def reset_to_latest(scene: Scene[GroupDriver]) -> None:
    topic = scene.topic()
    scene.feed(topic, spread(10, 1))
    with scene.client.join(Joining(scene.name(), (topic,), reset="latest")) as member:
        member.wait_for_share(parts_of(topic, 1))

        def came() -> bool:
            """A member may have its share and not yet know where its end is."""
            scene.feed(topic, spread(1, 1, "new"))
            return len(member.read) > 0

        eventually(came)
        assert member.read[0].offset >= 10


@TABLE.case(OFFSET_SECTION, "nothing committed and no reset allowed (auto.offset.reset=none): an error")
def reset_is_refused(scene: Scene[GroupDriver]) -> None:
    topic = scene.topic()
    scene.feed(topic, spread(10, 1))
    member = scene.client.join(Joining(scene.name(), (topic,), reset="none"))
    eventually(lambda: member.error is not None)
    member.leave()
    assert member.read == []


@TABLE.case(OFFSET_SECTION, "committed before the start of the log: reset to the earliest offset")
def reset_of_lost_offset(scene: Scene[GroupDriver]) -> None:
    topic = scene.topic()
    joining = Joining(scene.name(), (topic,))
    scene.feed(topic, spread(10, 1))
    with scene.client.join(joining) as member:
        member.wait_for_records(10)
        member.commit({(topic, 0): 2})
    scene.delete_records(topic, 6)
    with scene.client.join(joining) as member:
        assert [record.offset for record in member.wait_for_records(4)] == [6, 7, 8, 9]


@TABLE.case("Consumer groups", "pause and resume: other partitions go on")
def pause_and_resume(scene: Scene[GroupDriver]) -> None:
    topic = scene.topic(partitions=2)
    with scene.client.join(Joining(scene.name(), (topic,))) as member:
        member.wait_for_share(parts_of(topic, 2))
        scene.feed(topic, spread(10, 2))
        member.wait_for_records(10)
        member.pause((topic, 0))
        scene.feed(topic, spread(10, 2, "later"))
        read = member.wait_for_records(15)
        assert [record.partition for record in read[10:]] == [1] * 5
        member.resume((topic, 0))
        read = member.wait_for_records(20)
    assert [record.partition for record in read[15:]] == [0] * 5


@TABLE.case("Consumer groups", "a regular expression: a topic that is created later is read too")
def regex_subscription(scene: Scene[GroupDriver]) -> None:
    prefix = scene.name()
    first, second, other = f"{prefix}-a", f"{prefix}-b", scene.topic()
    scene.create([first], 2, {})
    with scene.client.join(Joining(scene.name(), pattern=f"{prefix}-.*")) as member:
        member.wait_for_share(parts_of(first, 2))
        scene.create([second], 1, {})
        member.wait_for_share(parts_of(first, 2) | parts_of(second, 1))
        for topic in (first, second, other):
            scene.feed(topic, spread(5, 1))
        assert {record.topic for record in member.wait_for_records(10)} == {first, second}


@TABLE.case("Consumer groups", "partitions that are added are read too")
def added_partitions(scene: Scene[GroupDriver]) -> None:
    topic = scene.topic()
    with scene.client.join(Joining(scene.name(), (topic,), strategy=RANGE)) as member:
        member.wait_for_share(parts_of(topic, 1))
        scene.add_partitions(topic, 3)
        member.wait_for_share(parts_of(topic, 3))
        scene.feed(topic, spread(6, 3))
        assert {record.partition for record in member.wait_for_records(6)} == {0, 1, 2}
