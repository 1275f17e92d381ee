"""kafkajs as a member of groups and their administrator; it reads only as a member."""

from __future__ import annotations

import threading
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

from driver import DEADLINE_S, ClientError, Record
from driver_shell import ShellDriver
from group_driver import (
    HEARTBEAT_MS,
    METADATA_MAX_AGE_MS,
    Doomed,
    Group,
    GroupDriver,
    GroupMember,
    Joining,
    Member,
    Offsets,
    Part,
    Parts,
)

from peers import kafkajs
from peers.process import PeerFailedError
from peers.shell import Shell

_POLL_S = 0.03
_ONE_ASSIGNER = "kafkajs has only its RoundRobinAssigner"


class _Asked:
    """The process; it takes one question at a time, from the case and from the threads of the members."""

    def __init__(self, shell: Shell, bootstrap: str) -> None:
        self.shell = shell
        self._bootstrap = bootstrap
        self._lock = threading.Lock()

    def ask(self, op: str, **request: Any) -> dict[str, Any]:
        with self._lock:
            answer = self.shell.ask({"op": op, "bootstrap": self._bootstrap, **request})
        if "error" in answer:
            raise ClientError(answer["error"], answer["message"])
        return answer


class KafkaJsMember(Member):
    """A consumer in the process, and a thread that asks for its news."""

    def __init__(self, asked: _Asked, joining: Joining) -> None:
        super().__init__()
        self._asked = asked
        self._group = joining.group
        self._share: Parts = frozenset()
        self._leaving = threading.Event()
        answer = asked.ask(
            "join",
            group=joining.group,
            topics=joining.topics,
            reset=joining.reset,
            auto_commit=joining.auto_commit,
            session_ms=joining.session_ms,
            heartbeat_ms=HEARTBEAT_MS,
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
        )
        self._member = answer["member"]
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while not self._leaving.wait(_POLL_S):
            news = self._asked.ask("news", member=self._member)
            self._share = frozenset((topic, number) for topic, number in news["share"])
            self.revoked = [frozenset((topic, number) for topic, number in parts) for parts in news["revoked"]]
            self.read += [_record(found) for found in news["read"]]
            if news["failed"] is not None:
                self.error = ClientError(news["failed"]["error"], news["failed"]["message"])

    def share(self) -> Parts:
        return self._share

    def commit(self, offsets: Offsets | None = None) -> None:
        if offsets is None:
            offsets = {(record.topic, record.partition): record.offset + 1 for record in list(self.read)}
        places = [[*part, offset] for part, offset in offsets.items()]
        self._asked.ask("commit", member=self._member, offsets=places)

    def committed(self, part: Part) -> int | None:
        """Its consumer does not tell; its administrator does."""
        answer = self._asked.ask("group_offsets", group=self._group, topics=[part[0]])
        offset = {(topic, number): offset for topic, number, offset in answer["offsets"]}[part]
        return None if offset < 0 else offset

    def pause(self, part: Part) -> None:
        self._asked.ask("pause", member=self._member, topic=part[0], partition=part[1])

    def resume(self, part: Part) -> None:
        self._asked.ask("resume", member=self._member, topic=part[0], partition=part[1])

    def leave(self) -> None:
        if not self._leaving.is_set():
            self._leaving.set()
            self._thread.join(DEADLINE_S)
            self._asked.ask("leave", member=self._member)
            self._share = frozenset()

    def forget(self) -> None:
        """Its process has crashed, or will."""
        self._leaving.set()
        self._thread.join(DEADLINE_S)


class _Doomed(Doomed):
    def __init__(self, bootstrap: str, joining: Joining) -> None:
        self._asked = _Asked(kafkajs.shell(), bootstrap)
        self._member = KafkaJsMember(self._asked, joining)
        self._crashed = False

    def wait_for_share(self) -> None:
        self._member.wait_for(lambda: bool(self._member.share()), "wants any partition")

    def crash(self) -> None:
        if not self._crashed:
            self._crashed = True
            self._member.forget()
            with suppress(PeerFailedError):
                self._asked.ask("crash")
            self._asked.shell.close()


class KafkaJs(ShellDriver, GroupDriver):
    name: ClassVar[str] = "kafkajs"
    lacks: ClassVar[Mapping[str, str]] = {
        "commit-async": "all its commits are promises",
        "position": "kafkajs has no such call",
        "reset-is-refused": "kafkajs always resets",
        "regex-subscription": "it looks for the topics once",
        "member-does-not-poll": "kafkajs has no such limit",
        "static-member": "kafkajs has no static members",
        "range-strategy": _ONE_ASSIGNER,
        "sticky-strategy": _ONE_ASSIGNER,
        "cooperative-strategy": _ONE_ASSIGNER,
        "cooperative-flow": _ONE_ASSIGNER,
        "inconsistent-assignors": _ONE_ASSIGNER,
        "alter-offsets-of-group-with-members": "it asks for the group's state and refuses by itself",
        "delete-group-offsets": "kafkajs has no such call",
        "delete-offsets-of-subscribed-topic": "kafkajs has no such call",
    }
    usual_protocol = "RoundRobinAssigner"

    def start(self) -> Shell:
        return kafkajs.shell()

    def version(self) -> str:
        return kafkajs.version()

    def __init__(self) -> None:
        super().__init__()
        self._asked: dict[str, _Asked] = {}

    def _through(self) -> _Asked:
        """All questions about one broker take turns."""
        return self._asked.setdefault(self.bootstrap, _Asked(self.shell, self.bootstrap))

    def _ask(self, op: str, **request: Any) -> dict[str, Any]:
        return self._through().ask(op, **request)

    def join(self, joining: Joining) -> Member:
        return KafkaJsMember(self._through(), joining)

    def doomed(self, joining: Joining) -> Doomed:
        return _Doomed(self.bootstrap, joining)

    def list_groups(self) -> dict[str, str]:
        return dict(self._ask("list_groups")["groups"])

    def describe_group(self, group: str) -> Group:
        found = self._ask("describe_group", group=group)
        members = [
            GroupMember(
                member["client_id"],
                member["host"],
                frozenset((topic, number) for topic, numbers in member["parts"] for number in numbers),
            )
            for member in found["members"]
        ]
        return Group(found["state"], found["protocol_type"], found["protocol"], tuple(members))

    def delete_group(self, group: str) -> None:
        self._ask("delete_group", group=group)

    def list_group_offsets(self, group: str) -> dict[Part, int]:
        answer = self._ask("group_offsets", group=group, topics=[])
        return {(topic, number): offset for topic, number, offset in answer["offsets"]}

    def alter_group_offsets(self, group: str, offsets: Offsets) -> None:
        self._ask("alter_group_offsets", group=group, offsets=[[*part, offset] for part, offset in offsets.items()])


class KafkaJsAlone(KafkaJs):
    """For what only it is asked."""

    lacks: ClassVar[Mapping[str, str]] = {}


def _record(found: Mapping[str, Any]) -> Record:
    def data(text: str | None) -> bytes | None:
        return None if text is None else b64decode(text)

    return Record(
        key=data(found["key"]),
        value=data(found["value"]),
        headers=tuple((name, data(value)) for name, value in found["headers"]),
        timestamp=found["timestamp"],
        partition=found["partition"],
        offset=found["offset"],
        topic=found["topic"],
    )
