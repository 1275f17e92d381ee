"""kcat, with nothing of ours in the client."""

from __future__ import annotations

from typing import Any

from cases import Case, played_by
from driver_kcat import Kcat
from scene import Scene
from suite import CASES


@played_by(CASES, Kcat)
def test_kcat(case: Case, scene: Scene[Any]) -> None:
    case.play(scene)
