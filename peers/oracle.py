"""Kafka's own message classes, asked through a Java process that stays up (tools/java/WireOracle.java)."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from peers.process import SMALL_JVM, PeerFailedError, java_command

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class KnownMessage:
    """A message that a version of Kafka has, and the versions it has of it."""

    name: str
    lowest: int
    highest: int


class WireOracle:
    """What Kafka writes for a message given as JSON, and the JSON it reads from bytes.

    The JSON is that of Kafka's generated converters: field names as in the definitions, bytes and records in base64.
    """

    def __init__(self, version: str) -> None:
        self.version = version
        self._process = subprocess.Popen(
            java_command(version, "WireOracle", (), SMALL_JVM), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def messages(self) -> list[KnownMessage]:
        listed = self._ask({"op": "list"})["messages"]
        return [KnownMessage(entry["message"], entry["lowest"], entry["highest"]) for entry in listed]

    def encode(self, message: str, version: int, value: Json) -> bytes:
        return bytes.fromhex(self._ask({"op": "encode", "message": message, "version": version, "json": value})["hex"])

    def decode(self, message: str, version: int, data: bytes) -> tuple[Json, bytes]:
        """The JSON, and what Kafka writes when it encodes again what it read.

        The bytes of record batches are not in the JSON: there they are the empty string. PeerFailedError if Kafka
        cannot read it, or does not need all of it.
        """
        answer = self._ask({"op": "decode", "message": message, "version": version, "hex": data.hex()})
        if answer["left"]:
            raise PeerFailedError(f"{answer['left']} bytes left after {message} v{version}")
        return answer["json"], bytes.fromhex(answer["hex"])

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, question: Json) -> Json:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise PeerFailedError(f"the wire oracle of Kafka {self.version} ended with status {self._process.wait(30)}")
        answer: Json = json.loads(line)
        if "error" in answer:
            raise PeerFailedError(answer["error"])
        return answer
