"""Cases for Kafka's tools on three brokers: who holds a partition (kafka-reassign-partitions) and who leads it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from cases import Table
from cluster_scenes import cluster, described, json_file, json_lines, placed, places, stopped
from driver import Record
from driver_shell import Tools
from scene import Scene, eventually
from targets import CLUSTER
from tool_runs import ok, refused, run

TABLE = Table()
_REASSIGN = "kafka-reassign-partitions"
_ELECT = "kafka-leader-election"
_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")


def _plan(topic: str, targets: Mapping[int, str]) -> Any:
    """What the tool takes as --reassignment-json-file: replicas by partition."""
    return {
        "version": 1,
        "partitions": [
            {"topic": topic, "partition": number, "replicas": [int(broker) for broker in replicas.split(",")]}
            for number, replicas in targets.items()
        ],
    }


def _move(scene: Scene[Tools], action: str, plan: Any, *options: str) -> str:
    with json_file(plan) as file:
        return ok(scene, _REASSIGN, action, "--reassignment-json-file", file, *options)


def _is_listed(scene: Scene[Tools], text: str) -> bool:
    return text in ok(scene, _REASSIGN, "--list")


def _throttles(scene: Scene[Tools], topic: str) -> tuple[list[int], bool]:
    """How many brokers have each rate, and whether the topic names throttled replicas."""
    brokers = ok(scene, "kafka-configs", "--describe", "--entity-type", "brokers")
    config = ok(scene, "kafka-configs", "--describe", "--entity-type", "topics", "--entity-name", topic)
    return [brokers.count(f"  {rate}=50000000 ") for rate in _RATES], "replication.throttled.replicas=" in config


@TABLE.case(_REASSIGN, "--generate proposes, and moves nothing", CLUSTER)
def cluster_reassign_generate(scene: Scene[Tools]) -> None:
    topic = placed(scene, "1,2", "2,1")
    with json_file({"version": 1, "topics": [{"topic": topic}]}) as file:
        out = ok(scene, _REASSIGN, "--generate", "--topics-to-move-json-file", file, "--broker-list", "2,3")
    current, proposed = json_lines(out)
    assert [one["replicas"] for one in current["partitions"]] == [[1, 2], [2, 1]]
    assert [sorted(one["replicas"]) for one in proposed["partitions"]] == [[2, 3], [2, 3]]
    assert places(scene, topic) == [("1", "1,2", [1, 2]), ("2", "2,1", [1, 2])]
    assert not _is_listed(scene, topic)


@TABLE.case(_REASSIGN, "--execute --throttle; --verify until it is complete, which ends the throttle", CLUSTER)
def cluster_reassign_throttled(scene: Scene[Tools]) -> None:
    topic = placed(scene, "1,2", "2,1")
    scene.feed(topic, [Record(None, b"v" * 1000, partition=number % 2) for number in range(100)])
    plan = _plan(topic, {0: "3,2", 1: "2,1,3"})
    out = _move(scene, "--execute", plan, "--throttle", "50000000")
    assert "The inter-broker throttle limit was set to 50000000 B/s" in out
    assert f"Successfully started partition reassignments for {topic}-0,{topic}-1" in out
    eventually(lambda: _throttles(scene, topic) == ([3, 3], True))
    # This one leaves the throttle, so that we see who ends it.
    complete = [f"Reassignment of partition {topic}-{number} is completed." for number in (0, 1)]
    keep = "--preserve-throttles"
    eventually(lambda: all(line in _move(scene, "--verify", plan, keep) for line in complete))
    assert _throttles(scene, topic) == ([3, 3], True)
    out = _move(scene, "--verify", plan)
    assert all(line in out for line in complete)
    assert "Clearing broker-level throttles on brokers 1,2,3" in out
    eventually(lambda: _throttles(scene, topic) == ([0, 0], False))
    eventually(lambda: places(scene, topic) == [("3", "3,2", [2, 3]), ("2", "2,1,3", [1, 2, 3])])
    assert not _is_listed(scene, topic)
    found = ok(scene, "kafka-get-offsets", "--topic", topic).split()
    assert found == [f"{topic}:0:50", f"{topic}:1:50"]
    eventually(lambda: not (cluster(scene).nodes[1].log_dir / f"{topic}-0").exists())


@TABLE.case(_REASSIGN, "--list, --verify, --additional and --cancel while it cannot end", CLUSTER)
def cluster_reassign_cancel(scene: Scene[Tools]) -> None:
    topic = placed(scene, "2", "2")
    scene.feed(topic, [Record(None, b"v", partition=number) for number in (0, 1, 1)])
    first, second = f"{topic}-0", f"{topic}-1"
    kept, cancelled = _plan(topic, {0: "1"}), _plan(topic, {1: "1,3"})
    with ExitStack() as later:
        # Nobody can copy what only a broker has that is down.
        with stopped(scene, 2):
            eventually(lambda: [leader for leader, _, _ in places(scene, topic)] == ["none", "none"])
            assert f"Successfully started partition reassignment for {first}" in _move(scene, "--execute", kept)
            eventually(lambda: _is_listed(scene, f"{first}: replicas: 1,2. adding: 1. removing: 2."))
            with json_file(cancelled) as file:
                execute = (_REASSIGN, "--execute", "--reassignment-json-file", file)
                refused(scene, "Cannot execute because there is an existing partition assignment", *execute)
                ok(scene, *execute, "--additional")
            eventually(lambda: _is_listed(scene, f"{second}: replicas: 1,3,2. adding: 1,3. removing: 2."))
            assert f"Reassignment of partition {first} is still in progress." in _move(scene, "--verify", kept)
            later.enter_context(stopped(scene, 3))
        # Now one of them can be moved, and the other still not.
        eventually(lambda: f"Reassignment of partition {first} is completed." in _move(scene, "--verify", kept))
        assert f"Reassignment of partition {second} is still in progress." in _move(scene, "--verify", cancelled)
        # To end the throttles it would wait for the broker that is down.
        out = _move(scene, "--cancel", cancelled, "--preserve-throttles")
        assert f"Successfully cancelled partition reassignment for: {second}" in out
        eventually(lambda: not _is_listed(scene, topic))
        eventually(lambda: places(scene, topic) == [("1", "1", [1]), ("2", "2", [2])])
    assert "None of the specified partition reassignments are active." in _move(scene, "--cancel", cancelled)
    assert ok(scene, "kafka-get-offsets", "--topic", topic).split() == [f"{topic}:0:1", f"{topic}:1:2"]


@TABLE.case(_REASSIGN, "errors: unknown brokers, topics and partitions", CLUSTER)
def cluster_reassign_errors(scene: Scene[Tools]) -> None:
    topic = placed(scene, "1,2")

    def is_refused(text: str, plan: Any) -> None:
        with json_file(plan) as file:
            refused(scene, text, _REASSIGN, "--execute", "--reassignment-json-file", file)

    is_refused("Unknown broker id 9", _plan(topic, {0: "1,9"}))
    is_refused("UnknownTopicOrPartitionException", _plan("nobody-made-this", {0: "1,2"}))
    is_refused("Unable to find partition", _plan(topic, {7: "1,2"}))
    is_refused("duplicate", _plan(topic, {0: "1,1"}))
    assert places(scene, topic) == [("1", "1,2", [1, 2])]


@TABLE.case(_ELECT, "preferred: one partition, those in a file, all", CLUSTER)
def cluster_elect_preferred(scene: Scene[Tools]) -> None:
    topic = placed(scene, *["1,2,3"] * 5)
    # Another order does not change who leads.
    _move(scene, "--execute", _plan(topic, dict.fromkeys(range(5), "2,3,1")))
    eventually(lambda: places(scene, topic) == [("1", "2,3,1", [1, 2, 3])] * 5)

    def leaders() -> str:
        return "".join(leader for leader, _, _ in places(scene, topic))

    elect = (_ELECT, "--election-type", "preferred")
    done = "Successfully completed leader election (PREFERRED) for partitions "
    one = (*elect, "--topic", topic, "--partition", "0")
    assert f"{done}{topic}-0" in ok(scene, *one)
    eventually(lambda: leaders() == "21111")
    assert f"Valid replica already elected for partitions {topic}-0" in ok(scene, *one)
    with json_file({"partitions": [{"topic": topic, "partition": number} for number in (0, 1, 3)]}) as file:
        out = ok(scene, *elect, "--path-to-json-file", file)
    assert done in out
    assert {f"{topic}-1", f"{topic}-3"} <= set(out.replace(",", " ").split())
    eventually(lambda: leaders() == "22121")
    # Other cases stopped brokers: the preferred leaders of their topics have to be in sync again.
    eventually(lambda: not ok(scene, "kafka-topics", "--describe", "--under-replicated-partitions").strip())
    out = ok(scene, *elect, "--all-topic-partitions")
    assert {f"{topic}-2", f"{topic}-4"} <= set(out.replace(",", " ").split())
    eventually(lambda: leaders() == "22222")
    refused(scene, "UnknownTopicOrPartitionException", *elect, "--topic", topic, "--partition", "9")


@TABLE.case(_ELECT, "unclean: from replicas that are not in sync, when no other is alive", CLUSTER)
def cluster_elect_unclean(scene: Scene[Tools]) -> None:
    topic = placed(scene, "3,2")
    one = ("--topic", topic, "--partition", "0")
    preferred = (_ELECT, "--election-type", "preferred", *one)
    unclean = (_ELECT, "--election-type", "unclean", *one)
    scene.feed(topic, [Record(None, b"on both")] * 5)
    assert f"Valid replica already elected for partitions {topic}-0" in ok(scene, *unclean)
    with ExitStack() as later:
        with stopped(scene, 2):
            eventually(lambda: places(scene, topic) == [("3", "3,2", [3])])
            scene.feed(topic, [Record(None, b"on one")] * 3)
            later.enter_context(stopped(scene, 3))
        eventually(lambda: _ready_but_without_leader(scene, topic))
        refused(scene, "PreferredLeaderNotAvailableException", *preferred)
        assert f"Successfully completed leader election (UNCLEAN) for partitions {topic}-0" in ok(scene, *unclean)
        eventually(lambda: places(scene, topic) == [("2", "3,2", [2])])
        eventually(lambda: ok(scene, "kafka-get-offsets", "--topic", topic).split() == [f"{topic}:0:5"])
    eventually(lambda: places(scene, topic) == [("2", "3,2", [2, 3])])
    logs = [cluster(scene).nodes[broker].log_dir / f"{topic}-0" / f"{0:020}.log" for broker in (2, 3)]
    eventually(lambda: logs[0].read_bytes() == logs[1].read_bytes())


def _ready_but_without_leader(scene: Scene[Tools], topic: str) -> bool:
    """Broker 2 is back, so that it could be elected, and is not by itself."""
    is_back = run(scene, "kafka-log-dirs", "--describe", "--broker-list", "2").status == 0
    offline = described(scene, topic, "--unavailable-partitions").get(topic, [])
    return is_back and [line.leader for line in offline] == ["none"]
