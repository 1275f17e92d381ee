"""Subscribing consumers of every client, with nothing of ours in them."""

from __future__ import annotations

from cases import Case, played_by
from cases_groups_mixed import Together
from group_aiokafka import AioKafkaGroups
from group_confluent import ConfluentGroups
from group_driver import GroupDriver
from group_java import JavaGroups
from group_kafka_python import KafkaPythonGroups
from group_kcat import KcatGroups
from scene import Scene
from suite import GROUP_CASES, JAVA_GROUP_CASES, MIXED_CASES


@played_by(GROUP_CASES, KcatGroups, ConfluentGroups, KafkaPythonGroups, AioKafkaGroups)
def test_groups(case: Case, scene: Scene[GroupDriver]) -> None:
    case.play(scene)


@played_by(JAVA_GROUP_CASES, JavaGroups)
def test_java_groups(case: Case, scene: Scene[GroupDriver]) -> None:
    case.play(scene)


@played_by(MIXED_CASES, Together)
def test_mixed_groups(case: Case, scene: Scene[Together]) -> None:
    case.play(scene)
