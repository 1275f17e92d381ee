"""The search: a seed is a run, what holds is found to hold, and what does not is found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.sim.mutations import CAUGHT, Mutation, write_duplicates
from tidelog.cli.main import main
from tidelog.lab.checkers import ALWAYS_TRUE, OnceAndInOrder
from tidelog.lab.faults import ENDS, POWER, TROUBLE
from tidelog.lab.search import plan_of, run

_DIGEST = "from tidelog.lab.search import run; print(run({seed}).digest)"


@pytest.mark.parametrize("seed", range(8))
def test_what_is_always_true(seed: int) -> None:
    outcome = run(seed)
    assert outcome.broken is None, f"{outcome.broken}: {outcome.what}"


@pytest.mark.parametrize("seed", [4, 9])
def test_a_seed_is_a_run_under_every_hash_seed(seed: int) -> None:
    first = run(seed)
    assert run(seed).digest == first.digest
    for hash_seed in ("1", "4711"):
        told = subprocess.run(
            [sys.executable, "-c", _DIGEST.format(seed=seed)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        assert told.stdout.strip() == first.digest


def test_seeds_differ() -> None:
    assert run(0).digest != run(2).digest


def test_a_hundred_seeds_know_every_fault_and_every_noise() -> None:
    plans = [plan_of(seed) for seed in range(100)]
    known = {fault for plan in plans for faults in plan.saboteurs for fault in faults}
    assert known == {*ENDS, *TROUBLE, *POWER}
    for noise in ("careless", "topics", "moves"):
        assert {getattr(plan, noise) for plan in plans} == {False, True}
    alone = [plan for plan in plans if "power loss" in plan.saboteurs[0]]
    assert alone
    assert all(len(plan.saboteurs) == 1 for plan in alone)


@pytest.mark.parametrize("mutation", CAUGHT, ids=lambda mutation: mutation.__name__)
def test_a_rule_turned_off_is_noticed(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    seed, rule = CAUGHT[mutation]
    assert rule in ALWAYS_TRUE
    assert run(seed).broken is None
    mutation(monkeypatch)
    outcome = run(seed)
    assert outcome.broken == rule.name, outcome.what


# The command


def test_the_command_replays_a_seed() -> None:
    result = CliRunner().invoke(main, ["lab", "sim", "--seed", "2"])
    assert result.exit_code == 0, result.output
    assert run(2).digest in result.output


def test_the_command_searches() -> None:
    result = CliRunner().invoke(main, ["lab", "sim", "--seeds", "2-3"])
    assert result.exit_code == 0, result.output
    assert "seeds 2-3: all rules held" in result.output


@pytest.mark.parametrize("asked", [["--seed", "0"], ["--seeds", "0-9"]])
def test_the_command_tells_of_a_failure(asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_duplicates(monkeypatch)
    result = CliRunner().invoke(main, ["lab", "sim", *asked, "--trace", str(tmp_path)])
    assert result.exit_code == 1
    assert f"seed 0 broke a rule: {OnceAndInOrder.name}" in result.output
    trace = (tmp_path / "seed-0.trace").read_text()
    assert trace.splitlines()[-1] in result.output
    assert len(trace.splitlines()) == len(run(0).trace)


@pytest.mark.parametrize("asked", [[], ["--seed", "1", "--seeds", "1-2"], ["--seeds", "7"], ["--seeds", "3-1"]])
def test_the_command_refuses(asked: list[str]) -> None:
    assert CliRunner().invoke(main, ["lab", "sim", *asked]).exit_code == 2
