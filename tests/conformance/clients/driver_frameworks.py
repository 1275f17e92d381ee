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
_NO_LOTS = "it hands on one record at a time"


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
    ends_by_itself: ClassVar[bool] = False
    """Its applications end at the end of the topic instead of waiting for more."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="framework-")

    def close(self) -> None:
        self._directory.cleanup()

    def version(self) -> str:
        return self.tool.version()

    def command(self, state: Path) -> Sequence[str]:
        raise NotImplementedError

    def settings(self) -> Mapping[str, str]:
        """For its environment."""
        return {}

    def start(self, work: Work, disk: str = "disk") -> App:
        """A run of the application, with the state that an earlier run left on that disk."""
        state = Path(self._directory.name) / f"{work.group}-{disk}"
        state.mkdir(exist_ok=True)
        environment = python_tools.environment(
            BOOTSTRAP=self.bootstrap,
            APPLICATION=work.application,
            GROUP=work.group,
            ORDERS=work.orders,
            ANSWERS=work.answers,
            STATE=str(state),
            **self.settings(),
        )
        return App(self.command(state), environment, state / "output")


class FastStream(Framework):
    name: ClassVar[str] = "FastStream on aiokafka"
    lacks: ClassVar[Mapping[str, str]] = {
        "counts-after-restart": _NO_STATE,
        "state-is-restored": _NO_STATE,
        "windows": _NO_STATE,
    }
    tool = python_tools.FASTSTREAM
    client: ClassVar[str] = "aiokafka"

    def version(self) -> str:
        return f"{self.tool.version()} with {self._client_name()} {self.tool.version(self._client_name())}"

    def _client_name(self) -> str:
        return {"aiokafka": "aiokafka", "confluent": "confluent-kafka"}[self.client]

    def command(self, state: Path) -> Sequence[str]:
        program = self.tool.program("faststream")
        return [program, "run", "--app-dir", str(self.tool.sources), "orders:app"]

    def settings(self) -> Mapping[str, str]:
        return {"CLIENT": self.client}


class FastStreamConfluent(FastStream):
    name: ClassVar[str] = "FastStream on confluent-kafka"
    client = "confluent"


class QuixStreams(Framework):
    name: ClassVar[str] = "Quix Streams"
    lacks: ClassVar[Mapping[str, str]] = {"lots": _NO_LOTS}
    tool = python_tools.QUIX_STREAMS

    def command(self, state: Path) -> Sequence[str]:
        return [self.tool.program(), str(self.tool.sources / "orders.py")]


class Bytewax(Framework):
    """It is in no group: it reads all partitions, and keeps its places and its state in files of its own."""

    name: ClassVar[str] = "bytewax"
    lacks: ClassVar[Mapping[str, str]] = {
        "share-and-leave": "bytewax is in no group",
        "lots": _NO_LOTS,
        "state-is-restored": "bytewax has no changelog topics",
        "windows": "its windows need nothing of the broker",
    }
    tool = python_tools.BYTEWAX
    ends_by_itself = True

    def command(self, state: Path) -> Sequence[str]:
        recovery = state / "recovery"
        if not recovery.exists():
            recovery.mkdir()
            with App(
                [self.tool.program(), "-m", "bytewax.recovery", str(recovery), "1"],
                python_tools.environment(),
                state / "made",
            ) as made:
                made.wait()
        flow = f"{self.tool.sources / 'orders.py'}:flow"
        return [self.tool.program(), "-m", "bytewax.run", "-r", str(recovery), "-s", "0", "-b", "0", flow]
