"""Cases for Kafka Connect: a file becomes a topic, a topic a file, and the worker keeps its places in topics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from cases import Table
from confluent_kafka.admin import ConfigResource
from driver import DEADLINE_S
from driver_connect import KafkaConnect
from driver_kafka_python_cli import KafkaPythonCommands
from scene import Scene, eventually
from stored import stored_batches
from targets import GROUPS

from peers.process import PeerFailedError

TABLE = Table(needs=GROUPS)
_SECTION = "Kafka Connect in distributed mode"


def _lines(first: int, after: int) -> list[str]:
    return [f"line {number}" for number in range(first, after)]


def _write(file: Path, lines: Sequence[str]) -> None:
    with file.open("a") as appended:
        appended.writelines(f"{line}\n" for line in lines)


def _has(file: Path, lines: Sequence[str]) -> bool:
    return file.exists() and file.read_text().splitlines() == list(lines)


def _answers(ask: Callable[[], object]) -> bool:
    """A worker that rebalances refuses with 409 or 404 for a moment."""
    try:
        ask()
    except PeerFailedError:
        return False
    return True


def _pipe(scene: Scene[KafkaConnect]) -> tuple[str, Path, Path]:
    """A source and a sink with this name that run, and their files."""
    name = scene.topic()
    given, written = scene.client.file(f"{name}-given"), scene.client.file(f"{name}-written")
    given.touch()
    eventually(lambda: _answers(lambda: scene.client.source(f"{name}-source", name, given)))
    eventually(lambda: _answers(lambda: scene.client.sink(f"{name}-sink", name, written)))
    for connector in (f"{name}-source", f"{name}-sink"):
        eventually(lambda connector=connector: _running(scene, connector))
    return name, given, written


def _running(scene: Scene[KafkaConnect], connector: str) -> bool:
    try:
        return scene.client.states(connector) == ["RUNNING", "RUNNING"]
    except PeerFailedError:
        return False


@TABLE.case(_SECTION, "lines of a file through a topic into another file")
def connect_files(scene: Scene[KafkaConnect]) -> None:
    name, given, written = _pipe(scene)
    _write(given, _lines(0, 50))
    eventually(lambda: _has(written, _lines(0, 50)))
    assert sum(batch.count for batch in stored_batches(scene.stage.log_dir, name)) == 50


@TABLE.case(_SECTION, "its own topics are compacted, and its workers are a group of their own kind")
def connect_topics(scene: Scene[KafkaConnect]) -> None:
    group = scene.client.worker and scene.client.group
    for kind in ("config", "offset", "status"):
        resource = ConfigResource(ConfigResource.Type.TOPIC, f"{group}-{kind}")
        (asked,) = scene.stage.admin.describe_configs([resource]).values()
        assert asked.result(DEADLINE_S)["cleanup.policy"].value == "compact"
    assert scene.leaders(f"{group}-config") == [1]
    listing = KafkaPythonCommands()  # clients describe only groups of consumers
    listing.bootstrap = scene.bootstrap
    found = {told["group_id"]: (told["protocol_type"], told["group_state"]) for told in listing.admin("groups", "list")}
    assert found[group] == ("connect", "Stable")


@TABLE.case(_SECTION, "the worker is started anew: connectors and places are as they were")
def connect_restart(scene: Scene[KafkaConnect]) -> None:
    name, given, written = _pipe(scene)
    _write(given, _lines(0, 20))
    eventually(lambda: _has(written, _lines(0, 20)))
    scene.client.worker.stop()
    _write(given, _lines(20, 30))
    scene.client.worker.start()
    eventually(lambda: _has(written, _lines(0, 30)))
    assert sum(batch.count for batch in stored_batches(scene.stage.log_dir, name)) == 30


@TABLE.case(_SECTION, "a sink that is stopped, has its offsets reset and goes on reads all again")
def connect_reset(scene: Scene[KafkaConnect]) -> None:
    name, given, written = _pipe(scene)
    sink = f"/connectors/{name}-sink"
    ask = scene.client.worker.ask
    _write(given, _lines(0, 20))
    eventually(lambda: _has(written, _lines(0, 20)))
    place = {"partition": {"kafka_topic": name, "kafka_partition": 0}, "offset": {"kafka_offset": 20}}
    eventually(lambda: ask("GET", f"{sink}/offsets")["offsets"] == [place])
    ask("PUT", f"{sink}/stop")
    eventually(lambda: scene.client.states(f"{name}-sink") == ["STOPPED"])
    eventually(lambda: _answers(lambda: ask("DELETE", f"{sink}/offsets")))
    ask("PUT", f"{sink}/resume")
    eventually(lambda: _has(written, _lines(0, 20) * 2))
