"""kaskade, with nothing of ours in it."""

from __future__ import annotations

import pytest
from cases import Case, played_by
from driver_kaskade import Kaskade
from scene import Scene
from suite import KASKADE_CASES

pytestmark = pytest.mark.minutes


@played_by(KASKADE_CASES, Kaskade)
def test_kaskade(case: Case, scene: Scene[Kaskade]) -> None:
    case.play(scene)
