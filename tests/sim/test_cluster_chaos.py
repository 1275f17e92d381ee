"""Three brokers under a saboteur, one kind of trouble at a time: what is always true is true.

The search of tidelog.lab mixes all of it; here each kind is certain to be met.
"""

from __future__ import annotations

import pytest

from tidelog.lab.faults import ENDS, POWER, TROUBLE
from tidelog.lab.search import Plan, run


def tell(seed: int, plan: Plan) -> str:
    """The digest of the run, with all that was promised found kept."""
    outcome = run(seed, plan)
    assert outcome.broken is None, f"{outcome.broken}: {outcome.what}"
    return outcome.digest


@pytest.mark.parametrize("seed", range(4))
def test_acknowledged_records_are_on_every_replica_exactly_once(seed: int) -> None:
    tell(seed, Plan())


@pytest.mark.parametrize("seed", range(100, 103))
def test_with_diverging_replicas(seed: int) -> None:
    tell(seed, Plan(careless=True))


@pytest.mark.parametrize("seed", range(103, 105))
def test_with_peers_that_are_asked_where_logs_part(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.broker.fetcher._TELLS_DIVERGENCE", 99)
    tell(seed, Plan(careless=True))


@pytest.mark.parametrize("seed", range(200, 203))
def test_with_two_faults_at_a_time(seed: int) -> None:
    tell(seed, Plan((ENDS, TROUBLE), careless=True))


@pytest.mark.parametrize("seed", range(300, 302))
def test_a_power_loss_of_one_broker_takes_nothing(seed: int) -> None:
    tell(seed, Plan((POWER,)))


def test_the_same_seed_is_the_same_run() -> None:
    assert tell(3, Plan(records=15, careless=True)) == tell(3, Plan(records=15, careless=True))
