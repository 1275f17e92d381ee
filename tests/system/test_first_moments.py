"""`tidelog` as a process: Ctrl-C while it starts, and arguments that only a process can get."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

TIDELOG = (sys.executable, "-m", "tidelog")
DEADLINE_S = 60.0
LOOK_S = 2.0
SIGINT_BIT = 1 << (signal.SIGINT - 1)
INTERRUPTED = (-signal.SIGINT, 130)


def run(*words: str | bytes, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TIDELOG, *words], capture_output=True, text=True, timeout=DEADLINE_S, check=False, errors="replace", **more
    )


def _catches_interrupts(process: subprocess.Popen[str]) -> bool:
    """Whether the process has a handler of its own, as the kernel tells: Python's, which would raise an exception."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) & SIGINT_BIT)


def _until_tidelog_runs(process: subprocess.Popen[str]) -> None:
    """Python takes the signal when it begins; the first thing that tidelog does is to give it back.

    A command may take it again before this has looked, so this does not wait for long.
    """
    deadline = time.monotonic() + LOOK_S
    for expected in (True, False):
        while process.poll() is None and _catches_interrupts(process) is not expected and time.monotonic() < deadline:
            time.sleep(0.001)


@pytest.mark.parametrize("after_ms", [0, 5, 20, 50, 100, 150])
@pytest.mark.parametrize("words", [("topics", "list"), ("up", "--port", "0"), ("consume", "orders"), ("lab", "list")])
def test_ctrl_c_while_it_starts_shows_no_traceback(words: tuple[str, ...], after_ms: int, tmp_path: Path) -> None:
    environment = {**os.environ, "TIDELOG_BOOTSTRAP": "127.0.0.1:1"}
    with subprocess.Popen(
        [*TIDELOG, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=tmp_path,
    ) as process:
        try:
            _until_tidelog_runs(process)
            time.sleep(after_ms / 1000)
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert "Traceback" not in told
    assert "KeyboardInterrupt" not in told
    done = (0,) if words[0] == "up" else (0, 1)  # it was over before, or it stopped cleanly
    assert process.returncode in (*INTERRUPTED, *done)


def test_bytes_that_are_not_utf_8(tmp_path: Path) -> None:
    refused = run("topics", "create", b"orders\xff", "--bootstrap", "127.0.0.1:1")
    assert refused.returncode == 2
    assert r"Error: Invalid value for 'NAME': b'orders\xff' is not UTF-8" in refused.stderr
    odd_file = os.fsencode(tmp_path / "seg") + b"\xff.log"
    Path(os.fsdecode(odd_file)).write_bytes(b"not a log, but longer than the header of a batch. " * 2)
    shown = run("log", "dump", odd_file)
    assert shown.returncode == 1
    assert r"seg\udcff.log does not begin with a whole batch of records" in shown.stdout


def test_a_properties_file_that_is_not_utf_8(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_bytes("broker.id=1\n# größe\n".encode("latin-1"))
    refused = run("broker", "--config", str(file))
    assert refused.returncode == 1
    assert refused.stderr == f"Error: {file} is not UTF-8 (byte 16); write it as UTF-8\n"


@pytest.mark.parametrize("noun", ["up", "zookeeper"])
def test_a_data_directory_that_cannot_be_made(noun: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    jars = tmp_path / "jars"
    jars.mkdir()
    (jars / "zookeeper-3.jar").write_text("")
    more = ("--port", "0") if noun == "up" else ("--jars", str(jars))
    refused = run(noun, "--data", str(tmp_path / "file" / "below"), *more)
    assert refused.returncode in (1, 2)
    assert refused.stderr.splitlines()[-1].startswith("Error: ")
    assert refused.stderr.count("Error: ") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("topics", "create", "t", "--partitions", "99999999999"),
        ("topics", "create", "t", "--replication-factor", "99999"),
        ("topics", "alter", "t", "--partitions", str(2**31)),
        ("consume", "t", "--since", "99999999999999999999"),
        ("consume", "t", "--partition", str(2**31)),
        ("consume", "t", "--offset", str(2**63)),
        ("configs", "describe", "--broker", "99999999999"),
        ("elect", "preferred", "--topic", "t", "--partition", "99999999999"),
        ("reassign", "--topic", "t", "--replicas", "1,99999999999"),
        ("reassign", "--topic", "t", "--replicas", "1", "--execute", "--wait", "--timeout", "nan"),
        ("groups", "reset-offsets", "g", "--all-topics", "--to-offset", str(2**63)),
        ("groups", "reset-offsets", "g", "--all-topics", "--by-duration", "P99999999999999999999D"),
        ("lab", "sim", "--seeds", "0-99999999999999999999"),
        ("topics", "list", "--bootstrap", "é" * 300),
    ],
)
def test_numbers_and_times_out_of_range(words: tuple[str, ...]) -> None:
    refused = run(*words)
    assert refused.returncode == 2, refused.stderr
    assert "Traceback" not in refused.stderr
    assert refused.stderr.count("Error: ") == 1


def test_ctrl_c_on_up_says_what_it_does(tmp_path: Path) -> None:
    command = [*TIDELOG, "up", "--port", "0", "--metrics-port", "-1", "--data", str(tmp_path / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = next(line for line in process.stdout if line.startswith("tidelog is up"))
            assert "stop: Ctrl-C" in ready
            process.send_signal(signal.SIGINT)
            told, _ = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert told.splitlines() == ["stopping the broker; a second Ctrl-C kills what is left", "stopped"]
    assert process.returncode == 0
