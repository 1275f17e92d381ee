"""The ambushes of disks, power and clients bite: each leaves what it is after in the trace, and no rule breaks."""

from __future__ import annotations

import pytest

from tidelog.lab.ambushes import AMBUSHES
from tidelog.lab.plans import Plan
from tidelog.lab.search import run

pytestmark = pytest.mark.long

_SEEDS = range(4)
EFFECTS = {
    "a failed sync": ["a sync failed", "lost bytes"],
    "a stop on a failing disk": ["stopped", "lost bytes"],
    "all replicas end": ["lost bytes", "nobody leads"],
    "a power loss at a take-over": ["led by one that lost power"],
    "a term in between": ["led in between"],
    "bad group records": ["bad records"],
    "refused first": ["large enough again"],
}
"""What has to be seen of each of them, when nothing else goes wrong."""


@pytest.mark.parametrize("name", EFFECTS)
def test_an_ambush_has_its_effects(name: str) -> None:
    wanted = [f"effect {name} {effect} " for effect in EFFECTS[name]]
    plan = Plan(records=30, longest_rest_s=1.0)._replace(**AMBUSHES[name].plan)._replace(saboteurs=(), ambush=name)
    for seed in _SEEDS:
        outcome = run(seed, plan)
        assert outcome.broken is None, f"{outcome.broken}: {outcome.what}"
        texts = [event.text for event in outcome.trace]
        if all(any(text.startswith(effect) for text in texts) for effect in wanted):
            return
    pytest.fail(f"{wanted} were not seen in seeds {_SEEDS}")
