"""Tables: they fit a terminal of 80 columns, and names that clients chose do not command it."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path
from typing import Any

import pytest

from tests.kits.clientkit import values
from tests.kits.fake_admin import served_broker
from tests.kits.logkit import idempotent
from tidelog.cli.output import Size, path_parts, print_rows
from tidelog.cli.since import iso_time
from tidelog.errors import ErrorCode
from tidelog.types import TopicPartition
from tidelog.wire.messages.metadata import Coordinator, FindCoordinatorResponse
from tidelog.wire.messages.topics import DescribeLogDirsResult

COLUMNS = 80
FIND_COORDINATOR = 10
STYLE = re.compile(r"\x1b\[[0-9;]*m")


def on_a_terminal(*words: str, bootstrap: str, status: int = 0) -> list[str]:
    reader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    environment = {**os.environ, "TIDELOG_BOOTSTRAP": bootstrap, "TERM": "xterm"}
    environment.pop("COLUMNS", None)
    command = [sys.executable, "-m", "tidelog", *words]
    done = subprocess.run(command, stdout=terminal, stderr=terminal, env=environment, timeout=60, check=False)
    assert done.returncode == status
    os.close(terminal)
    found = b""
    try:
        while piece := os.read(reader, 65536):
            found += piece
    except OSError:  # the terminal is closed, and all is read
        pass
    os.close(reader)
    return STYLE.sub("", found.decode()).replace("\r\n", "\n").splitlines()


@pytest.mark.parametrize(
    "words",
    [
        ("topics", "list"),
        ("topics", "describe", "--watermarks"),
        ("configs", "describe", "--topic", "orders", "--all"),
        ("cluster", "describe"),
        ("reassign", "--topic", "orders", "--replicas", "1"),
    ],
)
def test_tables_fit_80_columns(words: tuple[str, ...]) -> None:
    with served_broker() as broker:
        broker.add_topic("orders", 2)
        broker.add_topic("a-topic-with-a-name-that-is-very-long-and-fills-most-of-a-terminal-by-itself", 1)
        broker.cluster.append(TopicPartition("orders", 0), bytes(values(3)))
        lines = on_a_terminal(*words, bootstrap=broker.bootstrap)
    assert max(len(line) for line in lines if "  id " not in line) <= COLUMNS, "but for titles with names of topics"
    assert any("─" * 10 in line for line in lines)


def test_numbers_stay_whole_and_headings_break(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    row = {"log_end_offset": 1234567890123, "current_offset": 1234567890000, "client": "x" * 60}
    print_rows([row], as_json=False)
    shown = STYLE.sub("", capsys.readouterr().out)
    assert "1234567890123" in shown
    assert "1234567890000" in shown
    assert max(map(len, shown.splitlines())) <= 40
    assert "log end offset" not in shown


def test_a_segment_of_a_producer_fits_and_breaks_where_it_means_something(tmp_path: Path) -> None:
    file = tmp_path / "00000000000000123456.log"
    batches = [idempotent(at, 7, producer_id=3000, base_offset=123456 + at) for at in (0, 7)]
    file.write_bytes(b"".join(batches))
    lines = on_a_terminal("log", "dump", str(file), bootstrap="")
    table = [line for line in lines if str(file) not in line]
    assert max(map(len, table)) <= COLUMNS
    words = " ".join(table).split()
    for whole in ("3000/0", "@0", "@7", "123456..", "123462", "data", "none", "2023-11-14T", "22:13:20.006"):
        assert whole in words or iso_time(1_700_000_000_006)[:11] != "2023-11-14T", whole


def test_sizes_and_paths_of_log_directories(tmp_path: Path) -> None:
    path = "/srv/a-volume-with-a-long-name/tidelog/broker-1"
    directory = DescribeLogDirsResult(log_dir=path, total_bytes=270553174016, usable_bytes=1536)
    with served_broker() as broker:
        broker.log_directories = [directory]
        lines = on_a_terminal("cluster", "log-dirs", bootstrap=broker.bootstrap)
        (row,) = json_lines(on_a_terminal("cluster", "log-dirs", "--json", bootstrap=broker.bootstrap))
    assert max(map(len, lines)) <= COLUMNS
    text = "\n".join(lines)
    for whole in ("252.0 GiB", "1.5 KiB", "0 B", "/a-volume-with-a-long-name", "/tidelog/broker-1"):
        assert whole in text
    assert (row["volume_bytes"], row["free_bytes"], row["log_directory"]) == (270553174016, 1536, path)


def json_lines(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (270553174016, "252.0 GiB")]
)
def test_sizes(size: int, text: str) -> None:
    assert str(Size(size)) == text


@pytest.mark.parametrize(
    "path", ["", "/", "a", "/a/b", "C:/" + "x" * 60 + "/y", "//host/" + "/".join("abcdefghijklmnopqr")]
)
def test_a_path_is_whole_when_it_is_put_together(path: str) -> None:
    assert "".join(path_parts(path)) == path


def test_watching_what_cannot_be_seen_shows_the_error_alone() -> None:
    """On a terminal, since --watch needs one."""
    refused = Coordinator(key="nobody", error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
    with served_broker() as broker:
        broker.script[FIND_COORDINATOR] = [lambda request: FindCoordinatorResponse(coordinators=[refused])] * 9
        words = ("groups", "describe", "nobody", "--watch")
        lines = on_a_terminal(*words, bootstrap=broker.bootstrap, status=1)
    assert lines[0].startswith("Error: ")
    assert "" not in lines
    assert "GROUP_AUTHORIZATION_FAILED" in "".join(lines)


def test_lines_in_a_pipe_are_not_folded(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"name": "x" * 300, "nothing": None, "is": False}], as_json=False)
    shown = capsys.readouterr().out
    assert "x" * 300 in shown
    assert "nothing" not in shown
    assert "no" in shown.split()


@pytest.mark.parametrize("as_json", [True, False])
def test_control_characters_are_escaped(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    print_rows([{"client": "a\x1b[2J\x9b31m\x07"}], as_json=as_json, title="g\x1b]0;x")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", capsys.readouterr().out)
