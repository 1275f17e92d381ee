"""The log file of a broker: bounded in lines, in length and in size, and never in the way."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.cli import broker_log
from tidelog.cli.broker_log import _Budget, _OneLine, one_line

LOGGER = "tidelog.test.broker_log"
_WRITE = """
import logging, os, sys
from tidelog.cli import broker_log
broker_log._MAX_BYTES = 20_000
broker_log.set_up(1, "INFO", sys.argv[1], None)
if len(sys.argv) > 3:
    def refuse(*_): raise PermissionError(13, "Permission denied")
    os.rename = refuse
for number in range(int(sys.argv[2])):
    logging.getLogger("tidelog.some").warning("line %d %s", number, "x" * 100)
if sys.argv[1] != "/dev/full":
    print("printed")
"""


def write(file: Path, lines: int, *options: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WRITE, str(file), str(lines), *options], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_it_is_rotated_and_four_old_files_are_kept_also_those_of_an_earlier_start(tmp_path: Path) -> None:
    file = tmp_path / "broker.log"
    write(file, 200)
    first = sorted(path.name for path in tmp_path.iterdir())
    assert first == ["broker.log", "broker.log.1"]
    assert "line 199" in file.read_text()
    kept = file.read_text()
    write(file, 1)
    assert file.read_text().startswith(kept), "the next start goes on in the same file"
    write(file, 2_000)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broker.log", *(f"broker.log.{n}" for n in range(1, 5))]
    assert all(path.stat().st_size < 21_000 for path in tmp_path.iterdir())
    assert file.read_text().endswith("printed\n"), "what is printed is in the file of now"


def test_a_file_that_cannot_be_rotated_is_written_on_up_to_a_bound(tmp_path: Path) -> None:
    file = tmp_path / "broker.log"
    write(file, 2_000, "read-only")
    assert [path.name for path in tmp_path.iterdir()] == ["broker.log"]
    assert 60_000 < file.stat().st_size < 90_000


def test_a_full_disk_is_no_failure() -> None:
    write(Path("/dev/full"), 100)


@pytest.fixture
def lines(tmp_path: Path) -> Iterator[list[str]]:
    """What a logger writes by way of the budget and the format."""
    seen: list[str] = []

    class Seen(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(self.format(record))

    handler, logger = Seen(), logging.getLogger(LOGGER)
    handler.addFilter(_Budget())
    handler.setFormatter(_OneLine("%(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield seen
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


def at(second: float, level: int, message: str, *args: object) -> None:
    logger = logging.getLogger(LOGGER)
    record = logger.makeRecord(LOGGER, level, "", 0, message, args, None)
    record.created = second
    logger.handle(record)


def test_lines_that_come_too_fast_are_left_out_and_counted(lines: list[str]) -> None:
    for number in range(1_000):
        at(0.0, logging.INFO, "line %d", number)
    assert lines == [f"INFO line {number}" for number in range(broker_log._BURST)]
    at(0.0, logging.WARNING, "a warning is never left out")
    at(1.0, logging.INFO, "a second later %d", 1)
    assert lines[-2:] == [
        "WARNING a warning is never left out",
        f"INFO a second later 1 [{1_000 - broker_log._BURST} lines of this logger before this one were left out]",
    ]


def test_whoever_wants_debug_gets_all(lines: list[str]) -> None:
    logging.getLogger(LOGGER).setLevel(logging.DEBUG)
    for number in range(1_000):
        at(0.0, logging.INFO, "line %d", number)
    assert len(lines) == 1_000


def test_what_a_client_chose_is_one_line_and_not_too_long(lines: list[str]) -> None:
    at(0.0, logging.INFO, "member %s", "a\n2026-01-01 ERROR all is lost\x1b[2J\u2028 größe")
    at(0.0, logging.INFO, "%s", "x" * 100_000)
    assert lines[0] == "INFO member a\\n2026-01-01 ERROR all is lost\\x1b[2J\\u2028 größe"
    assert len(lines[1]) < 17_000
    assert one_line("a\x00") == "a\\x00"


def test_a_traceback_cannot_be_taken_for_lines_of_the_log(lines: list[str]) -> None:
    try:
        raise ValueError("a group\nERROR all is lost\x1b[2J")
    except ValueError:
        logging.getLogger(LOGGER).exception("this failed")
    first, *others = lines[0].split("\n")
    assert first == "ERROR this failed"
    assert others[-2:] == ["  ValueError: a group", "  ERROR all is lost\\x1b[2J"]
    assert all(line.startswith("  ") for line in others)


def test_warnings_are_passed_on_in_one_line(tmp_path: Path) -> None:
    read, written = os.pipe()
    handler = broker_log._Passed(written)
    handler.handle(logging.LogRecord(LOGGER, logging.WARNING, "", 0, "a\nb %s", ("\x1b",), None))
    assert os.read(read, 1_000) == b"warning: a b \\x1b\n"
    for end in (read, written):
        os.close(end)
