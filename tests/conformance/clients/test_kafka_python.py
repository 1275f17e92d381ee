"""kafka-python, with nothing of ours in the client."""

from __future__ import annotations

from typing import Any

from cases import Case, played_by
from driver_kafka_python import KafkaPython
from scene import Scene
from suite import CASES


@played_by(CASES, KafkaPython)
def test_kafka_python(case: Case, scene: Scene[Any]) -> None:
    case.play(scene)
