"""The tools of Kafka's bin directory that are about several brokers, on three of them."""

from __future__ import annotations

from cases import Case, played_by
from driver_shell import Tools, Tools3, Tools4
from scene import Scene
from suite import CLUSTER_CASES


@played_by(CLUSTER_CASES, Tools3, Tools4)
def test_cluster_tools(case: Case, scene: Scene[Tools]) -> None:
    case.play(scene)
