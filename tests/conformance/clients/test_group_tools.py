"""The tools of Kafka's bin directory that are members of groups or look after them, of two versions."""

from __future__ import annotations

from cases import Case, played_by
from driver_shell import Tools, Tools3, Tools4
from scene import Scene
from suite import GROUP_TOOL_CASES


@played_by(GROUP_TOOL_CASES, Tools3, Tools4)
def test_group_tools(case: Case, scene: Scene[Tools]) -> None:
    case.play(scene)
