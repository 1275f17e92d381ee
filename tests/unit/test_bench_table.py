"""The table of a bench in Markdown: rows with a bar and without, and columns that only some rows have."""

from __future__ import annotations

from bench.table import Row, markdown


def test_rows_are_judged_by_their_bar() -> None:
    rows = [Row("rate", "3", "2", 1.5, 1.0), Row("time", "3 us", "2 us", 3.0, 2.0, at_most=True, unit="us")]
    assert [row.met for row in rows] == [True, False]
    assert markdown(rows).splitlines() == [
        "| what | tidelog | peer | ratio | bar | |",
        "|---|---|---|---|---|---|",
        "| rate | 3 | 2 | 1.50 x | >= 1 x | met |",
        "| time | 3 us | 2 us | 3.00 us | <= 2 us | MISSED |",
    ]


def test_a_row_without_a_bar_is_not_judged() -> None:
    row = Row("rate", "1", "2", 0.5, None)
    assert row.met
    assert markdown([row]).splitlines()[-1] == "| rate | 1 | 2 | 0.50 x | | |"


def test_further_columns_stand_behind() -> None:
    rows = [Row("a", "1", "1", 1.0, 1.0, columns={"floor": "9"}), Row("b", "1", "1", 1.0, 1.0)]
    assert markdown(rows).splitlines() == [
        "| what | tidelog | peer | ratio | bar | | floor |",
        "|---|---|---|---|---|---|---|",
        "| a | 1 | 1 | 1.00 x | >= 1 x | met | 9 |",
        "| b | 1 | 1 | 1.00 x | >= 1 x | met | |",
    ]
