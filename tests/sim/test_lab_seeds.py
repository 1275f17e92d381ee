"""Seeds that were of use once, and a hundred that nobody has seen before."""

from __future__ import annotations

import os
import secrets
import zlib

import pytest

from tests.sim.mutations import CAUGHT
from tidelog.lab.search import run

FOUND = (1239, 1669, 2052, 2755, 2989, 30191, 40659)
"""Those that found something, as docs/SIMULATOR.md tells."""

RECORDED = sorted({*range(8), *FOUND, *(seed for seed, _ in CAUGHT.values())})
"""The seeds that show mutations are among them: without one they must show nothing."""

_FRESH = 100
_AT_A_TIME = 5


def _first_fresh() -> int:
    """Another range in each run of the tests, and the same for all workers of one."""
    run_id = os.environ.get("PYTEST_XDIST_TESTRUNUID") or secrets.token_hex(8)
    return 10_000 + zlib.crc32(run_id.encode()) // _FRESH * _FRESH


FIRST_FRESH = _first_fresh()


def _check(seed: int) -> None:
    outcome = run(seed)
    if outcome.broken is not None:
        pytest.fail(f"{outcome.broken}: {outcome.what}\nagain: tidelog lab sim --seed {seed}", pytrace=False)


@pytest.mark.parametrize("seed", RECORDED)
def test_a_recorded_seed(seed: int) -> None:
    _check(seed)


@pytest.mark.parametrize("part", range(_FRESH // _AT_A_TIME))
def test_fresh_seeds(part: int) -> None:
    """Whatever they find is news: the seed is in the message. Told again without luck it goes to test_lab_findings."""
    for seed in range(FIRST_FRESH + part * _AT_A_TIME, FIRST_FRESH + (part + 1) * _AT_A_TIME):
        _check(seed)
