"""aiokafka, with nothing of ours in the client."""

from __future__ import annotations

from typing import Any

from cases import Case, played_by
from driver_aiokafka import AioKafka
from scene import Scene
from suite import CASES


@played_by(CASES, AioKafka)
def test_aiokafka(case: Case, scene: Scene[Any]) -> None:
    case.play(scene)
