"""A story's steps in a terminal: with colour, without, narrow, and in plain ASCII."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from tests.kits.storykit import M0, M1, M2, divergence, follower, group, loss, rebalance
from tidelog.lab.frames import Frame, MemberRow, Record, ReplicaRow, Role, Strip
from tidelog.lab.terminal import LegendDrawing, StepDrawing


def printed(drawing: RenderableType, width: int = 80, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    Console(file=file, width=width, color_system=None).print(drawing)
    file.flush()
    return raw.getvalue().decode(encoding)


def test_a_step_without_colour() -> None:
    assert printed(StepDrawing(loss(), 1)).splitlines() == [
        " 2/5 B restarts, and before it asks anybody it cuts its log to its own high",
        " watermark, 1.",
        "     S5 a: Before leader epochs a replica cut its log to its own HW when it",
        "     started.",
        " controller C   acknowledged m0 m1",
        "             offset   0      1",
        " A                  ┌────┐ ┌────┐",
        " leader, epoch 0    │ m0 │ │ m1 │",
        "                    └─e0─┘ └─e0─┘",
        "                                  ▲HW=LEO",
        "    HW 2   LEO 2   remote LEO B 2   ISR A B   epochs <0,0>",
        "",
        " B                  ┌────┐ ╳╌╌╌╌╳",
        " follower, epoch 0  │ m0 │ ╳ m1 ╳",
        "                    └─e0─┘ ╳╌e0╌╳",
        "                           ▲HW=LEO",
        "    HW 1   LEO 2 → 1   epochs <0,0>   gone m1",
        "",
    ]


def test_uncommitted_records_have_other_lines() -> None:
    text = printed(StepDrawing(loss(), 0))
    assert "│ m0 │ ┊ m1 ┊" in text
    assert "▲HW    ▲LEO" in text


def test_an_election_says_who_it_was_and_what_the_new_leader_does_not_know() -> None:
    text = printed(StepDrawing(loss(), 3))
    assert "was follower" in text
    assert "remote LEO A ?   ISR B   epochs <0,0> → <0,0> <1,1>" in text


def test_a_replica_that_leads_no_more_shows_nothing_of_a_leader() -> None:
    dead = printed(StepDrawing(loss(), 2))
    assert "was leader" in dead
    assert "    HW 2   LEO 2   epochs <0,0>\n" in dead
    assert "ISR" not in dead


def test_a_lost_record_is_named() -> None:
    assert "lost m1 (acknowledged, but on no replica)" in printed(StepDrawing(loss(), 4))
    assert "lost" not in printed(StepDrawing(loss(), 3))


def test_new_and_different_records_are_marked() -> None:
    text = printed(StepDrawing(divergence(), 1))
    assert "┌─≠──┐" in text
    assert "┌─+≠─┐" in text


def test_a_record_replaced_within_a_step_is_named_though_its_box_is_taken() -> None:
    rows = [follower("A", M0, record, high_watermark=1) for record in (M1, M2)]
    text = printed(StepDrawing(Strip("s", "S", tuple(Frame("x", "S4.4", (row,)) for row in rows)), 1))
    assert "┊ m2 ┊" in text
    assert "gone m1" in text


@pytest.mark.parametrize("story", [loss(), divergence(), rebalance()])
def test_an_ascii_terminal_gets_ascii(story: Strip) -> None:
    for index in range(len(story.frames)):
        printed(StepDrawing(story, index), encoding="ascii").encode("ascii")
    printed(LegendDrawing(story), encoding="ascii").encode("ascii")
    assert "| m0 | x m1 x" in printed(StepDrawing(loss(), 1), encoding="ascii")


@pytest.mark.parametrize("width", [36, 50, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for story in (loss(), rebalance()):
        for index in range(len(story.frames)):
            assert max(map(len, printed(StepDrawing(story, index), width).splitlines())) <= width
        assert max(map(len, printed(LegendDrawing(story), width).splitlines())) <= width


def test_a_long_log_shows_its_end_and_says_how_much_it_left_out() -> None:
    records = tuple(Record(offset, f"m{offset}") for offset in range(30))
    row = ReplicaRow("A", Role.LEADER, records, high_watermark=28, log_end=30)
    text = printed(StepDrawing(Strip("s", "S", (Frame("x", "S2.1", (row,)),)), 0), width=80)
    assert "… 24 more" in text
    assert "│ m27 │ ┊ m28 ┊ ┊ m29 ┊" in text
    assert "m23" not in text
    assert "▲HW" in text


def test_marks_that_would_touch_go_below_each_other() -> None:
    records = (Record(1, "m1"), Record(2, "m2"))
    rows = [ReplicaRow("A", Role.LEADER, records, high_watermark=end, log_end=3, log_start=1) for end in (1, 2, 3)]
    drawn = [printed(StepDrawing(Strip("s", "S", (Frame("x", "S10.2", (row,)),)), 0)) for row in rows]
    assert f"{' ' * 20}▲start=HW     ▲LEO\n" in drawn[0]
    assert f"{' ' * 20}▲start ▲HW    ▲LEO\n" in drawn[1]
    assert f"{' ' * 20}▲start        ▲HW=LEO\n" in drawn[2]
    short = replace(rows[0], records=records[:1], log_end=2)
    text = printed(StepDrawing(Strip("s", "S", (Frame("x", "S10.2", (short,)),)), 0))
    assert f"{' ' * 20}▲start=HW\n{' ' * 27}▲LEO\n" in text


def test_an_empty_log_has_a_place_for_its_first_record() -> None:
    row = ReplicaRow("A", Role.LEADER, purgatory=("fetch of B at 0",))
    text = printed(StepDrawing(Strip("s", "S", (Frame("x", "S2.10", (row,), notes=("Nobody writes.",)),)), 0))
    assert "offset   0" in text
    assert "▲HW=LEO" in text
    assert "purgatory fetch of B at 0" in text
    assert " Nobody writes.\n" in text


# Groups


def test_a_step_of_a_group_without_colour() -> None:
    assert printed(StepDrawing(rebalance(), 2)).splitlines() == [
        " 3/4 c2's session is over, and c1 joins again.",
        "     S8.4: Any member that joins, leaves or falls silent makes all members",
        "     rejoin.",
        " state Stable → PreparingRebalance   generation 1   coordinator A",
        " committed t-2 at 5",
        "          partition    0       1       2",
        " c1                 ╳╌╌╌╌╌╳ ╳╌╌╌╌╌╳",
        " leader, gen 1      ╳ t-0 ╳ ╳ t-1 ╳",
        "                    ╳╌╌g1╌╳ ╳╌╌g1╌╳",
        "    waits for JoinGroup   heartbeat ok → REBALANCE_IN_PROGRESS",
        "",
        " c2                                 ╳╌╌╌╌╌╳",
        " dead                               ╳ t-2 ╳",
        "                                    ╳╌╌g1╌╳",
        "",
    ]


def test_what_a_dead_member_has_is_dashed() -> None:
    text = printed(StepDrawing(rebalance(), 1))
    assert "┊ t-2 ┊" in text
    assert "was member" in text
    assert "│ t-0 │ │ t-1 │" in text


def test_what_a_member_got_is_new_and_says_where_it_begins() -> None:
    text = printed(StepDrawing(rebalance(), 3))
    assert text.count("┌──+──┐") == 3
    assert "waits for JoinGroup → none   begins t-2 at 5" in text


def test_a_share_that_was_assigned_is_new_again_when_it_is_heard_of() -> None:
    told = MemberRow("c1", Role.LEADER, 1, (0,))
    untold = MemberRow("c1", Role.LEADER, 1, assigned=(0,))
    frames = tuple(Frame("x", "S8.3", group=group("Stable", 1, row)) for row in (untold, told, told))
    drawn = [printed(StepDrawing(Strip("s", "S", frames), index)) for index in range(3)]
    assert ["┌──+──┐" in text for text in drawn] == [False, True, False]


def test_a_further_commit_does_not_show_the_one_before() -> None:
    rows = [MemberRow("c1", Role.LEADER, 1, commit=f"t-0 at {offset}: ok") for offset in (5, 7)]
    frames = tuple(Frame("x", "S8.4", group=group("Stable", 1, row)) for row in rows)
    assert "    commit t-0 at 7: ok\n" in printed(StepDrawing(Strip("s", "S", frames), 1))


def test_a_partition_that_two_read_is_marked() -> None:
    rows = MemberRow("c1", Role.LEADER, 1, (0, 1)), MemberRow("c2", Role.MEMBER, 1, (1, 2))
    text = printed(StepDrawing(Strip("s", "S", (Frame("x", "S8.1", group=group("Stable", 1, *rows)),)), 0))
    assert text.count("┌──≠──┐") == 2


def test_the_legend_is_of_the_story() -> None:
    assert "below HW" in printed(LegendDrawing(loss()))
    of_a_group = printed(LegendDrawing(rebalance()))
    assert "below HW" not in of_a_group
    assert "│ held: it reads this partition │" in of_a_group


def test_colour_tells_the_tide_and_no_colour_keeps_the_strike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1;37;44m│ m0 │" in _on_a_terminal()
    assert "\x1b[9;31m╳ m1 ╳" in _on_a_terminal()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1m│ m0 │" in _on_a_terminal()
    assert "\x1b[9m╳ m1 ╳" in _on_a_terminal()


def _on_a_terminal() -> str:
    file = io.StringIO()
    Console(file=file, width=80, force_terminal=True, color_system="standard").print(StepDrawing(loss(), 1))
    return file.getvalue()
