"""Client commands that have to wait say for what and why, and end with the last cause, as a user meets them.

Three brokers in processes of their own. `orders` and __consumer_offsets have one replica of each partition, so a broker
that is away takes partitions with it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.kits.processclusterkit import BROKERS, CONTROLLER, FOLLOWER, LEADER, TOPIC, ProcessCluster
from tests.kits.processkit import DEADLINE_S, free_port, wait_for
from tidelog.groups import partition_of

TIDELOG = (sys.executable, "-m", "tidelog")
GROUPS = ("a", "b", "c", "d", "e", "f")
"""Each is in another of the six partitions of __consumer_offsets."""
HELD_BY = {LEADER: 0, FOLLOWER: 1, CONTROLLER: 2}
"""Which partition of `orders` each broker has."""


class Waiting(ProcessCluster):
    """A cluster that notices the death of a broker soon, and that of a frozen one late."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, "embedded")
        self._settings |= {
            "zookeeper_session_timeout_ms": "30000",
            "offsets_topic_replication_factor": "1",
            "offsets_topic_num_partitions": "6",
            "group_initial_rebalance_delay_ms": "0",
        }

    def create(self, name: str, assignment: list[list[int]], **config: str) -> None:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        topic = NewTopic(name, num_partitions=len(assignment), replica_assignment=assignment, config=settings)
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        admin.create_topics([topic])[name].result(DEADLINE_S)


