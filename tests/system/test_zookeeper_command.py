"""`tidelog zookeeper` as a user meets it."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from kazoo.client import KazooClient

from peers import home
from peers.process import free_port
from peers.zookeeper import is_serving
from tests.kits.processkit import wait_for
from tidelog.cli.main import main


@pytest.mark.jvm
def test_it_serves_and_keeps_what_it_was_told(tmp_path: Path) -> None:
    port, jars = free_port(), home.libs(home.KAFKA_ZOOKEEPER)
    command = [sys.executable, "-m", "tidelog", "zookeeper", "--port", str(port), "--jars", str(jars)]
    for round_number in range(2):
        with open(tmp_path / "output", "ab") as output:
            server = subprocess.Popen(
                [*command, "--data", str(tmp_path / "data")], stdout=output, stderr=subprocess.STDOUT
            )
        try:
            wait_for(lambda: is_serving(port), "ZooKeeper to serve")
            client = KazooClient(f"127.0.0.1:{port}")
            client.start(30)
            if round_number == 0:
                client.create("/kept", b"x")
            else:
                assert client.get("/kept")[0] == b"x"
            client.stop()
            client.close()
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(30)
    assert f"zookeeper.connect=127.0.0.1:{port}" in (tmp_path / "output").read_text()


def test_without_pyspark_it_says_where_jars_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = CliRunner().invoke(main, ["zookeeper"])
    assert done.exit_code == 1
    assert "pip install tidelog[spark]" in done.output
    assert "--jars" in done.output


def test_a_directory_without_the_jar_is_no_home_of_zookeeper(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["zookeeper", "--jars", str(tmp_path), "--data", str(tmp_path / "data")])
    assert done.exit_code == 1
    assert f"no zookeeper-*.jar in {tmp_path}" in done.output
    assert not (tmp_path / "data").exists()
