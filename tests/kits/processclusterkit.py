"""Three brokers in processes of their own, a replicated topic, and what must hold of it after any fault."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.kits.coordinationkit import zookeeper_server
from tests.kits.loadkit import Load, read_all
from tests.kits.processkit import BrokerProcess, free_port, wait_for
from tidelog.errors import TidelogError
from tidelog.net.calling import Connection
from tidelog.records.header import headers
from tidelog.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

T = TypeVar("T")

LEADER, FOLLOWER, CONTROLLER = 1, 2, 3
"""Who is what at first: the leader leads half of the partitions and the controller the other half."""
BROKERS = (LEADER, FOLLOWER, CONTROLLER)
ASSIGNMENTS = [
    [LEADER, FOLLOWER, CONTROLLER],
    [LEADER, CONTROLLER, FOLLOWER],
    [CONTROLLER, LEADER, FOLLOWER],
    [CONTROLLER, FOLLOWER, LEADER],
]
PARTITIONS = range(len(ASSIGNMENTS))
LED_BY_LEADER, LED_BY_CONTROLLER = (0, 1), (2, 3)
TOPIC = "orders"
HOMES = ["embedded", pytest.param("zookeeper", marks=pytest.mark.jvm)]
SESSION_MS = 3_000

_SETTINGS = {
    "zookeeper_session_timeout_ms": str(SESSION_MS),
    "replica_lag_time_max_ms": "1500",
    "replica_fetch_wait_max_ms": "200",
    "replica_fetch_backoff_ms": "100",
    "replica_socket_timeout_ms": "2000",
    "controller_socket_timeout_ms": "2000",
    "controlled_shutdown_retry_backoff_ms": "100",
    "auto_leader_rebalance_enable": "false",
}
_METADATA_VERSION = 12
_ANSWER_MS = 2_000
_CREATE_S = 30.0
_CHROOTS = itertools.count(1)


class PartitionView(NamedTuple):
    """A partition as one broker knows it."""

    leader: int
    epoch: int
    isr: tuple[int, ...]


def home_settings(home: str, directory: Path) -> dict[str, str]:
    """Where the brokers of one cluster agree."""
    if home == "zookeeper":
        return {"zookeeper_connect": f"{zookeeper_server().connect}/cluster-{next(_CHROOTS)}"}
    return {"tidelog_coordination_dir": str(directory / "coordination")}


class ProcessCluster:
    """Brokers 1 to 3, each with a directory and a port that it keeps; 3 is the first and so the controller."""

    def __init__(self, directory: Path, home: str, data: Sequence[str] = ("data",)) -> None:
        self.home = home
        self._data = data
        """What the log directories of each broker are called."""
        self._directory = directory
        self._settings = {**_SETTINGS, **home_settings(home, directory)}
        self.ports = {number: free_port() for number in BROKERS}
        self.brokers: dict[int, BrokerProcess] = {}
        self._frozen: set[int] = set()
        self._loads: list[Load] = []

    def own_settings(self, number: int) -> dict[str, str]:
        """Those in which a broker differs from the others."""
        return {
            "broker_id": str(number),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.ports[number]}",
            "log_dirs": ",".join(map(str, self._log_dirs(number))),
        }

    def _log_dirs(self, number: int) -> list[Path]:
        return [self._directory / f"broker-{number}" / name for name in self._data]

    def _make(self, number: int) -> None:
        directory = self._directory / f"broker-{number}"
        directory.mkdir()
        self.brokers[number] = BrokerProcess(directory, **{**self._settings, **self.own_settings(number)})

    def start(self) -> None:
        self._make(CONTROLLER)
        at_once(self._make, [LEADER, FOLLOWER])
        wait_for(lambda: self.controller() == CONTROLLER, "a controller")

    def close(self) -> None:
        """However the test ended, nothing of it is left."""
        for load in self._loads:
            load.abandon()
        for broker in self.brokers.values():
            broker.kill()

    def __getitem__(self, number: int) -> BrokerProcess:
        return self.brokers[number]

    @property
    def up(self) -> list[int]:
        return [number for number, one in sorted(self.brokers.items()) if one.is_alive and number not in self._frozen]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports.values())

    # What the brokers know

    def metadata(self, number: int) -> MetadataResponse | None:
        """None if this broker does not answer."""

        async def ask() -> MetadataResponse:
            connection = await Connection.open("127.0.0.1", self.ports[number], client_id="kit")
            request = MetadataRequest(topics=[MetadataRequestTopic(name=TOPIC)], allow_auto_topic_creation=False)
            try:
                answer: MetadataResponse = await connection.call(request, _METADATA_VERSION, timeout_ms=_ANSWER_MS)
            finally:
                connection.close()
            return answer

        try:
            return asyncio.run(ask())
        except TidelogError:
            return None

    def view(self, number: int) -> dict[int, PartitionView]:
        """Empty if this broker knows nothing of the topic, or does not answer."""
        metadata = self.metadata(number)
        if metadata is None:
            return {}
        return {
            one.partition_index: PartitionView(one.leader_id, one.leader_epoch, tuple(sorted(one.isr_nodes)))
            for one in metadata.topics[0].partitions
        }

    def controller(self) -> int:
        """The one that all brokers name that are up; 0 if they do not agree."""
        answers = [self.metadata(number) for number in self.up]
        named = {0 if one is None else one.controller_id for one in answers}
        return named.pop() if len(named) == 1 else 0

    # Waiting

    def wait_for_isr(self, isr: Sequence[int], partitions: Sequence[int] = PARTITIONS) -> None:
        """All brokers that are up know the same leaders and this ISR.

        One that was stopped may show the ISR of before: so all of them are asked, and must be of one mind.
        """

        def is_reached() -> bool:
            views = [self.view(number) for number in self.up]
            shown = [[view.get(partition) for partition in partitions] for view in views]
            return all(one == shown[0] for one in shown) and all(
                one is not None and one.leader in isr and one.isr == tuple(sorted(isr)) for one in shown[0]
            )

        wait_for(is_reached, f"the ISR {isr} of {list(partitions)}")

    def wait_for_isr_at(self, number: int, isr: Sequence[int], partitions: Sequence[int]) -> None:
        """One broker knows of it, whatever the others do."""

        def is_known() -> bool:
            view = self.view(number)
            return all(one in view and view[one].isr == tuple(sorted(isr)) for one in partitions)

        wait_for(is_known, f"the ISR {isr} of {list(partitions)} at broker {number}")

    def wait_for_leader(self, other_than: int, partitions: Sequence[int]) -> None:
        """Each broker that is up knows of another leader."""

        def is_led() -> bool:
            views = [self.view(number) for number in self.up]
            leaders = {view[one].leader if one in view else -1 for view in views for one in partitions}
            return not leaders & {other_than, -1}

        wait_for(is_led, f"a leader of {list(partitions)} other than {other_than}")

    # Faults

    def kill(self, *numbers: int) -> None:
        """All of them before any of them is waited for."""
        for number in numbers:
            self.brokers[number].process.send_signal(signal.SIGKILL)
        for number in numbers:
            self.brokers[number].process.wait()

    def restart(self, *numbers: int) -> None:
        at_once(lambda number: self.brokers[number].start_again(), numbers)

    def freeze(self, number: int) -> None:
        self._frozen.add(number)
        self.brokers[number].process.send_signal(signal.SIGSTOP)

    def thaw(self, number: int) -> None:
        self.brokers[number].process.send_signal(signal.SIGCONT)
        self._frozen.discard(number)

    # The topic

    def create_topic(self, **config: str) -> None:
        """Segments are small, so that a short load rolls often."""
        named = {"min_insync_replicas": "2", "segment_bytes": "65536", **config}
        topic = NewTopic(
            TOPIC,
            num_partitions=len(ASSIGNMENTS),
            replica_assignment=ASSIGNMENTS,
            config={name.replace("_", "."): value for name, value in named.items()},
        )
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        admin.create_topics([topic])[TOPIC].result(_CREATE_S)
        self.wait_for_isr(BROKERS)

    def load(self, partitions: Sequence[int] = PARTITIONS, **options: int) -> Load:
        load = Load(self.bootstrap, TOPIC, partitions, **options)
        self._loads.append(load)
        return load

    def partitions_by_directory(self, number: int) -> list[list[int]]:
        """Which partitions each of a broker's log directories holds."""
        return [
            [partition for partition in PARTITIONS if (directory / f"{TOPIC}-{partition}").exists()]
            for directory in self._log_dirs(number)
        ]

    # What must hold at the end

    def check(self, *loads: Load) -> None:
        """Once all replicas are in sync: every acknowledged record is there once, in order, on all of them."""
        for load in loads:
            load.stop()
        self.wait_for_isr(BROKERS)
        found = read_all(self.bootstrap, TOPIC, PARTITIONS)
        for load in loads:
            load.check(found)
        for partition in PARTITIONS:
            high_watermark = len(found[partition])
            held = {number: self.bytes_below(number, partition, high_watermark) for number in BROKERS}
            assert len(set(held.values())) == 1, f"the replicas of {partition} differ below {high_watermark}"
        statuses = at_once(lambda number: self.brokers[number].stop(), BROKERS)
        assert statuses == [0] * len(BROKERS)
        assert not [line for number in BROKERS for line in self.brokers[number].lines("Traceback")]

    def bytes_below(self, number: int, partition: int, high_watermark: int) -> bytes:
        """The log of one replica as it is in its files, whose boundaries may be elsewhere than another's."""
        (directory,) = [path for one in self._log_dirs(number) for path in one.glob(f"{TOPIC}-{partition}")]
        held = b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))
        batches = [(position, header) for position, header in headers(held) if header.base_offset < high_watermark]
        end = 0
        for _, header in batches:
            assert header.base_offset == end, f"broker {number} has a gap at {end} of {partition}"
            end = header.next_offset
        assert end == high_watermark, f"broker {number} has {end} of {high_watermark} records of {partition}"
        return held[: batches[-1][0] + batches[-1][1].size_bytes] if batches else b""


@contextmanager
def process_cluster(
    directory: Path, home: str, *, data: Sequence[str] = ("data",), topic: Mapping[str, str] | None = None
) -> Iterator[ProcessCluster]:
    """With the topic, all of it in sync."""
    cluster = ProcessCluster(directory, home, data)
    with started(cluster, **topic or {}):
        yield cluster


@contextmanager
def started(cluster: ProcessCluster, **topic: str) -> Iterator[None]:
    """It runs and has the topic, and afterwards nothing of it is left."""
    try:
        cluster.start()
        cluster.create_topic(**topic)
        yield
    finally:
        cluster.close()


def at_once(what: Callable[[int], T], numbers: Sequence[int]) -> list[T]:
    with ThreadPoolExecutor(len(numbers)) as pool:
        return list(pool.map(what, numbers))
