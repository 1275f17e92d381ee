"""kaskade, a user interface in the terminal: we press its keys and read its tables, without a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from driver import ClientError, Driver

from peers.python_tools import KASKADE, environment
from peers.shell import Shell


class Kaskade(Driver):
    name: ClassVar[str] = "kaskade"
    lacks: ClassVar[Mapping[str, str]] = {}

    def __init__(self) -> None:
        self._shell: Shell | None = None

    def version(self) -> str:
        return KASKADE.version()

    def show(self, op: str, topic: str, *options: str, **request: Any) -> dict[str, Any]:
        """What its screen shows: one run of kaskade, with these options of its command line."""
        if self._shell is None:
            self._shell = Shell([KASKADE.program(), str(KASKADE.sources / "pilot.py")], environment())
        answer = self._shell.ask({"op": op, "topic": topic, "bootstrap": self.bootstrap, "options": options, **request})
        if "error" in answer:
            raise ClientError(answer["error"], answer["message"])
        return answer

    def close(self) -> None:
        if self._shell is not None:
            self._shell.close()
