"""Tables: they fit a terminal of 80 columns, and names that clients chose do not command it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from tests.clientkit import values
from tests.fake_admin import served_broker
from tidelog.cli.output import print_rows
from tidelog.types import TopicPartition

COLUMNS = 80
STYLE = re.compile(r"\x1b\[[0-9;]*m")


def on_a_terminal(*words: str, bootstrap: str) -> list[str]:
    reader, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    environment = {**os.environ, "TIDELOG_BOOTSTRAP": bootstrap, "TERM": "xterm"}
    environment.pop("COLUMNS", None)
    subprocess.run([sys.executable, "-m", "tidelog", *words], stdout=terminal, env=environment, timeout=60, check=True)
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
