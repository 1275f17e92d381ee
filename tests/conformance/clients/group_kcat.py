"""kcat as a member of groups: a process that prints what it is assigned and what it reads."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
from collections.abc import Mapping
from typing import IO, Any, ClassVar

import cases_groups_admin
from driver import DEADLINE_S, ClientError, Record
from driver_kcat import Kcat
from group_driver import (
    HEARTBEAT_MS,
    INCONSISTENT_GROUP_PROTOCOL,
    METADATA_MAX_AGE_MS,
    Doomed,
    GroupDriver,
    Joining,
    Member,
    Parts,
)

from peers import kcat
from peers.shell import die_with_parent

_FORMAT = "%t %p %o %s\\n"
_REBALANCED = re.compile(r"% Group \S+ rebalanced.*?\W(assign|revoke)")
_PLACE = re.compile(r"(\S+) \[(\d+)\]")
_CODES = {"Inconsistent group protocol": INCONSISTENT_GROUP_PROTOCOL}
_NO_CALL = "kcat reads; it has no other calls"


class KcatMember(Member):
    def __init__(self, bootstrap: str, joining: Joining) -> None:
        super().__init__()
        self._share: Parts = frozenset()
        command, environment = kcat.command(_arguments(bootstrap, joining))
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=die_with_parent,
        )
        streams = ((self.process.stdout, self._record), (self.process.stderr, self._told))
        self._readers = [threading.Thread(target=_lines, args=each, daemon=True) for each in streams]
        for reader in self._readers:
            reader.start()

    def _record(self, line: str) -> None:
        topic, partition, offset, value = line.split(" ", 3)
        self.read.append(Record(None, value.encode(), topic=topic, partition=int(partition), offset=int(offset)))

    def _told(self, line: str) -> None:
        if line.startswith("% ERROR"):
            self.error = ClientError(next((code for text, code in _CODES.items() if text in line), -1), line)
        found = _REBALANCED.search(line)
        if found is None:
            return
        places = frozenset((topic, int(number)) for topic, number in _PLACE.findall(line))
        if found[1] == "assign":
            self._share = self._share | places
        elif places:
            self.revoked.append(places)
            self._share = self._share - places

    def share(self) -> Parts:
        return self._share

    def leave(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.end()

    def end(self) -> None:
        self.process.wait(DEADLINE_S)
        for reader in self._readers:
            reader.join()


class _Doomed(Doomed):
    def __init__(self, member: KcatMember) -> None:
        self._member = member

    def wait_for_share(self) -> None:
        self._member.wait_for(lambda: bool(self._member.share()), "wants any partition")

    def crash(self) -> None:
        self._member.process.kill()
        self._member.end()


class KcatGroups(Kcat, GroupDriver):
    lacks: ClassVar[Mapping[str, str]] = {
        "commit-sync": _NO_CALL,
        "commit-async": _NO_CALL,
        "commit-exact": _NO_CALL,
        "position": _NO_CALL,
        "resume-from-committed": _NO_CALL,
        "reset-of-lost-offset": _NO_CALL,
        "pause-and-resume": _NO_CALL,
        "member-leaves": _NO_CALL,
        "member-does-not-poll": "kcat always polls",
        "sticky-strategy": "librdkafka has only the cooperative one",
        **{case.id: "kcat has no admin calls" for case in cases_groups_admin.TABLE.cases},
    }

    def join(self, joining: Joining) -> Member:
        return KcatMember(self.bootstrap, joining)

    def doomed(self, joining: Joining) -> Doomed:
        return _Doomed(KcatMember(self.bootstrap, joining))


def _arguments(bootstrap: str, joining: Joining) -> list[str]:
    settings: dict[str, Any] = {
        "auto.offset.reset": {"none": "error"}.get(joining.reset, joining.reset),
        "partition.assignment.strategy": joining.strategy,
        "enable.auto.commit": str(joining.auto_commit).lower(),
        "session.timeout.ms": joining.session_ms,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "topic.metadata.refresh.interval.ms": METADATA_MAX_AGE_MS,
        "fetch.wait.max.ms": 100,
    }
    if joining.instance_id is not None:
        settings["group.instance.id"] = joining.instance_id
    options = [option for name, value in settings.items() for option in ("-X", f"{name}={value}")]
    topics = list(joining.topics) if joining.pattern is None else [f"^{joining.pattern}"]
    return ["-b", bootstrap, "-u", "-f", _FORMAT, *options, "-G", joining.group, *topics]


def _lines(stream: IO[bytes], take: Any) -> None:
    with stream:
        for line in stream:
            take(line.decode(errors="replace").rstrip("\n"))
