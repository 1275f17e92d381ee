"""kafkajs, with nothing of ours in the client."""

from __future__ import annotations

from cases import Case, played_by
from group_kafkajs import KafkaJs, KafkaJsAlone
from scene import Scene
from suite import GROUP_CASES, KAFKAJS_CASES


@played_by(GROUP_CASES, KafkaJs)
def test_kafkajs(case: Case, scene: Scene[KafkaJs]) -> None:
    case.play(scene)


@played_by(KAFKAJS_CASES, KafkaJsAlone)
def test_kafkajs_alone(case: Case, scene: Scene[KafkaJs]) -> None:
    case.play(scene)
