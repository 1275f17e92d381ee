"""Brokers that another user runs, or that run in another container: `status` and `down` do not say that none runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tidelog.cli.data_directory import DataDirectory

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user, or make a namespace")

NOBODY = 65534
PATIENCE_S = 30
_HOLD = """
import sys
from tidelog.cli.data_directory import DataDirectory
directory = DataDirectory(sys.argv[1])
directory.lock()
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def data() -> Iterator[Path]:
    """A directory that all users may look into, and a process that has its lock as `up` has."""
    path = Path(tempfile.mkdtemp(prefix="tidelog-elsewhere-"))
    path.chmod(0o755)
    command = [sys.executable, "-c", _HOLD, str(path)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        yield path
    finally:
        holder.communicate("", timeout=PATIENCE_S)
        shutil.rmtree(path)


def as_nobody(data: Path) -> str:
    """What another user hears of the process that runs the brokers."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            heard = str(DataDirectory(str(data)).holder())
        except click.ClickException as failure:
            heard = failure.message
        except BaseException as failure:
            heard = repr(failure)
        os.write(writing, heard.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        heard = answer.read()
    os.waitpid(child, 0)
    return heard


def test_another_user_is_told_who_runs_the_brokers(data: Path) -> None:
    assert as_nobody(data) == str(DataDirectory(str(data)).holder())


def test_a_directory_that_another_user_cannot_look_into_is_not_called_unused(data: Path) -> None:
    data.chmod(0o700)
    assert "it cannot be seen whether a process uses" in as_nobody(data)


def test_brokers_of_another_container_are_left_alone(data: Path) -> None:
    """`down` gets no id of a process that it could signal. It must not signal its own process group."""

    def elsewhere(*words: str) -> subprocess.CompletedProcess[str]:
        command = ["unshare", "--pid", "--fork", sys.executable, "-m", "tidelog", *words, "--data", str(data)]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, start_new_session=True)

    stopped = elsewhere("down")
    assert (stopped.returncode, stopped.stdout) == (1, "")
    assert "outside of this container" in stopped.stderr
    shown = elsewhere("status")
    assert shown.returncode == 1
    assert "a process outside of this container is starting or stopping" in shown.stdout
    refused = elsewhere("up")
    assert refused.returncode == 1
    assert "a process outside of this container runs the brokers" in refused.stderr
