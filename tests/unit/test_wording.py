"""Pieces of log lines."""

from __future__ import annotations

from tidelog.wording import counted, listed, settings_text, shown


def test_names_that_clients_chose_are_cut_and_escaped() -> None:
    assert shown(None) == "-"
    assert shown("reader-1") == "reader-1"
    assert shown("a\nb\x1b\u202e") == "a\\nb\\x1b\\u202e"
    assert shown("x" * 32_000) == "x" * 100 + "... (32000 characters)"


def test_counts_and_lists() -> None:
    assert [counted(count, "partition") for count in (0, 1, 2_000)] == [
        "0 partitions",
        "1 partition",
        "2,000 partitions",
    ]
    assert listed([]) == ""
    assert listed(range(3)) == "0, 1, 2"
    assert listed(range(2_003)) == "0, 1, 2 and 2,000 more"
    assert settings_text([("a", "1"), ("b", None)]) == "a=1, b=-"
