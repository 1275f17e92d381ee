"""Spark for one pipeline: a driver in a JVM of its own, with the Spark Connect server that pipelines need in it.

`spark-pipelines` would start the same through spark-submit. Here the server takes a free port and a token that nobody
else knows, its catalog stays in the project from run to run, and all it prints goes to a file.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tidelog.host.clock import system_random
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.project import Project
from tidelog.spark.building import ARROW
from tidelog.spark.java_options import DRIVER, EXECUTOR, beside_users, joined

_CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"
_SERVICE = "org.apache.spark.sql.connect.service.SparkConnectService$"
_MEMORY = "1g"
_LAST_LINES = 5
_STOP_S = 60


def spark_settings(project: Project, token: str) -> dict[str, str]:
    """What the driver is started with. What the project's spec configures goes before it."""
    log4j = project.own / "log4j2.properties"
    catalog = project.own / "catalog"
    java = f"-Dlog4j2.configurationFile={log4j.as_uri()} -Dderby.stream.error.file={project.own / 'derby.log'}"
    java_options = {DRIVER: f"{ARROW} {java}", EXECUTOR: ARROW}
    in_spec = {
        name: joined(ours, project.configuration[name])
        for name, ours in java_options.items()
        if name in project.configuration
    }
    return {
        "spark.driver.memory": _MEMORY,
        # A table that one run made must be known to the next one.
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": project.warehouse.as_uri(),
        "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={catalog};create=true",
        **{name: value for name, value in project.configuration.items() if name.startswith("spark.")},
        # Beside the user's own options, which come from the spec or from Spark's own settings, and are kept.
        **beside_users(java_options),
        **in_spec,
        "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.connect.authenticate.token": token,
        "spark.sql.connect.serverStacktrace.enabled": "false",
    }


LOG4J = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yy-MM-dd HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""


@contextlib.contextmanager
def spark_connect(project: Project, master: str, held: Sequence[int] = ()) -> Iterator[Any]:
    """A Spark Connect session on `master`; Spark ends with it.

    `held` are the descriptors of locks. The driver inherits them, so that they are held for as long as it runs, even
    if this process is killed.
    """
    import tidelog.spark

    project.own.mkdir(parents=True, exist_ok=True)
    (project.own / "log4j2.properties").write_text(LOG4J.format(file=project.spark_log), encoding="utf-8")
    _make_python_path_absolute()
    token = f"{system_random().getrandbits(128):032x}"
    builder = tidelog.spark.session(project.name, master)
    for name, value in spark_settings(project, token).items():
        builder = builder.config(name, value)
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    with contextlib.ExitStack() as stack:
        try:
            with _printing_to(project.spark_log):
                with _undisturbed():
                    stack.callback(_end_jvm, _started_jvm(builder, held))
                driver = builder.getOrCreate()
        except (PySparkException, Py4JJavaError) as failure:
            raise PipelineError(f"Spark did not start on {master}: {_why(failure, project.spark_log)}") from failure
        stack.callback(driver.stop)
        yield stack.enter_context(_connected(driver, token))


@contextlib.contextmanager
def _connected(driver: Any, token: str) -> Iterator[Any]:
    """While it lasts, pyspark's functions are those of Spark Connect: transformations call them."""
    from pyspark.sql.connect.session import SparkSession

    port = getattr(driver._jvm, _SERVICE).__getattr__("MODULE$").localPort()
    os.environ[_CONNECT_MODE] = "1"
    try:
        # By this name only: with a token Spark talks TLS to any other host.
        session = SparkSession.builder.remote(f"sc://localhost:{port}/;token={token}").getOrCreate()
        try:
            yield session
        finally:
            session.stop()
    finally:
        os.environ.pop(_CONNECT_MODE, None)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C, or the end of the time that a run has, is heeded afterwards: else a JVM that was just started would
    outlive this process. Other threads may be there, so to block the signals in this one is not enough."""
    caught: list[int] = []
    before = {}
    with contextlib.suppress(ValueError):  # another thread than the main one hears of no signal
        for signal_number in (signal.SIGINT, signal.SIGALRM):
            before[signal_number] = signal.signal(signal_number, lambda number, frame: caught.append(number))
    try:
        yield
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)
    for number in caught:
        signal.raise_signal(number)


def _started_jvm(builder: Any, held: Sequence[int]) -> Any:
    """What pyspark would start itself for the builder's session, which finds it; that one would inherit nothing.

    Java gives no descriptor on to the Python workers that it starts. They end with it: it holds their other end.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf().setAll(list(builder._options.items()))
    gateway = launch_gateway(conf, {"pass_fds": tuple(held)})  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(gateway=gateway)
    return gateway


def _end_jvm(gateway: Any) -> None:
    """pyspark keeps the JVM for the next session of this process, which would have this one's settings."""
    from pyspark import SparkContext

    gateway.shutdown()
    SparkContext._gateway = None
    SparkContext._jvm = None
    process = gateway.proc
    process.stdin.close()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _make_python_path_absolute() -> None:
    """Spark's Python workers run in directories of their own."""
    if path := os.environ.get("PYTHONPATH"):
        os.environ["PYTHONPATH"] = os.pathsep.join(os.path.abspath(part) for part in path.split(os.pathsep) if part)


@contextlib.contextmanager
def _printing_to(file: Path) -> Iterator[None]:
    """Processes that are started now, the JVM and through it the Python workers, print to that file."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {fd: os.dup(fd) for fd in (1, 2)}
    with open(file, "wb") as log:
        for fd in kept:
            os.dup2(log.fileno(), fd)
    try:
        yield
    finally:
        for fd, original in kept.items():
            os.dup2(original, fd)
            os.close(original)


def _why(failure: Exception, log: Path) -> str:
    """Where the JVM died before it could say anything, its last words."""
    said = str(failure).strip().splitlines()
    first = next((line for line in said if line.strip()), type(failure).__name__)
    with contextlib.suppress(OSError):
        last = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LAST_LINES:]
        return "\n".join([first, *last])
    return first
