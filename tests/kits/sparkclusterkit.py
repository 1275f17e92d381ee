"""Spark in processes of its own: a standalone cluster from the pyspark wheel, and drivers, to be killed.

Everything started here, and what that starts, carries a mark in its environment. So who is left behind can be told.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tidelog
from tests.kits.processkit import free_port
from tests.kits.spark_driver import JAVA_OPTIONS

WORKERS = 2
MASTER_CLASS = "org.apache.spark.deploy.master.Master"
WORKER_CLASS = "org.apache.spark.deploy.worker.Worker"
EXECUTOR_CLASS = "CoarseGrainedExecutorBackend"

_ROOT = Path(__file__).parents[2]
_MARK = "TIDELOG_SPARK_TEST"
_ANSWER_S = 120.0
_END_S = 20.0


def wait_for_spark(condition: Callable[[], bool], what: str) -> None:
    """As wait_for does, but longer: on a busy machine a JVM takes its time for the first query."""
    deadline = time.monotonic() + _ANSWER_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.05)


def marked_processes(mark: str) -> list[int]:
    """Those with this mark that run still."""
    wanted = f"{_MARK}={mark}".encode()
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (directory / "environ").read_bytes().split(b"\0"):
                found.append(int(directory.name))
    return found


def parent(pid: int) -> int:
    """0 if there is none, or the process is gone."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


def spark_environment(mark: str) -> dict[str, str]:
    """Paths are absolute, as executors work in directories of their own. Nothing listens beyond this machine."""
    import pyspark

    paths = [str(Path(tidelog.__file__).parents[1]), str(_ROOT)]
    return {
        **os.environ,
        _MARK: mark,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS,
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
    }


class MarkedProcess:
    """A process with all that it started; it leads a process group, in which most of them are."""

    def __init__(self, command: Sequence[str], directory: Path, name: str, **popen: Any) -> None:
        self.mark = uuid.uuid4().hex
        self._log = directory / f"{name}.log"
        with open(self._log, "ab") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, **popen}
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                command, stderr=log, env=spark_environment(self.mark), cwd=directory, start_new_session=True, **streams
            )

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """The whole group at once, as kill -9 does; the rest ends by itself when it hears of that."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        try:
            wait_for_spark(lambda: not marked_processes(self.mark), "the end of all that the process started")
        finally:
            for pid in marked_processes(self.mark):
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """In good order if it will."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_S)
        self.kill()


class SparkCluster:
    """A master and two workers with a core each; every application gets an executor on each worker."""

    def __init__(self, directory: Path) -> None:
        self._spark_class = str(Path(spark_environment("")["SPARK_HOME"]) / "bin" / "spark-class")
        self._directory = directory
        self._page = f"http://127.0.0.1:{free_port()}/json/"
        self.master = f"spark://127.0.0.1:{free_port()}"
        self._processes: list[MarkedProcess] = []

    def start(self) -> None:
        self._start("master", MASTER_CLASS, self.master.rpartition(":")[2], self._page.split(":")[2].partition("/")[0])
        for number in range(WORKERS):
            work = ["--cores", "1", "--memory", "1g", "--work-dir", str(self._directory / f"work-{number}")]
            self._start(f"worker-{number}", WORKER_CLASS, str(free_port()), "0", *work, self.master)
        wait_for_spark(lambda: self._state().get("aliveworkers") == WORKERS, "the workers of the Spark cluster")

    def _start(self, name: str, class_name: str, port: str, page_port: str, *more: str) -> None:
        listen = ["--host", "127.0.0.1", "--port", port, "--webui-port", page_port]
        self._processes.append(MarkedProcess([self._spark_class, class_name, *listen, *more], self._directory, name))

    def _state(self) -> dict[str, Any]:
        """As the master tells it; empty while it does not."""
        assert all(one.process.poll() is None for one in self._processes), self.log
        try:
            with urllib.request.urlopen(self._page, timeout=5) as answer:
                state: dict[str, Any] = json.load(answer)
                return state
        except (OSError, ValueError):  # while it starts, it has another page there, which is no JSON
            return {}

    @property
    def log(self) -> str:
        return "\n".join(one.log for one in self._processes)

    def executors(self) -> list[int]:
        """The process ids of all executors, of whichever application."""
        workers = {one.process.pid for one in self._processes[1:]}
        return [pid for one in self._processes[1:] for pid in marked_processes(one.mark) if _is_executor(pid, workers)]

    def executor_of(self, pid: int) -> int:
        """The executor that a Python process works for."""
        executors = self.executors()
        while pid and pid not in executors:
            pid = parent(pid)
        assert pid, "this process works for no executor"
        return pid

    def kill_executor(self, pid: int) -> None:
        assert pid in self.executors()
        os.kill(pid, signal.SIGKILL)
        wait_for_spark(lambda: pid not in self.executors(), "the end of the executor")

    def close(self) -> None:
        """Workers first, which end their executors."""
        for one in reversed(self._processes):
            one.end()


def _is_executor(pid: int, workers: set[int]) -> bool:
    with contextlib.suppress(OSError):
        return parent(pid) in workers and EXECUTOR_CLASS in Path(f"/proc/{pid}/cmdline").read_text()
    return False


@contextlib.contextmanager
def spark_cluster(directory: Path) -> Iterator[SparkCluster]:
    """Afterwards nothing of it is left."""
    cluster = SparkCluster(directory)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


def read_totals(path: Path) -> tuple[int, dict[int, list[int]]]:
    """What tests/kits/spark_driver.py wrote down: a micro-batch and the totals after it; -1 if there is none yet."""
    try:
        told = json.loads(path.read_text())
    except FileNotFoundError:
        return -1, {}
    return told["batch"], {int(partition): total for partition, total in told["totals"].items()}


class SparkDriver:
    """A driver in a process of its own (tests/kits/spark_driver.py), which does what it is called for."""

    def __init__(self, directory: Path, master: str, servers: str) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "tests.kits.spark_driver", master, str(directory), servers]
        self._run = MarkedProcess(command, directory, "driver", stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def call(self, job: str, **arguments: Any) -> Any:
        """What the job returns; what it raised, as an assertion."""
        told, heard = self._run.process.stdin, self._run.process.stdout
        assert told is not None
        assert heard is not None
        told.write(json.dumps([job, arguments]).encode() + b"\n")
        told.flush()
        is_answered, _, _ = select.select([heard], [], [], _ANSWER_S)
        line = heard.readline() if is_answered else b""
        assert line, f"the driver did not answer {job}:\n{self._run.log[-4000:]}"
        answer: Mapping[str, Any] = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    @property
    def totals(self) -> tuple[int, dict[int, list[int]]]:
        """The last micro-batch of which the query gave its totals, and these."""
        return read_totals(self.directory / "totals.json")

    def wait_for_batch(self, number: int) -> None:
        def is_there() -> bool:
            assert self._run.process.poll() is None, self._run.log[-4000:]
            return self.totals[0] >= number

        wait_for_spark(is_there, f"micro-batch {number}")

    def kill(self) -> None:
        self._run.kill()

    def close(self) -> None:
        self._run.end()


@contextlib.contextmanager
def spark_driver(directory: Path, master: str, servers: str) -> Iterator[SparkDriver]:
    driver = SparkDriver(directory, master, servers)
    try:
        yield driver
    finally:
        driver.close()
