"""Cases for groups whose members are different clients: they agree only on the protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import ClassVar

from cases import Table
from cases_groups import parts_of, spread
from driver import Driver
from group_aiokafka import AioKafkaGroups
from group_confluent import ConfluentGroups
from group_driver import COOPERATIVE, RANGE, ROUND_ROBIN, GroupDriver, Joining, Member
from group_java import ConsoleMember, JavaGroups
from group_kafka_python import KafkaPythonGroups
from group_kcat import KcatGroups
from scene import Scene, eventually
from targets import GROUPS

from peers import home

TABLE = Table(needs=GROUPS)
_SECTION = "Groups of different clients"
_RECORDS = 120


class Together(Driver):
    """All clients that can be members, in one group."""

    name: ClassVar[str] = "together"
    lacks: ClassVar[Mapping[str, str]] = {}

    def version(self) -> str:
        return "as above"

    def members(self, joining: Joining, clients: Sequence[type[GroupDriver]]) -> list[Member]:
        joined = []
        for kind in clients:
            client = kind()
            client.bootstrap = self.bootstrap
            joined.append(client.join(joining))
        return joined


def _every_record_once(scene: Scene[Together], joining: Joining, members: Sequence[Member]) -> None:
    """The members have all partitions between them, and so each record is read by one of them."""
    (topic,) = joining.topics
    partitions = len(scene.leaders(topic))
    describing = ConfluentGroups()
    describing.bootstrap = scene.bootstrap

    def is_stable() -> bool:
        group = describing.describe_group(joining.group)
        shares = [member.parts for member in group.members]
        return (
            group.state == "Stable"
            and len(shares) == len(members)
            and min(map(len, shares)) > 0
            and frozenset().union(*shares) == parts_of(topic, partitions)
        )

    with ExitStack() as left:
        for member in members:
            left.enter_context(member)
        eventually(is_stable)
        records = spread(_RECORDS, partitions)
        scene.feed(topic, records)
        eventually(lambda: sum(len(member.read) for member in members) >= _RECORDS)
        read = [value or b"" for member in members for value in member.values()]
        assert sorted(read) == sorted(record.value or b"" for record in records)
        assert all(member.read for member in members)


_PYTHON = (ConfluentGroups, AioKafkaGroups, KafkaPythonGroups, KcatGroups)


@TABLE.case(_SECTION, "range: librdkafka, kcat, aiokafka, kafka-python and Java's console consumer")
def mixed_range(scene: Scene[Together]) -> None:
    joining = Joining(scene.name(), (scene.topic(partitions=10),), strategy=RANGE)
    members = scene.client.members(joining, _PYTHON)
    members.append(ConsoleMember(home.KAFKA_KRAFT, scene.bootstrap, joining))
    _every_record_once(scene, joining, members)


@TABLE.case(_SECTION, "round robin: Java 3.9's console consumer leads librdkafka, kcat, aiokafka and kafka-python")
def mixed_round_robin(scene: Scene[Together]) -> None:
    joining = Joining(scene.name(), (scene.topic(partitions=10),), strategy=ROUND_ROBIN)
    console = ConsoleMember(home.KAFKA_ZOOKEEPER, scene.bootstrap, joining)
    describing = ConfluentGroups()
    describing.bootstrap = scene.bootstrap
    eventually(lambda: describing.describe_group(joining.group).state == "Stable")
    _every_record_once(scene, joining, [console, *scene.client.members(joining, _PYTHON)])


@TABLE.case(_SECTION, "cooperative sticky: librdkafka, kcat, kafka-python and Java")
def mixed_cooperative(scene: Scene[Together]) -> None:
    joining = Joining(scene.name(), (scene.topic(partitions=8),), strategy=COOPERATIVE)
    clients = (JavaGroups, ConfluentGroups, KafkaPythonGroups, KcatGroups)
    _every_record_once(scene, joining, scene.client.members(joining, clients))
