"""Frameworks for stream applications, each with an application as its users write it (tools/python) and run it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from driver import Driver

from peers import python_tools
from peers.app import App
from peers.python_tools import PythonTool

_NO_STATE = "FastStream keeps no state"


@dataclass(frozen=True, slots=True)
class Work:
    """What an application does: which of them it is, what it reads and writes, and the group it is in."""

    application: str
    group: str
    orders: str
    answers: str


class Framework(Driver):
    """One framework; its applications may keep state in a directory, which outlives them."""

    tool: ClassVar[PythonTool]

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="framework-")

    def close(self) -> None:
        self._directory.cleanup()

    def version(self) -> str:
        return self.tool.version()

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def settings(self) -> Mapping[str, str]:
        """For its environment."""
        return {}

    def start(self, work: Work, disk: str = "disk") -> App:
        """A run of the application, with the state that an earlier run left on that disk."""
        # Names are used again on the next broker, which must not meet the state of this one.
        state = Path(self._directory.name) / self.bootstrap.replace(":", "-") / f"{work.group}-{disk}"
        state.mkdir(parents=True, exist_ok=True)
        environment = python_tools.environment(
            BOOTSTRAP=self.bootstrap,
            APPLICATION=work.application,
            GROUP=work.group,
            ORDERS=work.orders,
            ANSWERS=work.answers,
            STATE=str(state),
            **self.settings(),
        )
        return App(self.command(), environment, state / "output")


class FastStream(Framework):
    name: ClassVar[str] = "FastStream on aiokafka"
    lacks: ClassVar[Mapping[str, str]] = {
        "state-is-restored": _NO_STATE,
        "windows": _NO_STATE,
    }
    tool = python_tools.FASTSTREAM
    client: ClassVar[str] = "aiokafka"

    def version(self) -> str:
        return f"{self.tool.version()} with {self._client_name()} {self.tool.version(self._client_name())}"

    def _client_name(self) -> str:
        return {"aiokafka": "aiokafka", "confluent": "confluent-kafka"}[self.client]

    def command(self) -> Sequence[str]:
        program = self.tool.program("faststream")
        return [program, "run", "--app-dir", str(self.tool.sources), "orders:app"]

    def settings(self) -> Mapping[str, str]:
        return {"CLIENT": self.client}


class FastStreamConfluent(FastStream):
    name: ClassVar[str] = "FastStream on confluent-kafka"
    client = "confluent"


class QuixStreams(Framework):
    name: ClassVar[str] = "Quix Streams"
    lacks: ClassVar[Mapping[str, str]] = {"lots": "it hands on one record at a time"}
    tool = python_tools.QUIX_STREAMS

    def command(self) -> Sequence[str]:
        return [self.tool.program(), str(self.tool.sources / "orders.py")]
