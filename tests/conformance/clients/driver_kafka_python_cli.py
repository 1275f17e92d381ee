"""kafka-python's command line: `python -m kafka.admin`, `kafka.producer` and `kafka.consumer`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from driver import ClientError, Driver
from driver_kafka_python import KafkaPython

from peers.app import App
from peers.python_tools import environment

_DEADLINE_S = 30.0


class KafkaPythonCommands(Driver):
    """Each call is a process, as for who types it. It comes from our own environment: tests need the library there."""

    name: ClassVar[str] = "kafka-python's commands"
    lacks: ClassVar[Mapping[str, str]] = {}

    def version(self) -> str:
        return KafkaPython().version()

    def admin(self, *arguments: str, as_json: bool = True) -> Any:
        """What it printed; ClientError with its last line if it did not end well."""
        ran = self._run("admin", "--format", "json" if as_json else "raw", *arguments)
        if ran.returncode != 0:
            raise ClientError(-1, " ".join([*ran.stdout.splitlines(), *ran.stderr.splitlines()][-1:]))
        return json.loads(ran.stdout) if as_json else ran.stdout

    def produce_lines(self, topic: str, lines: Sequence[str]) -> None:
        ran = self._run("producer", "--topic", topic, given="".join(f"{line}\n" for line in lines))
        assert ran.returncode == 0, ran.stderr

    @contextmanager
    def console_consumer(self, topic: str, group: str) -> Iterator[App]:
        """It runs until it is interrupted."""
        options = ["--topic", topic, "--group", group, "-C", "auto_offset_reset=earliest", "--log-level", "CRITICAL"]
        command = self._command("consumer", *options)
        with tempfile.TemporaryDirectory() as directory, App(command, environment(), Path(directory) / "out") as app:
            yield app

    def _command(self, module: str, *arguments: str) -> list[str]:
        return [sys.executable, "-m", f"kafka.{module}", "--bootstrap-servers", self.bootstrap, *arguments]

    def _run(self, module: str, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        command = self._command(module, *arguments)
        return subprocess.run(
            command, input=given, env=environment(), capture_output=True, text=True, timeout=_DEADLINE_S, check=False
        )
