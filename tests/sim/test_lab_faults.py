"""Every fault bites: run alone it does what it says, and power is lost only where the fault budget allows it."""

from __future__ import annotations

import pytest

from tidelog.lab.broker import LabBroker
from tidelog.lab.faults import ENDS, POWER, TROUBLE
from tidelog.lab.power import PowerLosses
from tidelog.lab.search import Plan, plan_of, run

_SEEDS = range(4)

EFFECTS = {
    "kill": "down",
    "stop": "down",
    "kill cut off": "down",
    "back to back": "down",
    "burst": "down",
    "slow heirs": "down",
    "frozen heir": "down",
    "all at once": "down",
    "die in a write": "down",
    "controller": "down",
    "roll": "again",
    "full disk": "offline",
    "failing disk": "offline",
    "power loss": "lost bytes",
    "power loss of a newcomer": "lost bytes",
    "freeze": "without session",
    "cut": "out of sync",
    "cut one": "out of sync",
    "slow": "behind",
    "session": "without session",
    "flapping": "without session",
    "store": "without session",
    "reset": "reset",
    "clock": "off by",
}
"""What has to be seen of each of them, when nothing else goes wrong."""


def _texts(seed: int, *faults: str) -> list[str]:
    outcome = run(seed, Plan((faults,), records=15, longest_rest_s=1.0))
    assert outcome.broken is None, f"{outcome.broken}: {outcome.what}"
    return [event.text for event in outcome.trace]


def test_all_are_looked_at() -> None:
    assert set(EFFECTS) == {*ENDS, *TROUBLE, *POWER}


@pytest.mark.parametrize("fault", [fault for fault in EFFECTS if fault != "reset"])
def test_a_fault_has_an_effect(fault: str) -> None:
    """Not at every time, but soon."""
    wanted = f"effect {fault} {EFFECTS[fault]} "
    found: list[str] = []
    for seed in _SEEDS:
        found += [text.removeprefix(wanted) for text in _texts(seed, fault) if text.startswith(wanted)]
        if any(not text.startswith("0 ") for text in found):
            return
    pytest.fail(f"{wanted!r} was not seen in seeds {_SEEDS}: {found}")


def test_a_reset_tears_connections_that_come_back() -> None:
    texts = _texts(1, "reset")
    resets = [(number, text.split()[1:]) for number, text in enumerate(texts) if text.startswith("reset ")]
    again = [
        ends
        for number, ends in resets
        for text in texts[number:]
        if text.startswith("connect ") and all(f"{end}:" in text for end in ends)
    ]
    assert again


def test_clocks_differ_and_drift() -> None:
    texts = _texts(0, "clock")
    offsets = [int(text.split()[4]) for text in texts if text.startswith("effect clock off by")]
    assert len(set(offsets)) > 1
    assert max(map(abs, offsets)) > 60_000


@pytest.mark.parametrize("seed", range(3))
def test_power_is_lost_within_the_budget(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never by the last ISR member, and never while it is open who else may have lost something."""
    losses: list[int] = []
    unsettled: list[int] = []
    within, lose = PowerLosses._without_power, LabBroker.lose_power

    async def one_at_a_time(self: PowerLosses, number: int) -> None:
        assert not unsettled
        unsettled.append(number)
        for index in self._partitions:
            others = [other for other in self._cluster.stored_isr(index) if other != number]
            assert any(self._cluster.is_up(other) for other in others)
        await within(self, number)
        unsettled.remove(number)

    def noted(self: LabBroker) -> None:
        losses.append(self.broker_id)
        lose(self)

    monkeypatch.setattr(PowerLosses, "_without_power", one_at_a_time)
    monkeypatch.setattr(LabBroker, "lose_power", noted)
    _texts(seed, "power loss", "power loss of a newcomer", "kill")
    assert losses


def test_a_hundred_seeds_know_every_fault_and_every_noise() -> None:
    plans = [plan_of(seed) for seed in range(100)]
    known = {fault for plan in plans for faults in plan.saboteurs for fault in faults}
    assert known == {*ENDS, *TROUBLE, *POWER}
    for noise in ("careless", "strays", "topics", "moves"):
        assert {getattr(plan, noise) for plan in plans} == {False, True}
    alone = [plan for plan in plans if "power loss" in plan.saboteurs[0]]
    assert alone
    assert all(len(plan.saboteurs) == 1 for plan in alone)
