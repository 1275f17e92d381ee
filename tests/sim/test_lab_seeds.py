"""Seeds that were of use once, and a hundred more."""

from __future__ import annotations

import pytest

from tests.sim.mutations import CAUGHT
from tidelog.lab.search import run

FOUND = (1239, 1669, 2052, 2755, 2989, 5297, 5511, 8474, 20177, 30191, 40659)
"""Those that found something, as docs/SIMULATOR.md tells."""

SHOWING = sorted({seed for seed, _ in CAUGHT.values()} - {*range(8), *FOUND})
"""The seeds that show mutations: without one they must show nothing."""

FIRST, SEEDS, QUICK, AT_A_TIME = 10_000, 100, 10, 5
"""Always the same numbers, so that a commit that passes here passes everywhere. They are other runs after each change
to the code; `make search` takes any others. `make test` runs the first of them."""


def _check(seed: int) -> None:
    outcome = run(seed)
    if outcome.broken is not None:
        pytest.fail(f"{outcome.broken}: {outcome.what}\nagain: tidelog lab sim --seed {seed}", pytrace=False)


@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in (*range(4, 8), *FOUND))]
)
def test_a_recorded_seed(seed: int) -> None:
    _check(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", SHOWING)
def test_a_seed_that_shows_a_mutation(seed: int) -> None:
    _check(seed)


def _hundred() -> list[object]:
    return [
        pytest.param(first, marks=() if first < FIRST + QUICK else pytest.mark.long)
        for first in range(FIRST, FIRST + SEEDS, AT_A_TIME)
    ]


@pytest.mark.parametrize("first", _hundred())
def test_a_hundred_more(first: int) -> None:
    """Whatever they find is news: the seed is in the message. Told again without luck it goes to test_lab_findings."""
    for seed in range(first, first + AT_A_TIME):
        _check(seed)
