"""The stories, value by value: each step is one line of stories.txt, with (LEO,HW) of every replica.

A* leads, A~ is frozen, A+ is dead; then come its records with their epochs, its epoch entries, and of a leader the ISR
and the remote LEOs.

A step of a group begins with its state and generation. c1(1) is a member that knows of generation 1, c1* the leader,
c1+ dead, c1- outside the group; then come the partitions it holds, in brackets those that only the coordinator knows to
be its own, what it waits for, how its last heartbeat and commit were answered, and where it begins.
"""

from __future__ import annotations

import functools
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from tidelog.cli.main import main
from tidelog.lab.frames import Frame, Group, MemberRow, ReplicaRow, Role, Strip, contested, differing, lost
from tidelog.lab.picture import svg
from tidelog.lab.rulebook import sentences
from tidelog.lab.telling import STORIES, GroupStory, tell

_ROLES = {
    Role.LEADER: "*",
    Role.FOLLOWER: "",
    Role.FROZEN: "~",
    Role.DEAD: "+",
    Role.MEMBER: "",
    Role.OUTSIDE: "-",
}
GROUP_STORIES = [name for name, story in STORIES.items() if isinstance(story, GroupStory)]
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


def _short_member(row: MemberRow) -> str:
    held = " ".join(map(str, row.held)) or ("" if row.assigned else "-")
    assigned = f"[{' '.join(map(str, row.assigned))}]" if row.assigned else ""
    told = [("waits", row.waits_for), ("heartbeat", row.heartbeat), ("commit", row.commit), ("begins", row.begins)]
    words = [f"{name} {value}" for name, value in told if value]
    generation = "-" if row.generation is None else row.generation
    return " ".join([f"{row.name}{_ROLES[row.role]}({generation})", *filter(None, [held, assigned]), *words])


def _group_line(group: Group) -> str:
    committed = " ".join(f"{partition}:{offset}" for partition, offset in group.committed) or "-"
    state = f"{group.state} {group.generation}"
    return " | ".join([state, *map(_short_member, group.members), f"committed {committed}"])


def _line(frame: Frame) -> str:
    if frame.group is not None:
        return _group_line(frame.group)
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


@pytest.mark.parametrize("name", ["unclean", "rebalance-commit"])
def test_a_story_is_the_same_every_time(name: str) -> None:
    assert tell(STORIES[name]) == told(name)


def test_the_old_rule_ends_with_its_story() -> None:
    tell(STORIES["loss"], by_epoch=False)
    assert tell(STORIES["loss"]) == told("loss")


# Groups


def _groups(name: str) -> list[Group]:
    return [frame.group for frame in told(name).frames if frame.group is not None]


@pytest.mark.parametrize("name", GROUP_STORIES)
def test_no_partition_is_ever_read_by_two(name: str) -> None:
    groups = _groups(name)
    assert len(groups) == len(told(name).frames)
    assert not any(contested(group) for group in groups)
    shares = [[partition for row in group.members for partition in row.shares] for group in groups]
    assert all(len(set(share)) == len(share) for share in shares)


def test_the_stories_show_every_way_between_the_states_of_a_group_with_members() -> None:
    """The stories begin in Stable, and look often enough to see every state."""
    ways = {
        (before.state, after.state)
        for name in GROUP_STORIES
        for before, after in pairwise(_groups(name))
        if before.state != after.state
    }
    assert ways == {
        ("Stable", "PreparingRebalance"),
        ("PreparingRebalance", "CompletingRebalance"),
        ("CompletingRebalance", "Stable"),
        ("Stable", "Empty"),  # by PreparingRebalance, which lasts only until the last one has left
    }


def test_a_session_ends_after_its_timeout() -> None:
    assert told("rebalance-crash").frames[3].notes == ("It died 6.0 s ago.",)


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
    shown = " ".join(result.output.split())
    for frame in told("loss", "hw" if "hw" in more else "epoch").frames:
        assert frame.says[:40] in result.output
        assert all(sentence in shown for sentence in sentences(frame.rule))


def test_the_command_shows_a_group() -> None:
    result = CliRunner().invoke(main, ["lab", "show", "rebalance-leave"])
    assert result.exit_code == 0, result.output
    assert "state Stable → PreparingRebalance" in result.output
    assert "begins t-0 at 5" in result.output


@pytest.mark.parametrize("name", ["isr", "rebalance-join"])
def test_the_command_writes_a_picture(tmp_path: Path, name: str) -> None:
    file = tmp_path / "story.svg"
    result = CliRunner().invoke(main, ["lab", "show", name, "--svg", str(file)])
    assert result.exit_code == 0, result.output
    assert file.read_text() == svg(told(name))


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
