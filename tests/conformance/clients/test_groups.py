"""Subscribing consumers of every client, with nothing of ours in them."""

from __future__ import annotations

from cases import Case, played_by
from group_aiokafka import AioKafkaGroups
from group_confluent import ConfluentGroups
from group_driver import GroupDriver
from group_kafka_python import KafkaPythonGroups
from group_kcat import KcatGroups
from scene import Scene
from suite import GROUP_CASES


@played_by(GROUP_CASES, KcatGroups, ConfluentGroups, KafkaPythonGroups, AioKafkaGroups)
def test_groups(case: Case, scene: Scene[GroupDriver]) -> None:
    case.play(scene)
