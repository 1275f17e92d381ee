"""`tidelog log dump`: segments, in a table and as JSON, and files that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.kits.clientkit import values
from tidelog.cli.main import main
from tidelog.cli.since import iso_time


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    file = tmp_path / "00000000000000000000.log"
    file.write_bytes(values(3))
    return file


def dump(*words: object) -> Result:
    return CliRunner().invoke(main, ["log", "dump", *map(str, words)])


def rows(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_batches(segment: Path) -> None:
    shown = dump(segment)
    assert shown.exit_code == 0
    assert "0..2" in shown.stdout
    assert dump(segment.parent).stdout == shown.stdout
    (row,) = rows(dump(segment, "--json"))
    assert (row["base_offset"], row["last_offset"], row["records"]) == (0, 2, 3)
    assert (row["producer_id"], row["transactional"], row["control"]) == (None, False, None)
    assert row["bytes"] == segment.stat().st_size


def test_records_are_those_that_consume_shows(segment: Path) -> None:
    found = rows(dump(segment, "--records", "--json"))
    assert found == [{"offset": at, "timestamp": 1, "key": None, "value": str(at), "headers": []} for at in range(3)]
    assert "null" in dump(segment, "--records").stdout


def test_a_foreign_file_is_told_once(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("nothing that a broker wrote, and longer than the header of a batch is. " * 2)
    shown = dump(file)
    assert shown.exit_code == 1
    assert shown.output.count("\n") == 1
    assert "is no segment of a log" in shown.output
    (row,) = rows(dump(file, "--json"))
    assert row["position"] == 0
    file.write_text("short")
    assert "is no segment of a log: it ends within a batch" in dump(file).output


def test_damage_is_told_with_its_place(segment: Path) -> None:
    whole = segment.read_bytes()
    segment.write_bytes(whole + whole[:70])
    shown = dump(segment)
    assert shown.exit_code == 1
    assert f"is damaged at byte {len(whole)}" in shown.stdout
    assert "0..2" in shown.stdout
    assert [set(row) for row in rows(dump(segment, "--json"))][-1] == {"position", "damaged"}


def test_what_is_neither_a_file_nor_a_directory_is_refused(tmp_path: Path) -> None:
    assert "neither a file nor a directory" in dump("/dev/zero").stderr
    assert "holds no segments, such as 00000000000000000000.log" in dump(tmp_path).stderr


def test_a_directory_has_segments_and_other_logs(segment: Path) -> None:
    alone = dump(segment.parent)
    for name in ("broker-1.log", "up.log", "1.log", "00000000000000000000.log.deleted"):
        (segment.parent / name).write_text("INFO [broker 1] it is ready")
    both = dump(segment.parent)
    assert (both.exit_code, both.stdout) == (0, alone.stdout)
    segment.unlink()
    assert "holds no segments" in dump(segment.parent).stderr


def test_times_are_those_that_consume_shows(segment: Path) -> None:
    time = iso_time(1)
    assert time in dump(segment).stdout
    assert time in dump(segment, "--records").stdout
    (row,) = rows(dump(segment, "--json"))
    assert row["max_timestamp"] == 1
