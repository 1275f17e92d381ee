"""`tidelog pipeline` where it cannot go on: it says for what it waits, and ends when --timeout says."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("yaml")
pytestmark = [pytest.mark.jvm, pytest.mark.timeout(120)]


def pipeline(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tidelog", "pipeline", *words]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    assert pipeline(tmp_path, "init", "shop").returncode == 0
    return tmp_path / "shop"


def test_brokers_that_are_away_are_told_before_spark_starts(project: Path) -> None:
    begun = time.monotonic()
    result = pipeline(project, "run", "--bootstrap", "127.0.0.1:1")
    assert result.returncode == 1
    assert result.stderr.startswith("Error: no broker answers at 127.0.0.1:1 (cannot connect")
    assert time.monotonic() - begun < 20
    assert not (project / ".tidelog" / "spark.log").exists()


def test_a_run_says_for_which_broker_it_waits_and_ends_in_time(project: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        server = f"127.0.0.1:{silent.getsockname()[1]}"
        result = pipeline(project, "run", "--bootstrap", server, "--timeout", "4")
    assert result.returncode == 1
    waiting, error = result.stderr.splitlines()
    assert waiting == f"waiting: bootstrap: {server} does not answer a new connection"
    assert error.startswith(f"Error: no broker answers at {server} ({server} did not answer ApiVersions within")


def test_a_dry_run_ends_in_time_though_spark_has_not_started(project: Path) -> None:
    result = pipeline(project, "dry-run", "--timeout", "1")
    assert (result.returncode, result.stderr.splitlines()[-1]) == (1, "Error: not done after 1 s")
    assert processes_with(str(project)) == [], "Spark is ended too"


def processes_with(text: str) -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if text.encode() in file.read_bytes():
                found.append(file.parent.name)
    return found
