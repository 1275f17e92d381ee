"""franz-go, with nothing of ours in the client."""

from __future__ import annotations

from typing import Any

from cases import Case, played_by
from cases_franz_go import FranzGoTests
from driver_shell import FranzGo
from scene import Scene
from suite import CASES, FRANZ_GO_CASES


@played_by(CASES, FranzGo)
def test_franz_go(case: Case, scene: Scene[Any]) -> None:
    case.play(scene)


@played_by(FRANZ_GO_CASES, FranzGoTests)
def test_franz_go_tests(case: Case, scene: Scene[FranzGoTests]) -> None:
    case.play(scene)
