"""Ambushes: sequences of faults, each laid for one way to lose data that single faults meet too seldom.

A plan has one ambush at most. Whoever lays it does so again and again, beside the other saboteurs of the plan. What an
ambush shows is checked by the same rules as everything else; it knows no rule and no mutation.
"""

from __future__ import annotations

import random

from tidelog.lab.ambushes import clients, control, cuts, directories, disks, fetching, store, terms, topics
from tidelog.lab.ambushes.scene import Ambush, Scene

AMBUSHES: dict[str, Ambush] = {
    **clients.AMBUSHES,
    **disks.AMBUSHES,
    **cuts.AMBUSHES,
    **directories.AMBUSHES,
    **fetching.AMBUSHES,
    **control.AMBUSHES,
    **store.AMBUSHES,
    **topics.AMBUSHES,
    "a power loss at a take-over": disks.TAKEN_OVER,
    "a term in between": terms.LED_IN_BETWEEN,
    "a lone controller": control.LONE_CONTROLLER,
    "a leader of yesterday": control.LEADER_OF_YESTERDAY,
}
"""By the names that plans and traces use."""

__all__ = ["AMBUSHES", "Ambush", "Scene", "ambush_of"]

_SHARE = 0.025
"""Of all seeds, for each ambush."""


def ambush_of(chances: dict[str, random.Random]) -> str:
    """The one that a seed lays, or "". Each ambush has a chance of its own, so that a new one changes few seeds."""
    return next((name for name in AMBUSHES if chances[name].random() < _SHARE), "")
