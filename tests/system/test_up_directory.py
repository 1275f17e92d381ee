"""`tidelog up`, `down` and `status` share a data directory: how many brokers it has, and who runs them."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

TIDELOG = (sys.executable, "-m", "tidelog")
DEADLINE_S = 60.0


def tidelog(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*TIDELOG, *words], capture_output=True, text=True, timeout=DEADLINE_S, check=False)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[str]:
    directory = str(tmp_path / "data")
    yield directory
    tidelog("down", "--data", directory)


def start(data: str, *words: str) -> str:
    done = tidelog("up", "--detach", "--data", data, "--port", "0", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def status(data: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(tidelog("status", "--data", data, "--json").stdout)
    return told


def snapshot(data: str) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path(data).glob("*") if path.is_file()}


def test_a_detached_cluster_is_shown_and_stopped(data: str) -> None:
    said = start(data)
    running = status(data)
    assert running["bootstrap"] in said
    assert [broker["runs"] for broker in running["brokers"]] == [True]
    made = tidelog("topics", "create", "orders", "--bootstrap", running["bootstrap"])
    assert made.returncode == 0, made.stderr
    shown = tidelog("status", "--data", data)
    assert shown.returncode == 0
    assert running["bootstrap"] in shown.stdout
    assert tidelog("down", "--data", data).returncode == 0
    assert (Path(data) / "broker-1" / ".kafka_cleanshutdown").exists()
    after = tidelog("status", "--data", data)
    assert after.returncode == 3
    assert "nothing is running" in after.stdout
    again = tidelog("down", "--data", data)
    assert again.returncode == 0
    assert "nothing is running" in again.stdout


def test_a_second_up_changes_nothing_and_says_who_runs(data: str) -> None:
    start(data)
    running, before = status(data), snapshot(data)
    second = tidelog("up", "--data", data, "--port", "0", "--brokers", "3", "--set", "num.partitions=7")
    assert second.returncode == 1
    assert f"process {running['process']}" in second.stderr
    assert running["bootstrap"] in second.stderr
    assert snapshot(data) == before
    assert status(data) == running


def test_a_directory_remembers_its_brokers(data: str) -> None:
    start(data, "--brokers", "2")
    assert tidelog("down", "--data", data).returncode == 0
    fewer = tidelog("up", "--data", data, "--port", "0", "--brokers", "1")
    assert fewer.returncode == 1
    assert "has 2 brokers" in fewer.stderr
    assert "--fewer" in fewer.stderr
    start(data)
    assert len(status(data)["brokers"]) == 2
    assert tidelog("down", "--data", data).returncode == 0
    start(data, "--brokers", "1", "--fewer")
    assert len(status(data)["brokers"]) == 1
    assert tidelog("down", "--data", data).returncode == 0
    (Path(data) / "cluster.json").unlink()  # a directory of an earlier version
    start(data)
    assert len(status(data)["brokers"]) == 2


def test_a_directory_forgets_a_broker_without_files(data: str) -> None:
    start(data, "--brokers", "2")
    assert tidelog("down", "--data", data).returncode == 0
    shutil.rmtree(Path(data) / "broker-2")
    assert "has 2 brokers" in tidelog("up", "--data", data, "--port", "0", "--brokers", "1").stderr
    (Path(data) / "broker-2.properties").unlink()
    assert "has 2 brokers" in tidelog("up", "--data", data, "--port", "0", "--brokers", "1").stderr
    start(data, "--brokers", "1", "--fewer")
    assert tidelog("down", "--data", data).returncode == 0
    (Path(data) / "broker-2").mkdir()  # where a disk is to be mounted
    start(data)
    assert len(status(data)["brokers"]) == 1


def test_one_broker_is_stopped_and_comes_back_by_hand(data: str) -> None:
    start(data, "--brokers", "2")
    supervisor = status(data)["process"]
    assert "is not running" in tidelog("down", "--data", data, "--broker", "3").stdout
    assert "stopped broker 2" in tidelog("down", "--data", data, "--broker", "2").stdout
    assert tidelog("status", "--data", data).returncode == 1
    until(lambda: "broker 2 was stopped. This brings it back:" in (Path(data) / "up.log").read_text())
    said = (Path(data) / "up.log").read_text()
    command = shlex.split(said.partition("This brings it back: ")[2].splitlines()[0])
    with subprocess.Popen([*TIDELOG, *command[1:]]) as by_hand:
        try:
            until(lambda: tidelog("status", "--data", data).returncode == 0)
            rows = status(data)["brokers"]
            assert [(row["broker"], row["by_hand"]) for row in rows] == [(1, False), (2, True)]
            assert rows[1]["process"] == by_hand.pid
            os.kill(supervisor, signal.SIGINT)
            until(lambda: status(data)["process"] is None)
            said = (Path(data) / "up.log").read_text()
            assert (
                f"stopped\nbroker 2, which was started by hand, goes on; `tidelog down --data {data}` stops it" in said
            )
            alone = status(data)
            assert [row["broker"] for row in alone["brokers"]] == [2]
            assert alone["bootstrap"] == rows[1]["address"]
            assert tidelog("status", "--data", data).returncode == 1
            again = tidelog("up", "--data", data, "--port", "0")
            assert again.returncode == 1
            assert f"broker 2 of {data} runs already, as process {by_hand.pid}" in again.stderr
            stopped = tidelog("down", "--data", data)
            assert "with broker 2 that ran without" in stopped.stdout
            assert by_hand.wait(DEADLINE_S) == 0
        finally:
            by_hand.kill()
    assert tidelog("status", "--data", data).returncode == 3


def test_one_broker_that_is_stopped_comes_back_by_itself(data: str) -> None:
    start(data, "--restart")
    before = status(data)["brokers"][0]["process"]
    assert tidelog("down", "--data", data, "--broker", "1").returncode == 0
    until(lambda: [row["process"] != before and row["runs"] for row in status(data)["brokers"]] == [True])
    assert tidelog("down", "--data", data).returncode == 0
    assert "broker 1 was stopped; it is started again" in (Path(data) / "up.log").read_text()


def test_more_brokers_offer_more_replicas(data: str) -> None:
    assert "reassign" not in start(data)
    made = tidelog("topics", "create", "orders", "--partitions", "2", "--bootstrap", status(data)["bootstrap"])
    assert made.returncode == 0, made.stderr
    assert tidelog("down", "--data", data).returncode == 0
    said = start(data, "--brokers", "2")
    offered = said[said.index("tidelog reassign --replication-factor 2 --all") :].split()
    done = tidelog(*offered[1:], "--wait")
    assert done.returncode == 0, done.stderr
    bootstrap = ("--bootstrap", status(data)["bootstrap"])
    described = json.loads(tidelog("topics", "describe", "orders", "--json", *bootstrap).stdout)
    assert [sorted(partition["isr"]) for partition in described["detail"]] == [[1, 2], [1, 2]]
    assert {partition["replicas"][0] for partition in described["detail"]} == {1, 2}
    again = tidelog("reassign", "--replication-factor", "2", "--all", *bootstrap)
    assert "have these replicas already" in again.stdout
    assert "living brokers" in tidelog("reassign", "--replication-factor", "3", "--all", *bootstrap).stderr


def test_a_killed_supervisor_leaves_a_directory_that_can_be_used(data: str) -> None:
    start(data)
    running = status(data)
    os.kill(running["process"], signal.SIGKILL)
    until(lambda: tidelog("status", "--data", data).returncode == 3)
    start(data)
    assert status(data)["process"] != running["process"]


def test_status_tells_a_broker_that_died(data: str) -> None:
    start(data, "--brokers", "2")
    os.kill(status(data)["brokers"][0]["process"], signal.SIGKILL)
    until(lambda: [broker["runs"] for broker in status(data)["brokers"]] == [False, True])
    assert tidelog("status", "--data", data).returncode == 1
    said = (Path(data) / "up.log").read_text()
    until(lambda: "broker 1 was killed by SIGKILL" in (Path(data) / "up.log").read_text())
    assert "Traceback" not in said
    assert tidelog("down", "--data", data).returncode == 0
    said = (Path(data) / "up.log").read_text()
    assert said.endswith("\nstopped\n"), "the other broker was, cleanly"
    assert "goes on" not in said


def test_the_ready_file_names_addresses_and_goes_with_the_cluster(data: str, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    start(data, "--ready-file", str(ready))
    told = json.loads(ready.read_text())
    assert told["bootstrap"] == status(data)["bootstrap"]
    host, _, port = told["bootstrap"].partition(":")
    socket.create_connection((host, int(port)), timeout=5).close()
    tidelog("down", "--data", data)
    until(lambda: not ready.exists())


def test_a_port_in_use_is_told_in_one_line(data: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = tidelog("up", "--data", data, "--port", str(port))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert f"port {port}" in done.stderr
    assert f"is in use by process {os.getpid()};" in done.stderr
    assert "--port" in done.stderr


@pytest.mark.parametrize("there", ["nothing", "a parent", "an empty directory", "a file"])
def test_a_start_that_fails_leaves_a_directory_as_it_was(tmp_path: Path, there: str) -> None:
    data = tmp_path / "parent" / "data"
    if there != "nothing":
        (data.parent if there == "a parent" else data).mkdir(parents=True)
    if there == "a file":
        (data / "mine").write_text("")
    before = sorted(tmp_path.rglob("*"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = tidelog("up", "--data", str(data), "--port", str(taken.getsockname()[1]))
    assert "is in use by process" in done.stderr
    assert sorted(tmp_path.rglob("*")) == before
    for words in (("up",), ("up", "--detach")):
        bad = tidelog(*words, "--data", str(data), "--port", "0", "--set", "num.partitions=abc")
        assert bad.returncode == 2
        assert "num.partitions: Not a number of type INT" in bad.stderr
        assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "num.partition=3"], "did you mean num.partitions?"),
        (["--set", "retention.ms=3"], "log.retention.ms"),
        (["--set", "num.partitions=many"], "num.partitions"),
        (["--set", "num.partitions"], "KEY=VALUE"),
        (["--host", "0.0.0.0"], "--advertise"),
        (
            ["--host", "198.51.100.1"],
            "198.51.100.1 cannot be listened on: it is no address of this machine; try another",
        ),
        (["--host", "nobody.invalid"], "nobody.invalid cannot be listened on: no address is known for this name"),
        (["--data", ""], "the name of the directory is empty"),
        (["--ready-file", "nowhere/ready.json"], "--ready-file"),
        (["--brokers", "0"], "--brokers"),
        (["--port", "65535", "--brokers", "2"], "65535"),
    ],
)
def test_mistakes_are_told_before_anything_starts(data: str, words: list[str], said: str) -> None:
    done = tidelog("up", "--data", data, "--port", "0", *words)
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (Path(data) / "broker-1.log").exists()


def test_a_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for words in (["up", "--port", "0"], ["up", "--detach", "--port", "0"]):
        done = tidelog(*words, "--data", str(tmp_path / "file" / "data"))
        assert done.returncode == 1
        assert "cannot be used" in done.stderr
        assert "Traceback" not in done.stderr


def test_clients_are_told_the_advertised_host(data: str) -> None:
    start(data, "--host", "0.0.0.0", "--advertise", "localhost")
    bootstrap = status(data)["bootstrap"]
    assert bootstrap.startswith("localhost:")
    described = tidelog("cluster", "describe", "--json", "--bootstrap", f"127.0.0.1:{bootstrap.partition(':')[2]}")
    assert json.loads(described.stdout)["brokers"][0]["address"] == bootstrap


def test_a_clean_start_and_stop_raise_no_alarm(data: str) -> None:
    start(data, "--brokers", "2")
    assert tidelog("down", "--data", data).returncode == 0
    said = (Path(data) / "up.log").read_text()
    assert "stopped" in said
    assert "warning" not in said
    assert "error" not in said
    for number in (1, 2):
        log = (Path(data) / f"broker-{number}.log").read_text()
        assert "WARNING" not in log
        assert "ERROR" not in log


def test_what_a_broker_warns_of_is_shown_by_up(data: str) -> None:
    said = start(data, "--host", "0.0.0.0", "--advertise", "127.0.0.1")
    assert "broker 1: warning:" in said
    assert "trusted network" in said
