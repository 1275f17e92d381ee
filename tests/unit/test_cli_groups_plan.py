"""Resetting offsets without a cluster: where the ways lead, how times, topics and files are written."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tidelog.cli.group_reset import parse_chosen, parse_datetime, parse_duration, read_offsets
from tidelog.client.reset_plan import Chosen, Log, Planned, Reset, Way, plan
from tidelog.types import TopicPartition

P = TopicPartition("orders", 0)
LOG = Log(start=10, end=50)

PLANS: list[tuple[str, Reset, int | None, Log, tuple[int | None, str]]] = [
    ("the start is not always 0", Reset(Way.EARLIEST), 20, LOG, (10, "")),
    ("earliest needs no committed offset", Reset(Way.EARLIEST), None, LOG, (10, "")),
    ("latest", Reset(Way.LATEST), 20, LOG, (50, "")),
    ("an empty log starts at its end", Reset(Way.EARLIEST), None, Log(7, 7), (7, "")),
    ("current stays", Reset(Way.CURRENT), 20, LOG, (20, "")),
    ("current stays, be it outside of the log", Reset(Way.CURRENT), 5, LOG, (5, "")),
    ("committed at 0 is not without an offset", Reset(Way.CURRENT), 0, Log(0, 50), (0, "")),
    ("current of none is the end", Reset(Way.CURRENT), None, LOG, (50, "no committed offset")),
    ("an offset", Reset(Way.OFFSET, 30), None, LOG, (30, "")),
    ("the start itself", Reset(Way.OFFSET, 10), None, LOG, (10, "")),
    ("the end itself", Reset(Way.OFFSET, 50), None, LOG, (50, "")),
    ("an offset below the log", Reset(Way.OFFSET, 9), 20, LOG, (10, "9 is below")),
    ("an offset above the log", Reset(Way.OFFSET, 51), 20, LOG, (50, "51 is above")),
    ("forward", Reset(Way.SHIFT, 5), 20, LOG, (25, "")),
    ("back", Reset(Way.SHIFT, -5), 20, LOG, (15, "")),
    ("back too far", Reset(Way.SHIFT, -100), 20, LOG, (10, "-80 is below")),
    ("forward too far", Reset(Way.SHIFT, 100), 20, LOG, (50, "120 is above")),
    ("a time", Reset(Way.TIME, 1000), 20, Log(10, 50, 33), (33, "")),
    ("a time after the last record", Reset(Way.TIME, 1000), 20, LOG, (50, "no record is that late")),
    ("a time ago", Reset(Way.DURATION, 1000), None, Log(10, 50, 11), (11, "")),
    ("a time ago without records since", Reset(Way.DURATION, 1000), None, LOG, (50, "no record is that late")),
    ("a file", Reset(Way.FILE, offsets={P: 40}), 20, LOG, (40, "")),
    ("a file from before the log was cut", Reset(Way.FILE, offsets={P: 4}), 20, LOG, (10, "4 is below")),
]


@pytest.mark.parametrize(("reset", "current", "log", "expected"), [row[1:] for row in PLANS], ids=[r[0] for r in PLANS])
def test_where_a_reset_leads(reset: Reset, current: int | None, log: Log, expected: tuple[int | None, str]) -> None:
    (planned,) = plan(reset, {} if current is None else {P: current}, {P: log}).values()
    new, warning = expected
    assert (planned.current, planned.new, planned.refusal) == (current, new, None)
    assert warning in (planned.warning or "")
    assert bool(warning) == (planned.warning is not None)


def test_what_has_no_offset_cannot_be_shifted() -> None:
    other = TopicPartition("orders", 1)
    planned = plan(Reset(Way.SHIFT, 1), {P: 20}, {other: LOG, P: LOG})
    assert list(planned) == [P, other]
    assert planned[P] == Planned(20, 21)
    assert planned[other].new is None
    assert planned[other].refusal is not None


def test_times_are_utc_unless_they_say_otherwise() -> None:
    assert parse_datetime("1970-01-01T00:00:03.500") == 3500
    assert parse_datetime("1970-01-01T01:00:00+01:00") == 0
    assert parse_datetime("2026-01-31T12:00:00Z") == 1769860800000
    with pytest.raises(click.BadParameter, match="no time"):
        parse_datetime("yesterday")


def test_durations() -> None:
    assert parse_duration("PT0S") == 0
    assert parse_duration("P1DT2H3M4S") == ((24 + 2) * 60 + 3) * 60_000 + 4000
    assert parse_duration("PT1.5S") == 1500
    assert parse_duration("pt30m") == 1_800_000
    for text in ("P", "PT", "P1", "1D", "PT5", "P1H", "PT1D", "P1DT", ""):
        with pytest.raises(click.BadParameter, match="no duration"):
            parse_duration(text)


def test_topics_and_partitions() -> None:
    assert parse_chosen("orders") == Chosen("orders")
    assert parse_chosen("orders:0,2") == Chosen("orders", (0, 2))
    for text in ("", ":1", "orders:", "orders:x", "orders:1,", "orders:-1"):
        with pytest.raises(click.BadParameter):
            parse_chosen(text)


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "offsets.csv"
    file.write_text('orders,0,5\n"orders",1,0\n\n')
    assert read_offsets(str(file)) == {TopicPartition("orders", 0): 5, TopicPartition("orders", 1): 0}
    faults = {
        "orders,0": "line 1",
        "orders,0,1\norders,x,1": "line 2",
        "orders,0,-1": "line 1",
        "orders,0,1\norders,0,2": "stands there before",
        "": "names no partition",
    }
    for text, fault in faults.items():
        file.write_text(text)
        with pytest.raises(click.BadParameter, match=fault):
            read_offsets(str(file))
