"""The stories, value by value: each step is one line of stories.txt, with (LEO,HW) of every replica.

A* leads, A~ is frozen, A+ is dead; then come its records with their epochs, its epoch entries, and of a leader the ISR
and the remote LEOs.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from click.testing import CliRunner

from tidelog.cli.main import main
from tidelog.lab.frames import Frame, ReplicaRow, Role, Strip, differing, lost
from tidelog.lab.picture import svg
from tidelog.lab.telling import STORIES, tell

_ROLES = {Role.LEADER: "*", Role.FOLLOWER: "", Role.FROZEN: "~", Role.DEAD: "+"}
_PICTURES = Path(__file__).parents[2] / "docs" / "tide"


def _told() -> dict[tuple[str, str], list[str]]:
    """The lines of stories.txt, by the name of the story and the rule of truncation."""
    found: dict[tuple[str, str], list[str]] = {}
    for block in (Path(__file__).parent / "stories.txt").read_text().split("\n\n"):
        title, *lines = block.strip().splitlines()
        _, name, rule = title.split()
        found[name, rule] = lines
    return found


TOLD = _told()


@functools.cache
def told(name: str, rule: str = "epoch") -> Strip:
    return tell(STORIES[name], by_epoch=rule == "epoch")


def _short(row: ReplicaRow) -> str:
    records = " ".join(f"{record.label}e{record.epoch}" for record in row.records) or "-"
    epochs = "".join(map(str, row.epochs)) or "-"
    text = f"{row.name}{_ROLES[row.role]}({row.log_end},{row.high_watermark}) {records} {epochs}"
    if row.isr:
        remotes = " ".join(f"{name}{'?' if end is None else end}" for name, end in row.remote_log_ends)
        text += f" ISR {''.join(row.isr)} remote {remotes}"
    return text


def _line(frame: Frame) -> str:
    acknowledged = " ".join(record.label for record in frame.acknowledged) or "-"
    return " | ".join([*map(_short, frame.replicas), f"acked {acknowledged}"])


def test_every_story_is_told_here() -> None:
    assert [name for name, rule in TOLD if rule == "epoch"] == list(STORIES)
    assert {name for name, rule in TOLD if rule == "hw"} == {name for name in STORIES if STORIES[name].has_old_rule}


@pytest.mark.parametrize(("name", "rule"), TOLD)
def test_a_story_value_by_value(name: str, rule: str) -> None:
    frames = told(name, rule).frames
    assert [_line(frame) for frame in frames] == TOLD[name, rule]
    assert all(frame.says.endswith(".") and frame.rule for frame in frames)


@pytest.mark.parametrize(
    ("name", "labels", "offsets"),
    [
        ("loss", ["m1"], set()),
        ("divergence", [], {1}),
        ("loss-then-divergence", [], {1}),
        ("unanswered", [], {1}),
    ],
)
def test_by_the_old_rule_it_really_happens_and_by_epoch_it_does_not(
    name: str, labels: list[str], offsets: set[int]
) -> None:
    old = told(name, "hw").frames[-1]
    assert [record.label for record in lost(old)] == labels
    assert differing(old) == offsets
    new = told(name).frames[-1]
    # In divergence m1 went with the power of the only other machine that had it, and no rule brings it back (S5 b).
    assert [record.label for record in lost(new)] == (["m1"] if name == "divergence" else [])
    assert not differing(new)


def test_a_story_is_the_same_every_time() -> None:
    assert tell(STORIES["unclean"]) == told("unclean")


def test_the_old_rule_ends_with_its_story() -> None:
    tell(STORIES["loss"], by_epoch=False)
    assert tell(STORIES["loss"]) == told("loss")


@pytest.mark.parametrize(("name", "rule"), TOLD)
def test_the_pictures_in_the_docs_are_of_today(name: str, rule: str) -> None:
    """`python -m tools.pictures` draws them anew."""
    file = _PICTURES / (f"{name}.svg" if rule == "epoch" else f"{name}-hw.svg")
    assert file.read_text(encoding="utf-8") == svg(told(name, rule))


# The commands


def test_the_command_lists_them() -> None:
    result = CliRunner().invoke(main, ["lab", "list"])
    assert result.exit_code == 0
    assert [line.split()[0] for line in result.output.splitlines()] == list(STORIES)


@pytest.mark.parametrize("more", [[], ["--fast"], ["--step"], ["--truncation", "hw"], ["--truncation", "epoch"]])
def test_the_command_shows_every_step(more: list[str]) -> None:
    result = CliRunner().invoke(main, ["lab", "show", "loss", *more])
    assert result.exit_code == 0, result.output
    assert ("lost m1" in result.output) == ("hw" in more)
    for frame in told("loss", "hw" if "hw" in more else "epoch").frames:
        assert frame.says[:40] in result.output
        assert f"[{frame.rule}]" in result.output


def test_the_command_writes_a_picture(tmp_path: Path) -> None:
    file = tmp_path / "isr.svg"
    result = CliRunner().invoke(main, ["lab", "show", "isr", "--svg", str(file)])
    assert result.exit_code == 0, result.output
    assert file.read_text() == svg(told("isr"))


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["los"], "the stories are two-replicas"),
        (["isr", "--truncation", "hw"], "only these do: loss, divergence"),
        (["isr", "--step", "--fast"], "either --step or --fast"),
    ],
)
def test_the_command_refuses(asked: list[str], says: str) -> None:
    result = CliRunner().invoke(main, ["lab", "show", *asked])
    assert result.exit_code == 2
    assert says in result.output
