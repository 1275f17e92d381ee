"""The tools of Kafka's bin directory, of two versions, with nothing of ours in them."""

from __future__ import annotations

from cases import Case, played_by
from driver_shell import Tools, Tools3, Tools4
from scene import Scene
from suite import TOOL_CASES


@played_by(TOOL_CASES, Tools3, Tools4)
def test_java_tools(case: Case, scene: Scene[Tools]) -> None:
    case.play(scene)
