"""Java consumers as members of groups, each in a JVM of its own: kafka-verifiable-consumer and kafka-console-consumer.

The first tells by JSON what it is assigned, reads and commits, so that it can play cases; it commits after each poll.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from driver import DEADLINE_S, Record
from group_driver import (
    COOPERATIVE,
    HEARTBEAT_MS,
    METADATA_MAX_AGE_MS,
    RANGE,
    ROUND_ROBIN,
    STICKY,
    GroupDriver,
    Joining,
    Member,
    Offsets,
    Part,
    Parts,
)

from peers import home
from peers.process import SMALL_JVM, java_command
from peers.shell import die_with_parent

_ASSIGNORS = {
    RANGE: "org.apache.kafka.clients.consumer.RangeAssignor",
    ROUND_ROBIN: "org.apache.kafka.clients.consumer.RoundRobinAssignor",
    STICKY: "org.apache.kafka.clients.consumer.StickyAssignor",
    COOPERATIVE: "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
}


def _settings(joining: Joining) -> dict[str, Any]:
    settings = {
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "metadata.max.age.ms": METADATA_MAX_AGE_MS,
        "session.timeout.ms": joining.session_ms,
        "partition.assignment.strategy": _ASSIGNORS[joining.strategy],
        "client.id": "conformance",
    }
    return settings if joining.instance_id is None else {**settings, "group.instance.id": joining.instance_id}


class _JavaMember(Member):
    """A process whose lines tell what happens to it."""

    def __init__(self, version: str, main: str, arguments: Sequence[str]) -> None:
        super().__init__()
        self.process = subprocess.Popen(
            java_command(version, main, arguments, [*SMALL_JVM, "-Dlog4j2.statusLoggerLevel=OFF"]),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            preexec_fn=die_with_parent,
        )
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.told(line.rstrip("\n"))

    def told(self, line: str) -> None:
        raise NotImplementedError

    def leave(self) -> None:
        self.process.terminate()
        self.end()

    def end(self) -> None:
        self.process.wait(DEADLINE_S)
        self._reader.join()


class ConsoleMember(_JavaMember):
    """kafka-console-consumer: it shows only what it reads."""

    def __init__(self, version: str, bootstrap: str, joining: Joining) -> None:
        (topic,) = joining.topics
        options = [
            option
            for item in _settings(joining).items()
            for option in ("--consumer-property", "=".join(map(str, item)))
        ]
        start = ["--from-beginning"] if joining.reset == "earliest" else []
        arguments = ["--bootstrap-server", bootstrap, "--topic", topic, "--group", joining.group, *start, *options]
        super().__init__(version, "org.apache.kafka.tools.consumer.ConsoleConsumer", arguments)

    def told(self, line: str) -> None:
        self.read.append(Record(None, line.encode()))

    def share(self) -> Parts:
        return frozenset()


class VerifiableMember(_JavaMember):
    def __init__(self, version: str, bootstrap: str, joining: Joining) -> None:
        (topic,) = joining.topics
        self._share: Parts = frozenset()
        self._committed: dict[Part, int] = {}
        with tempfile.NamedTemporaryFile("w", suffix=".properties", delete=False) as file:
            file.writelines(f"{name}={value}\n" for name, value in _settings(joining).items())
        self._file = Path(file.name)
        options = {
            "--bootstrap-server": bootstrap,
            "--topic": topic,
            "--group-id": joining.group,
            "--session-timeout": str(joining.session_ms),
            "--assignment-strategy": _ASSIGNORS[joining.strategy],
            "--reset-policy": joining.reset,
            "--consumer.config": file.name,
        }
        if joining.instance_id is not None:
            options["--group-instance-id"] = joining.instance_id
        arguments = ["--verbose", *(word for option in options.items() for word in option)]
        super().__init__(version, "org.apache.kafka.tools.VerifiableConsumer", arguments)

    def told(self, line: str) -> None:
        event = json.loads(line)
        kind = event["name"]
        if kind == "record_data":
            place = {name: event[name] for name in ("topic", "partition", "offset")}
            self.read.append(Record(event["key"], event["value"].encode(), **place))
        elif kind == "partitions_assigned":
            self._share = self._share | _parts(event)
        elif kind == "partitions_revoked" and event["partitions"]:
            self.revoked.append(_parts(event))
            self._share = self._share - _parts(event)
        elif kind == "offsets_committed" and event["success"]:
            self._committed |= {(entry["topic"], entry["partition"]): entry["offset"] for entry in event["offsets"]}

    def share(self) -> Parts:
        return self._share

    def commit(self, offsets: Offsets | None = None) -> None:
        assert offsets is None, "it has no call for exact offsets"
        read = {(record.topic, record.partition): record.offset + 1 for record in list(self.read)}
        self.wait_for(lambda: read.items() <= self._committed.items(), "commits what it read")

    def end(self) -> None:
        super().end()
        self._file.unlink(missing_ok=True)


class JavaGroups(GroupDriver):
    """It reads one topic and commits what it read, and each member takes seconds to start: it plays a few cases."""

    name: ClassVar[str] = "Java 4.1"
    lacks: ClassVar[Mapping[str, str]] = {}

    def version(self) -> str:
        return home.KAFKA_KRAFT

    def join(self, joining: Joining) -> Member:
        return VerifiableMember(home.KAFKA_KRAFT, self.bootstrap, joining)


def _parts(event: Mapping[str, Any]) -> Parts:
    return frozenset((entry["topic"], entry["partition"]) for entry in event["partitions"])
