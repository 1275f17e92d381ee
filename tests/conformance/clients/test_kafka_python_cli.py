"""kafka-python's command line, with nothing of ours in it."""

from __future__ import annotations

import pytest
from cases import Case, played_by
from driver_kafka_python_cli import KafkaPythonCommands
from scene import Scene
from suite import KAFKA_PYTHON_CLI_CASES

pytestmark = pytest.mark.minutes


@played_by(KAFKA_PYTHON_CLI_CASES, KafkaPythonCommands)
def test_kafka_python_cli(case: Case, scene: Scene[KafkaPythonCommands]) -> None:
    case.play(scene)
