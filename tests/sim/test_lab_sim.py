"""The search: a seed is a run, what holds is found to hold, and what does not is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.sim.client_mutations import everybody_is_assigned_the_same, skip_one_when_behind
from tests.sim.mutations import (
    CAUGHT,
    Mutation,
    ack_before_hw,
    elections_keep_the_epoch,
    follower_hw_uncapped,
    hw_without_those_not_heard_of,
    is_shown,
    no_divergence,
    seeds_to_try,
    table,
    write_duplicates,
)
from tidelog.cli.main import main
from tidelog.lab.checkers import ALWAYS_TRUE, OnceAndInOrder
from tidelog.lab.search import run
from tidelog.lab.sweep import JOURNAL, Journal, Result, code_version

_DIGEST = "from tidelog.lab.search import run; print(run({seed}).digest)"


@pytest.mark.long
@pytest.mark.parametrize("seed", [3, 9])
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


SOON_SEEN = (
    ack_before_hw,
    hw_without_those_not_heard_of,
    follower_hw_uncapped,
    no_divergence,
    elections_keep_the_epoch,
    write_duplicates,
    skip_one_when_behind,
    everybody_is_assigned_the_same,
)
"""The first seed shows them. `make test` looks at these, and `make test-all` at all."""


def _cases() -> list[object]:
    return [
        pytest.param(mutation, marks=() if mutation in SOON_SEEN else pytest.mark.long, id=mutation.__name__)
        for mutation in CAUGHT
    ]


@pytest.mark.parametrize("mutation", _cases())
def test_a_rule_turned_off_is_noticed(mutation: Mutation) -> None:
    assert any(is_shown(mutation, seed) for seed in seeds_to_try(mutation))


def test_most_of_them_hurt_somebody() -> None:
    """What only the rules from inside see may be a rule too many; what a client sees is not."""
    assert len(CAUGHT) >= 12
    assert sum(rule in ALWAYS_TRUE for _, rule in CAUGHT.values()) >= 10
    assert all(seed < 1000 for seed, _ in CAUGHT.values())


def test_the_document_has_them() -> None:
    document = (Path(__file__).parents[2] / "docs" / "SIMULATOR.md").read_text()
    assert "\n".join(table()) in document


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


@pytest.mark.long
def test_the_command_searches_in_processes_and_goes_on_where_it_was(tmp_path: Path) -> None:
    asked = ["lab", "sim", "--jobs", "2", "--keep-going", "--resume", "--trace", str(tmp_path)]
    first = CliRunner().invoke(main, [*asked, "--seeds", "1-2"])
    assert first.exit_code == 0, first.output
    assert "2 seeds, 0 failed" in first.output
    lines = (tmp_path / JOURNAL).read_text().splitlines()
    assert sorted(json.loads(line)["result"]["seed"] for line in lines) == [1, 2]
    again = CliRunner().invoke(main, [*asked, "--seeds", "1-3"])
    assert "3 seeds, 0 failed" in again.output
    assert len((tmp_path / JOURNAL).read_text().splitlines()) == 3


@pytest.mark.long
def test_a_search_sums_up_by_fault_and_by_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_duplicates(monkeypatch)
    asked = ["lab", "sim", "--seeds", "0-2", "--keep-going", "--resume", "--trace", str(tmp_path)]
    told = CliRunner().invoke(main, asked)
    assert told.exit_code == 1
    assert "Rule broken" in told.output
    assert "Fault" in told.output
    failed = [file.stem.removeprefix("seed-") for file in tmp_path.glob("seed-*.trace")]
    assert f"failed: {', '.join(sorted(failed, key=int))}" in told.output
    assert CliRunner().invoke(main, asked).exit_code == 1, "what failed before has still failed"


def test_results_of_other_code_are_passed_over(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.add(Result(1, 0.5, 20.0, {"kill": 1}, {"kill": 1}))
    assert [result.seed for result in journal.results()] == [1]
    (tmp_path / JOURNAL).write_text((tmp_path / JOURNAL).read_text().replace(code_version(), "another"))
    assert journal.results() == []


@pytest.mark.parametrize("asked", [[], ["--seed", "1", "--seeds", "1-2"], ["--seeds", "7"], ["--seeds", "3-1"]])
def test_the_command_refuses(asked: list[str]) -> None:
    assert CliRunner().invoke(main, ["lab", "sim", *asked]).exit_code == 2
