"""A story as one SVG: well-formed, self-contained, the same bytes every time, and with everything in it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from tests.kits.storykit import M0, divergence, follower, loss, rebalance
from tidelog.lab.frames import Frame, Record, ReplicaRow, Role, Strip
from tidelog.lab.picture import svg

SVG = "{http://www.w3.org/2000/svg}"


def panels(strip: Strip) -> list[ElementTree.Element]:
    """The groups of the steps: the ones that are moved to a place."""
    return [group for group in ElementTree.fromstring(svg(strip)).iter(f"{SVG}g") if "transform" in group.attrib]


def texts(element: ElementTree.Element) -> list[str]:
    return ["".join(text.itertext()).replace("\u00a0", " ") for text in element.iter(f"{SVG}text")]


def size_of(strip: Strip) -> tuple[int, int]:
    root = ElementTree.fromstring(svg(strip))
    return int(root.attrib["width"]), int(root.attrib["height"])


def one_step(row: ReplicaRow) -> Strip:
    return Strip("s", "S", (Frame("x", "S2.1", (row,)),))


def test_the_steps_are_numbered_and_each_says_its_sentence_and_rule() -> None:
    strip = loss()
    assert len(panels(strip)) == len(strip.frames)
    for number, (panel, frame) in enumerate(zip(panels(strip), strip.frames, strict=True), 1):
        assert texts(panel)[0] == str(number)
        assert " ".join(texts(panel)).startswith(f"{number} {frame.says} {frame.rule}")


def test_a_step_shows_what_the_terminal_shows() -> None:
    cut, election, end = (texts(panels(loss())[index]) for index in (1, 3, 4))
    assert "HW 2   LEO 2   remote LEO B 2   ISR A B   epochs <0,0>" in cut
    assert "HW 1   LEO 2 → 1   epochs <0,0>   gone m1" in cut
    assert [cut.count(label) for label in ("m0", "m1")] == [2, 2]
    assert "was follower" in election
    assert "lost m1 (acknowledged, but on no replica)" in end


def test_a_record_that_is_gone_is_crossed_out_in_that_step_only() -> None:
    crossed = [sum("stroke" in path.attrib for path in panel.iter(f"{SVG}path")) for panel in panels(loss())]
    assert crossed == [0, 1, 0, 0, 1]


def test_records_that_differ_say_so() -> None:
    shown = [[text for text in texts(panel) if "≠" in text] for panel in panels(divergence())]
    assert shown == [[], ["≠ m1", "≠ m2"], ["≠ m1", "≠ m2"]]


def test_a_step_of_a_group_shows_what_the_terminal_shows() -> None:
    shared, dead, joining, end = (texts(panel) for panel in panels(rebalance()))
    assert "partition" in shared
    assert "offset" not in shared
    assert [shared.count(label) for label in ("t-0", "t-1", "t-2", "gen 1")] == [1, 1, 1, 5]
    assert "was member" in dead
    assert "heartbeat ok → REBALANCE_IN_PROGRESS" in joining
    assert "waits for JoinGroup → none   begins t-2 at 5" in end
    crossed = [sum("stroke" in path.attrib for path in panel.iter(f"{SVG}path")) for panel in panels(rebalance())]
    assert crossed == [0, 0, 3, 0]


def test_the_legend_is_of_the_story() -> None:
    assert "committed: below HW" in svg(loss())
    assert "below HW" not in svg(rebalance())
    assert "held: it reads this partition" in svg(rebalance())


def test_it_has_a_title_and_a_description() -> None:
    root = ElementTree.fromstring(svg(loss()))
    title, desc = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert title.text == "Loss (truncation by high watermark)"
    assert desc is not None
    assert desc.text is not None
    assert desc.text.startswith("1. m0 and m1 are on both replicas")
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-labelledby"].split() == [title.attrib["id"], desc.attrib["id"]]


def test_it_fetches_nothing() -> None:
    picture = svg(loss()).replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not [word for word in ("http", "href", "url(", "@import", "<script", "<image") if word in picture]


def test_the_bytes_do_not_depend_on_the_hash_seed() -> None:
    code = "import sys; from tests.kits.storykit import divergence; from tidelog.lab.picture import svg; " + (
        "sys.stdout.buffer.write(svg(divergence()).encode())"
    )
    pictures = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            cwd=os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))),
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    ]
    assert pictures == [svg(divergence()).encode()] * 2


def test_words_with_markup_in_them_are_words() -> None:
    strip = replace(loss(), title="<Loss> & more", variant="a < b")
    root = ElementTree.fromstring(svg(strip))
    assert texts(root)[0] == "<Loss> & morea < b"


@pytest.mark.parametrize("strip", [loss(), divergence(), rebalance(), one_step(follower("A", M0, high_watermark=1))])
def test_all_panels_are_within_the_picture_and_apart(strip: Strip) -> None:
    width, height = size_of(strip)
    places = []
    for panel in panels(strip):
        x, y = map(int, panel.attrib["transform"].removeprefix("translate(").removesuffix(")").split())
        frame = panel[0]
        places.append((x, y, x + int(frame.attrib["width"]), y + int(frame.attrib["height"])))
        assert max(int(text.attrib["y"]) for text in panel.iter(f"{SVG}text")) < int(frame.attrib["height"])
    assert all(right <= width and bottom <= height for _, _, right, bottom in places)
    for one in places:
        for other in places:
            overlap = one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
            assert overlap == (one is other)


def test_a_long_log_shows_its_end_and_says_how_much_it_left_out() -> None:
    records = tuple(Record(offset, f"m{offset}") for offset in range(30))
    row = ReplicaRow("A", Role.LEADER, records, high_watermark=28, log_end=30)
    words = texts(panels(one_step(row))[0])
    assert "… 18 more" in words
    assert "m18" in words
    assert "m17" not in words
    assert size_of(one_step(row))[0] <= 1000


def test_a_long_label_is_shortened() -> None:
    row = ReplicaRow("A", Role.LEADER, (Record(0, "a-long-label"),), log_end=1)
    assert "a-lo…" in texts(panels(one_step(row))[0])


def test_marks_share_a_place_and_stand_at_the_edge_they_mean() -> None:
    (panel,) = panels(one_step(follower("A", M0, high_watermark=0)))
    x = {text: int(mark.attrib["x"]) for text, mark in zip(texts(panel), panel.iter(f"{SVG}text"), strict=True)}
    assert x["HW"] < x["m0"] < x["LEO"]
    (empty,) = panels(one_step(ReplicaRow("A", Role.LEADER)))
    assert "HW=LEO" in texts(empty)


def test_marks_that_would_touch_go_below_each_other() -> None:
    row = ReplicaRow("A", Role.LEADER, (Record(1, "m1"),), high_watermark=1, log_end=2, log_start=1)
    apart = replace(row, high_watermark=2)
    heights = []
    for strip in (one_step(row), one_step(apart)):
        (panel,) = panels(strip)
        heights.append([int(mark.attrib["d"].split()[1].split("l")[0]) for mark in panel.iter(f"{SVG}path")])
    assert heights[0][1] - heights[0][0] >= 14
    assert heights[1][0] == heights[1][1]


def test_a_rule_stands_with_its_sentence() -> None:
    drawn = " ".join(word for panel in panels(loss()) for text in texts(panel) for word in text.split())
    assert "S5 a: Before leader epochs a replica cut its log to its own HW when it started." in drawn
