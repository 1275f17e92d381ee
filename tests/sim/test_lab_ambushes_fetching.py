"""The ambushes on fetches bite: each does what it says, and the brokers survive it."""

from __future__ import annotations

import pytest

from tidelog.lab.ambushes.fetching import AMBUSHES
from tidelog.lab.plans import Plan, plan_of
from tidelog.lab.search import run

pytestmark = pytest.mark.long

_SEEDS = range(3)

EFFECTS = {
    "an answer that waits": "followed",
    "between registrations": "alone",
    "a cold leader": "behind",
}
"""What has to be seen of each of them: a deposed leader has copied from the next one, a follower is all that is left,
and a follower reads from a slow device."""


def test_all_are_looked_at() -> None:
    assert set(EFFECTS) == set(AMBUSHES)


@pytest.mark.parametrize("name", list(EFFECTS))
def test_an_ambush_has_an_effect(name: str) -> None:
    plan = Plan()._replace(**{"ambush": name, **AMBUSHES[name].plan, "records": 15})
    wanted = f"effect {name} {EFFECTS[name]} "
    for seed in _SEEDS:
        outcome = run(seed, plan)
        assert outcome.broken is None, f"{outcome.broken}: {outcome.what}"
        if any(event.text.startswith(wanted) for event in outcome.trace):
            return
    pytest.fail(f"{wanted!r} was not seen in seeds {_SEEDS}")


def test_a_follower_between_registrations_loses_power() -> None:
    name = "between registrations"
    texts = [event.text for seed in _SEEDS for event in run(seed, Plan(ambush=name, **AMBUSHES[name].plan)).trace]
    lost = [text.split()[5] for text in texts if text.startswith(f"effect {name} lost bytes")]
    assert any(int(size) > 0 for size in lost)


def test_five_hundred_seeds_lay_each_of_them() -> None:
    laid = [plan_of(seed).ambush for seed in range(500)]
    assert all(laid.count(name) >= 3 for name in AMBUSHES)
