"""Every fault bites: run alone it does what it says, and power is lost only where the fault budget allows it."""

from __future__ import annotations

import pytest

from tidelog.lab.budget import PowerBudget
from tidelog.lab.directory_faults import DIRECTORY_FAULTS
from tidelog.lab.faults import BLACKOUT, ENDS, LOSSES, POWER, SLOW_CLIENT, TROUBLE
from tidelog.lab.plans import Plan, plan_of
from tidelog.lab.search import run

_SEEDS = range(4)
_NOISES = (
    *("careless", "strays", "topics", "moves", "static", "flush_each", "elections", "changes", "sides"),
    *("late_bytes", "brief", "cold", "last_reads"),
)

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
    "power loss and kills": "lost bytes",
    BLACKOUT: "lost bytes",
    "freeze": "without session",
    "cut": "out of sync",
    "cut one": "out of sync",
    "slow": "behind",
    "session": "without session",
    "flapping": "without session",
    "store": "without session",
    "reset": "reset",
    "clock": "off by",
    "cut controller": "out of sync",
    "store restarts": "without session",
    "kill a client": "down",
    "freeze a client": "still",
    SLOW_CLIENT: "slow",
    "left out directory": "started without",
    "put back directory": "put back",
    "failed start": "failed",
}
"""What has to be seen of each of them, when nothing else goes wrong."""


def _texts(seed: int, *faults: str) -> list[str]:
    plan = Plan(
        (faults,),
        records=15,
        longest_rest_s=1.0,
        directories=1 if faults[0] not in DIRECTORY_FAULTS else 2,
        beyond="power" if BLACKOUT in faults else "nothing",
    )
    outcome = run(seed, plan)
    assert outcome.broken is None, f"{outcome.broken}: {outcome.what}"
    return [event.text for event in outcome.trace]


def test_all_are_looked_at() -> None:
    assert set(EFFECTS) == {*ENDS, *TROUBLE, *POWER, *DIRECTORY_FAULTS, BLACKOUT, SLOW_CLIENT}


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


def test_power_is_lost_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never by the last member of an ISR, and by the next broker only when the one before is in sync again."""
    losses: list[int] = []
    lose = PowerBudget.lose_power

    def noted(self: PowerBudget, broker: int) -> None:
        for index in range(2):
            state = self._cluster.stored_state(index)
            others = [other for other in state.isr if other != broker]
            assert others or broker not in state.isr
            if losses and losses[-1] != broker:
                assert losses[-1] in state.isr
        losses.append(broker)
        lose(self, broker)

    monkeypatch.setattr(PowerBudget, "lose_power", noted)
    by_seed = []
    for seed in range(3):
        losses.clear()
        _texts(seed, "power loss", "power loss of a newcomer", "power loss and kills", "kill")
        by_seed.append(set(losses))
    assert all(by_seed)
    assert any(len(brokers) > 1 for brokers in by_seed)


def test_a_hundred_seeds_know_every_fault_and_every_noise() -> None:
    plans = [plan_of(seed) for seed in range(100)]
    known = {fault for plan in plans for faults in plan.saboteurs for fault in faults}
    assert known == {*ENDS, *TROUBLE, *POWER, *DIRECTORY_FAULTS, SLOW_CLIENT}
    for noise in _NOISES:
        assert {getattr(plan, noise) for plan in plans} == {False, True}
    assert {plan.directories for plan in plans} == {1, 2}
    assert {plan.beyond for plan in plans} == {"nothing", "power", "unclean"}
    assert {max(plan.filling) > 100_000 for plan in plans} == {False, True}
    dark = [plan for plan in plans if any(set(LOSSES) & set(known) for known in plan.saboteurs)]
    assert {len(plan.saboteurs) for plan in dark} >= {1, 2}, "with and without other trouble"
