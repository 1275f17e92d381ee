"""`tidelog up` and `tidelog broker` as a user meets them: processes, signals, exit statuses, data that stays."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

DEADLINE_S = 30.0
TIDELOG = (sys.executable, "-m", "tidelog")


def free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    while True:
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
        others = [socket.socket() for _ in range(count)]
        try:
            for number, one in enumerate(others):
                one.bind(("127.0.0.1", port + number))
            return port
        except (OSError, OverflowError):
            continue
        finally:
            for one in others:
                one.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


class Up:
    def __init__(self, directory: Path, *options: str, brokers: int = 1) -> None:
        self.data = directory / "data"
        self.port = free_ports(brokers)
        self.bootstrap = f"127.0.0.1:{self.port}"
        self._output = directory / "output"
        self._options = [*options, "--brokers", str(brokers), "--port", str(self.port), "--data", str(self.data)]
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with open(self._output, "wb") as output:
            return subprocess.Popen([*TIDELOG, "up", *self._options], stdout=output, stderr=subprocess.STDOUT)

    def start_again(self) -> None:
        self.process = self._start()

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait_ready(self) -> None:
        until(lambda: "tidelog is up" in self.output or self.process.poll() is not None)
        assert "tidelog is up" in self.output, self.output

    def broker_pids(self) -> list[int]:
        found = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True, check=False
        )
        return [int(pid) for pid in found.stdout.split()]

    def run(self, *command: str, stdin: str = "") -> str:
        done = subprocess.run(
            [*TIDELOG, *command, "--bootstrap", self.bootstrap],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)


@pytest.fixture
def started() -> Iterator[list[Up]]:
    """Every cluster a test starts, so that none outlives it."""
    clusters: list[Up] = []
    yield clusters
    for cluster in clusters:
        if cluster.process.poll() is None:
            cluster.stop()


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_data_is_kept_over_a_clean_stop(tmp_path: Path, started: list[Up], number: int):
    up = Up(tmp_path)
    started.append(up)
    up.wait_ready()
    up.run("topics", "create", "orders", "--partitions", "2")
    up.run("produce", "orders", stdin="a\nb\nc\n")
    assert up.stop(number) == 0
    assert (up.data / "broker-1" / ".kafka_cleanshutdown").exists()
    up.start_again()
    up.wait_ready()
    assert sorted(up.run("consume", "orders").split()) == ["a", "b", "c"]


def test_a_broker_that_dies_is_reported_and_not_started_again(tmp_path: Path, started: list[Up]):
    up = Up(tmp_path, brokers=2)
    started.append(up)
    up.wait_ready()
    os.kill(up.broker_pids()[0], signal.SIGKILL)
    until(lambda: re.search(r"broker \d was killed by SIGKILL", up.output) is not None)
    assert len(up.broker_pids()) == 1
    assert up.stop() == 1
    assert "again" not in up.output


def test_with_restart_it_is_started_again_with_its_data(tmp_path: Path, started: list[Up]):
    up = Up(tmp_path, "--restart")
    started.append(up)
    up.wait_ready()
    up.run("topics", "create", "orders")
    up.run("produce", "orders", stdin="a\n")
    os.kill(up.broker_pids()[0], signal.SIGKILL)
    until(lambda: "broker 1 is ready again" in up.output)
    assert up.run("consume", "orders").split() == ["a"]
    assert up.stop() == 0


def test_brokers_do_not_outlive_up(tmp_path: Path, started: list[Up]):
    up = Up(tmp_path)
    started.append(up)
    up.wait_ready()
    pids = up.broker_pids()
    up.process.kill()
    up.process.wait()
    until(lambda: all(map(gone, pids)))


def test_several_brokers_find_each_other(tmp_path: Path, started: list[Up]):
    up = Up(tmp_path, brokers=3)
    started.append(up)
    up.wait_ready()
    up.run("topics", "create", "orders", "--partitions", "6")
    described = up.run("topics", "describe", "orders", "--json")
    assert {int(leader) for leader in re.findall(r'"leader": ?(\d+)', described)} == {1, 2, 3}
    assert up.stop() == 0


@pytest.mark.long
def test_settings_reach_the_brokers_and_bad_ones_are_an_error_at_start(tmp_path: Path, started: list[Up]):
    up = Up(tmp_path, "--set", "num.partitions=4")
    started.append(up)
    up.wait_ready()
    up.run("topics", "create", "orders")
    assert "4" in up.run("topics", "list", "--json")
    assert up.stop() == 0
    (tmp_path / "bad").mkdir()
    bad = Up(tmp_path / "bad", "--set", "num.partitions=none")
    started.append(bad)
    assert bad.process.wait(DEADLINE_S) == 2
    assert "num.partitions" in bad.output


def test_a_taken_port_is_an_error_that_names_it(tmp_path: Path, started: list[Up]):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = tmp_path / "server.properties"
        config.write_text(f"broker.id=1\nlisteners=PLAINTEXT://127.0.0.1:{port}\nlog.dirs={tmp_path}/logs\n")
        done = subprocess.run(
            [*TIDELOG, "broker", "--config", str(config)],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    assert done.returncode == 1
    used = f"cannot start: port {port} of 127.0.0.1 is in use by process {os.getpid()}; "
    assert f"{used}end it, or name another port in listeners" in done.stderr
    assert "Errno" not in done.stderr


@pytest.mark.parametrize("name", ["broker.id", "node.id"])
@pytest.mark.parametrize("number", ["abc", "-5", "99999999999"])
def test_a_bad_broker_id_is_told_once(tmp_path: Path, name: str, number: str):
    config = tmp_path / "server.properties"
    config.write_text(f"{name}={number}\nlog.dirs={tmp_path}/logs\n")
    done = subprocess.run(
        [*TIDELOG, "broker", "--config", str(config)], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: Invalid value {number} for configuration ")
    assert done.stderr.count("\n") == 1
    assert number == "-5" or name in done.stderr


def test_who_waits_for_zookeeper_says_so(tmp_path: Path, started: list[Up]):
    """Port 1 refuses; the first try would be over after 18 s."""
    up = Up(tmp_path, "--zookeeper", "127.0.0.1:1")
    started.append(up)
    until(lambda: "waiting for" in up.output or up.process.poll() is not None)
    where = "broker 1: warning: waiting for ZooKeeper at 127.0.0.1:1 (zookeeper.connect)"
    assert f"{where}: 127.0.0.1:1: Connection refused\n" in up.output
    assert "opened a session within" not in up.output


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ("listeners=SSL://127.0.0.1:0", "SSL"),
        ("listeners=SASL_PLAINTEXT://127.0.0.1:0", "SASL_PLAINTEXT"),
        ("authorizer.class.name=kafka.security.authorizer.AclAuthorizer", "authorizer.class.name"),
        ("log.segment.bytes=small", "log.segment.bytes"),
        ("process.roles=broker", "process.roles"),
    ],
)
def test_a_broker_refuses_to_start_with(tmp_path: Path, lines: str, named: str):
    config = tmp_path / "server.properties"
    config.write_text(f"broker.id=1\nlog.dirs={tmp_path}/logs\n{lines}\n")
    done = subprocess.run(
        [*TIDELOG, "broker", "--config", str(config)], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 1
    assert named in done.stderr
    assert "Traceback" not in done.stderr