class Command:
    """`tidelog ...` while it runs: what it has said so far, and how it ended."""

    def __init__(self, directory: Path, bootstrap: str, command: str, stdin: bytes | None = None) -> None:
        self.command = command
        self._out = directory / f"{free_port()}.out"
        self._err = self._out.with_suffix(".err")
        with open(self._out, "wb") as out, open(self._err, "wb") as err:
            self.process = subprocess.Popen(
                [*TIDELOG, *command.split(), "--bootstrap", bootstrap], stdin=subprocess.PIPE, stdout=out, stderr=err
            )
        if stdin is not None:
            self.type(stdin)

    def type(self, text: bytes) -> None:
        """The input stays open."""
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def end_input(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    @property
    def said(self) -> str:
        return self._err.read_text()

    @property
    def printed(self) -> str:
        return self._out.read_text()

    def waits_for(self, pattern: str) -> None:
        """It has told, before it ended, that it waits for this."""

        def is_told() -> bool:
            told = re.search(f"^waiting: .*({pattern})", self.said, re.MULTILINE) is not None
            assert told or self.process.poll() is None, f"{self.command} ended:\n{self.said}\n{self.printed}"
            return told

        wait_for(is_told, f"{self.command} to wait for {pattern}")

    def status(self) -> int:
        return self.process.wait(DEADLINE_S)

    def ends_with(self, *words: str) -> None:
        """As an error whose last line has all these words."""
        assert self.status() == 1, f"{self.command}:\n{self.said}\n{self.printed}"
        last = self.said.splitlines()[-1]
        assert last.startswith("Error: "), self.said
        assert [word for word in words if word not in last] == [], f"{self.command}:\n{self.said}"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()


class Shell:
    def __init__(self, cluster: Waiting, directory: Path) -> None:
        self.cluster = cluster
        self._directory = directory
        self._commands: list[Command] = []

    def start(self, command: str, stdin: bytes | None = None, bootstrap: str | None = None) -> Command:
        running = Command(self._directory, bootstrap or self.cluster.bootstrap, command, stdin)
        self._commands.append(running)
        return running

    def run(self, command: str, stdin: bytes = b"") -> str:
        done = subprocess.run(
            [*TIDELOG, *command.split(), "--bootstrap", self.cluster.bootstrap],
            input=stdin,
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    def close(self) -> None:
        for command in self._commands:
            command.close()

    @contextmanager
    def dead(self, *brokers: int) -> Iterator[None]:
        """Once the others know of it, and back afterwards, with what it leads."""
        self.cluster.kill(*brokers)
        try:
            self._wait_until_led([number for number in BROKERS if number not in brokers])
            yield
        finally:
            self.bring_back()

    def bring_back(self) -> None:
        dead = [number for number in BROKERS if not self.cluster[number].is_alive]
        if dead:
            self.cluster.restart(*dead)
        self._wait_until_led(BROKERS)
        wait_for(lambda: self._isr("strict") == {LEADER, FOLLOWER}, "strict to be in sync")

    def _isr(self, topic: str) -> set[int]:
        (partition,) = json.loads(self.run(f"topics describe {topic} --json"))["detail"]
        return set(partition["isr"])

    @contextmanager
    def frozen(self, broker: int) -> Iterator[str]:
        """The address at which it is silent."""
        self.cluster.freeze(broker)
        try:
            yield f"127.0.0.1:{self.cluster.ports[broker]}"
        finally:
            self.cluster.thaw(broker)

    def groups_of(self, broker: int) -> tuple[list[str], list[str]]:
        """The groups that it coordinates, and the partitions of __consumer_offsets that they are in."""
        rows = [json.loads(line) for line in self.run("groups list --json").splitlines()]
        groups = [row["group"] for row in rows if row["coordinator"] == broker and row["group"] in GROUPS]
        assert len(groups) == len(GROUPS) // len(BROKERS), rows
        return groups, [f"__consumer_offsets-{partition_of(group, len(GROUPS))}" for group in groups]

    def _wait_until_led(self, brokers: Sequence[int]) -> None:
        def is_so() -> bool:
            views = [self.cluster.view(number) for number in brokers]
            return all(view and {one.leader for one in view.values()} <= {-1, *brokers} for view in views) and all(
                (view[partition].leader >= 0) == (number in brokers)
                for view in views
                for number, partition in HELD_BY.items()
            )

        wait_for(is_so, f"{brokers} to lead what they can")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waiting]:
    cluster = Waiting(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        cluster.create(TOPIC, [[LEADER], [FOLLOWER], [CONTROLLER]])
        cluster.create("strict", [[LEADER, FOLLOWER]], min_insync_replicas="2")
        shell = Shell(cluster, tmp_path_factory.mktemp("commands"))
        for group in GROUPS:
            shell.run(f"groups reset-offsets {group} --topic orders --to-earliest --new-group --execute")
        yield cluster
    finally:
        for number in BROKERS:
            if number in cluster.brokers:
                cluster.thaw(number)
        cluster.close()


@pytest.fixture
def shell(cluster: Waiting, tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(cluster, tmp_path)
    try:
        yield shell
    finally:
        shell.close()


def test_without_a_broker_each_command_says_so_and_ends_when_told_to(shell: Shell):
    nowhere = f"127.0.0.1:{free_port()}"
    commands = (
        "topics list",
        "topics create a",
        "produce a",
        "consume a --follow",
        "groups list",
        "configs describe --topic a",
        "cluster describe",
        "elect preferred --all",
        "reassign --list",
    )
    running = [shell.start(f"{command} --timeout 6", bootstrap=nowhere) for command in commands]
    for command in running:
        command.waits_for(f"cannot connect to {nowhere}: Connection refused")
    for command in running:
        command.ends_with("no broker answers", nowhere, "Connection refused", "`tidelog up`")


def test_a_frozen_broker_is_named_and_waited_for(shell: Shell):
    """It is the controller, and leads and coordinates as well: so each kind of command needs it."""
    (group, _), _ = shell.groups_of(CONTROLLER)
    held = HELD_BY[CONTROLLER]
    commands = (
        "topics create fresh",
        "topics describe orders --watermarks",
        "consume orders",
        "consume orders --group new",
        "groups list",
        f"groups describe {group}",
        f"groups export {group}",
        f"configs describe --broker {CONTROLLER} --all",
        "cluster describe",
        "elect preferred --all",
        "reassign --list",
    )
    with shell.frozen(CONTROLLER) as address:
        running = [shell.start(command) for command in commands]
        running.append(shell.start(f"produce orders --partition {held}", b"1\n"))
        for command in running:
            command.waits_for(address)
    running[-1].end_input()
    for command in running:
        assert command.status() == 0, f"{command.command}: {command.said}"
    assert "1" in shell.run("consume orders").split()


def both(partitions: list[str]) -> str:
    """Two of __consumer_offsets, as a message names them."""
    first, second = sorted(int(partition.rpartition("-")[2]) for partition in partitions)
    return f"partitions {first}, {second} of __consumer_offsets"


def test_a_frozen_coordinator_is_an_error_that_names_what_it_leads(shell: Shell):
    groups, partitions = shell.groups_of(FOLLOWER)
    with shell.frozen(FOLLOWER) as address:
        listing = shell.start("groups list --timeout 6")
        describing = shell.start(f"groups describe {groups[0]} --timeout 6")
        listing.waits_for(address)
        describing.waits_for(address)
        listing.ends_with(address, "gave up", both(partitions), "`tidelog cluster describe`")
        describing.ends_with(address, "gave up", partitions[0], "`tidelog cluster describe`")


def test_what_is_offline_with_a_dead_broker_is_named_and_what_is_left_is_shown(shell: Shell):
    groups, partitions = shell.groups_of(FOLLOWER)
    offline, first = f"orders-{HELD_BY[FOLLOWER]}", f"{partitions[0]} is offline"
    ends = {
        "groups list": [both(partitions)],
        "groups describe --all-groups": [both(partitions)],
        f"groups describe {groups[0]}": [first],
        f"groups export {groups[0]}": [first],
        f"groups delete {groups[0]} --yes": [first],
        f"groups reset-offsets {groups[0]} --all-topics --to-latest": [first],
        "consume orders": [offline, "LEADER_NOT_AVAILABLE"],
        f"produce orders --partition {HELD_BY[FOLLOWER]}": [offline, "LEADER_NOT_AVAILABLE"],
        "produce strict": ["strict-0", "NOT_ENOUGH_REPLICAS", "min.insync.replicas"],
    }
    with shell.dead(FOLLOWER):
        running = {command: shell.start(f"{command} --timeout 8", b"1\n") for command in ends}
        for command in running.values():
            command.waits_for("offline|LEADER_NOT_AVAILABLE|NOT_ENOUGH_REPLICAS")
        for name, command in running.items():
            command.ends_with("gave up", "`tidelog ", *ends[name])
        left = [group for group in GROUPS if group not in groups]
        assert all(f" {group} " in running["groups list"].printed for group in left)
        assert "1 record not written" in running["produce strict"].said


def test_a_cause_that_changes_is_told_again_and_the_records_are_written_in_the_end(shell: Shell):
    with shell.dead(FOLLOWER):
        producing = shell.start("produce strict", b"1\n")
        producing.waits_for("NOT_ENOUGH_REPLICAS")
        shell.cluster.kill(LEADER)
        producing.waits_for("LEADER_NOT_AVAILABLE|cannot connect to")
        shell.bring_back()
        producing.end_input()
        assert producing.status() == 0, producing.said
        assert "1 record written to strict" in producing.said


def test_who_follows_is_told_of_a_missing_leader_and_when_it_is_back(shell: Shell):
    held = HELD_BY[FOLLOWER]
    following = shell.start("consume orders --follow --offsets")
    shell.run(f"produce orders --partition {held}", b"before\n")
    wait_for(lambda: "before" in following.printed, "the record")
    assert following.said == ""
    with shell.dead(FOLLOWER):
        following.waits_for(f"orders-{held}: LEADER_NOT_AVAILABLE")
    wait_for(lambda: "the wait is over" in following.said, "the end of the wait")
    shell.run(f"produce orders --partition {held}", b"after\n")
    wait_for(lambda: "after" in following.printed, "the record")


def test_living_partitions_are_read_and_written_beside_one_without_a_leader(shell: Shell):
    """Alone, following, and in a group; the rest when its leader is back."""
    offline = f"orders-{HELD_BY[FOLLOWER]}"
    of_the_dead = [partition_of(group, len(GROUPS)) for group in shell.groups_of(FOLLOWER)[0]]
    names = (f"living-{number}" for number in count())
    group = next(name for name in names if partition_of(name, len(GROUPS)) not in of_the_dead)
    shell.run(f"produce orders --partition {HELD_BY[FOLLOWER]}", b"of the dead\n")
    with shell.dead(FOLLOWER):
        shell.run("produce orders", b"of the living\n")
        commands = ("consume orders", "consume orders --follow", f"consume orders --group {group}")
        running = [shell.start(command) for command in commands]
        for command in running:
            command.waits_for(f"{offline}: LEADER_NOT_AVAILABLE")
            wait_for(lambda command=command: "of the living" in command.printed, f"{command.command} to print")
            assert "of the dead" not in command.printed
    for command in running:
        wait_for(lambda command=command: "of the dead" in command.printed, f"{command.command} to print the rest")
    assert [running[0].status(), running[2].status()] == [0, 0]


def test_a_reassignment_says_which_replica_it_waits_for(shell: Shell):
    move = "reassign --topic orders --partition 0 --execute --wait --replicas"
    with shell.frozen(FOLLOWER):
        moving = shell.start(f"{move} {LEADER},{FOLLOWER} --timeout 6")
        moving.waits_for(rf"orders-0 \(not in sync: {FOLLOWER}\)")
        moving.ends_with("not done after 6 s", f"orders-0 (not in sync: {FOLLOWER})")
    shell.run(f"{move} {LEADER}")
