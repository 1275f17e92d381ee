"""Applications of frameworks for streams, with nothing of ours in them."""

from __future__ import annotations

import pytest
from cases import Case, played_by
from driver_frameworks import FastStream, FastStreamConfluent, Framework, QuixStreams
from scene import Scene
from suite import FRAMEWORK_CASES

pytestmark = pytest.mark.minutes


@played_by(FRAMEWORK_CASES, FastStream, FastStreamConfluent, QuixStreams)
def test_frameworks(case: Case, scene: Scene[Framework]) -> None:
    case.play(scene)
