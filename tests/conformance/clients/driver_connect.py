"""Kafka Connect: a worker that stays up for all cases on one broker, asked through its REST interface."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from driver import DEADLINE_S, Driver

from peers import home
from peers.connect import ConnectWorker

_CLASSES = "org.apache.kafka.connect.file.FileStream"


class KafkaConnect(Driver):
    name: ClassVar[str] = "Kafka Connect"
    lacks: ClassVar[Mapping[str, str]] = {}
    group = "connect-workers"

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="connect-")
        self._worker: ConnectWorker | None = None
        self._asked = ""

    def version(self) -> str:
        return home.KAFKA_KRAFT

    def file(self, name: str) -> Path:
        """Names are used again on the next broker, which must not meet the files of this one."""
        directory = Path(self._directory.name) / self.bootstrap.replace(":", "-")
        directory.mkdir(exist_ok=True)
        return directory / name

    @property
    def worker(self) -> ConnectWorker:
        """That of the broker in question."""
        if self._worker is None or self._asked != self.bootstrap:
            if self._worker is not None:
                self._worker.kill()  # its broker is gone, and it would wait for that
            self._asked = self.bootstrap
            self._worker = ConnectWorker(self.file("worker"), self.bootstrap, self.group)
            self._worker.start()
        return self._worker

    def source(self, name: str, topic: str, file: Path) -> None:
        self._create(name, "SourceConnector", {"topic": topic, "file": str(file)})

    def sink(self, name: str, topic: str, file: Path) -> None:
        reset = {"consumer.override.auto.offset.reset": "earliest"}
        self._create(name, "SinkConnector", {"topics": topic, "file": str(file), **reset})

    def _create(self, name: str, kind: str, config: Mapping[str, str]) -> None:
        whole = {"connector.class": f"{_CLASSES}{kind}", "tasks.max": "1", **config}
        self.worker.ask("POST", "/connectors", {"name": name, "config": whole})

    def states(self, name: str) -> list[str]:
        """That of the connector, and of each task."""
        told: Any = self.worker.ask("GET", f"/connectors/{name}/status")
        return [told["connector"]["state"], *(task["state"] for task in told["tasks"])]

    def close(self) -> None:
        self._end()
        self._directory.cleanup()

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.stop(DEADLINE_S * 2)
            self._worker = None
