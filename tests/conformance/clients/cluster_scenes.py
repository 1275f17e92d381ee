"""What the cases on three brokers share: brokers that stop for a while, and topics as kafka-topics describes them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from driver_shell import Tools
from scene import Scene, eventually
from targets import Cluster
from tool_runs import ok, run


def cluster(scene: Scene[Tools]) -> Cluster:
    assert isinstance(scene.stage.server, Cluster)
    return scene.stage.server


@contextmanager
def stopped(scene: Scene[Tools], broker: int) -> Iterator[None]:
    """Cleanly; it is started again whatever happens, for the cases that come later."""
    node = cluster(scene).nodes[broker]
    node.stop()
    try:
        yield
    finally:
        node.start()


class Described(NamedTuple):
    """A line of kafka-topics --describe. The order of an ISR means nothing, that of the replicas does."""

    partition: int
    leader: str
    replicas: str
    isr: frozenset[str]
    elr: str


def described(scene: Scene[Tools], topic: str, *options: str) -> dict[str, list[Described]]:
    """By topic, which may be a pattern. The tool asks any broker, and not every broker knows a new topic at once."""
    ran = run(scene, "kafka-topics", "--describe", "--topic", topic, *options)
    assert ran.status == 0 or "does not exist as expected" in ran.out, f"{ran.out}\n{ran.err}"
    return parsed(ran.out)


def described_whole(scene: Scene[Tools], topic: str, partitions: int) -> str:
    """What the tool prints once the broker that it asks knows all partitions."""
    printed = ""

    def is_whole() -> bool:
        nonlocal printed
        printed = run(scene, "kafka-topics", "--describe", "--topic", topic).out
        return len(parsed(printed).get(topic, ())) == partitions

    eventually(is_whole)
    return printed


def parsed(printed: str) -> dict[str, list[Described]]:
    found: dict[str, list[Described]] = {}
    for line in printed.splitlines():
        if line.startswith("\tTopic: "):
            named = dict(field.partition(": ")[::2] for field in line.strip("\t").split("\t"))
            isr = frozenset(named["Isr"].split(",")) - {""}
            one = Described(int(named["Partition"]), named["Leader"], named["Replicas"], isr, named["Elr"])
            found.setdefault(named["Topic"], []).append(one)
    return found


def places(scene: Scene[Tools], topic: str) -> list[tuple[str, str, list[int]]]:
    """Of each partition its leader, its replicas and who of them is in sync."""
    lines = described(scene, topic).get(topic, [])
    return [(line.leader, line.replicas, sorted(map(int, line.isr))) for line in lines]


def placed(scene: Scene[Tools], *assignments: str, **config: str | int) -> str:
    """A new topic whose partitions have these replicas, led by the first of each and all in sync."""
    topic = scene.name()
    options = [word for name, value in config.items() for word in ("--config", f"{name.replace('_', '.')}={value}")]
    assignment = ",".join(replicas.replace(",", ":") for replicas in assignments)
    ok(scene, "kafka-topics", "--create", "--topic", topic, "--replica-assignment", assignment, *options)
    expected = [(replicas[0], replicas, sorted(map(int, replicas.split(",")))) for replicas in assignments]
    eventually(lambda: places(scene, topic) == expected)
    return topic


@contextmanager
def json_file(content: Any) -> Iterator[str]:
    """The path of a file that holds it."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        Path(file.name).write_text(json.dumps(content))
        yield file.name


def json_lines(out: str) -> Sequence[Any]:
    """Some tools print JSON between lines for people."""
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]
