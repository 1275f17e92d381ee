"""confluent-kafka (librdkafka), with nothing of ours in the client."""

from __future__ import annotations

from typing import Any

from cases import Case, played_by
from driver_confluent import Confluent
from scene import Scene
from suite import CASES


@played_by(CASES, Confluent)
def test_confluent(case: Case, scene: Scene[Any]) -> None:
    case.play(scene)
