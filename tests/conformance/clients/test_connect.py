"""Kafka Connect, with nothing of ours in it."""

from __future__ import annotations

import pytest
from cases import Case, played_by
from driver_connect import KafkaConnect
from scene import Scene
from suite import CONNECT_CASES

pytestmark = pytest.mark.minutes


@played_by(CONNECT_CASES, KafkaConnect)
def test_connect(case: Case, scene: Scene[KafkaConnect]) -> None:
    case.play(scene)
