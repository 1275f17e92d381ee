"""The ambushes for the controller, its store and its topics bite: laid where nothing else goes wrong, they do what they
are for."""

from __future__ import annotations

import pytest

from tidelog.lab.ambushes import AMBUSHES
from tidelog.lab.plans import Plan
from tidelog.lab.search import run

pytestmark = pytest.mark.long

_SEEDS = range(8)

EFFECTS = {
    "late requests": ("told late",),
    "restless store": ("without session",),
    "lost directory": ("lost directory", "led by another"),
    "stale directory": ("alone", "put back", "started without", "failed"),
    "a lone controller": ("yields",),
    "a leader of yesterday": ("heard", "not heard"),
    "made anew": ("made anew",),
    "a stop in a cut": ("leads again",),
    "garbled topic": ("garbled", "another controller", "mended"),
    "garbled state": ("garbled", "another controller", "mended"),
}
"""What has to be seen of each of them."""


@pytest.mark.parametrize("name", EFFECTS)
def test_an_ambush_bites(name: str) -> None:
    """Not at every time, but soon; and the cluster survives it."""
    plan = Plan(records=15, longest_rest_s=1.0, ambush=name)._replace(**AMBUSHES[name].plan)
    missing = set(EFFECTS[name])
    for seed in _SEEDS:
        outcome = run(seed, plan)
        assert outcome.broken is None, f"{outcome.broken}: {outcome.what}"
        texts = [event.text for event in outcome.trace]
        missing -= {effect for effect in missing if any(text.startswith(f"effect {name} {effect}") for text in texts)}
        if not missing:
            return
    pytest.fail(f"{missing} of {name!r} were not seen in seeds {_SEEDS}")
