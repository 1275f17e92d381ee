"""Kafka's Java producer, consumer and admin client, with nothing of ours in the client."""

from __future__ import annotations

from typing import Any

from cases import Case, played_by
from driver_shell import Java3, Java4
from scene import Scene
from suite import CASES


@played_by(CASES, Java3, Java4)
def test_java_producers(case: Case, scene: Scene[Any]) -> None:
    case.play(scene)
