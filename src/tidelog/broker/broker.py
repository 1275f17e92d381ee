"""One broker: all its parts, and how they start and stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from enum import IntEnum
from functools import partial

from tidelog.broker.apis import BROKER_KEYS, CONTROL_KEYS, SERVED
from tidelog.broker.auto_creation import AutoCreation
from tidelog.broker.batch_checks import BatchChecks
from tidelog.broker.cannot_listen import bound
from tidelog.broker.control.admin import TopicAdmin
from tidelog.broker.control.shell import ControllerShell, ControlSettings
from tidelog.broker.counts import TopicCounts
from tidelog.broker.directory_losses import DirectoryLosses
from tidelog.broker.dispatch import Dispatcher
from tidelog.broker.dynamic_config import DynamicConfig
from tidelog.broker.fetch_sessions import FetchSessions
from tidelog.broker.fetcher_settings import FetcherSettings
from tidelog.broker.fetchers import Fetchers
from tidelog.broker.gauges import add_gauges
from tidelog.broker.group.coordinator import GroupCoordinator
from tidelog.broker.isr_changes import IsrChanges
from tidelog.broker.known_controller import KnownController
from tidelog.broker.lookups import Lookups
from tidelog.broker.membership import Membership, cluster_id, last_epoch, prepare_tree, register, set_last_epoch
from tidelog.broker.metadata import MetadataCache
from tidelog.broker.metrics_http import Pages
from tidelog.broker.neighbours import Neighbours
from tidelog.broker.pacing import Pace
from tidelog.broker.partition import Partition
from tidelog.broker.producer_ids import ProducerIds
from tidelog.broker.refusals import Refusals
from tidelog.broker.registrations import Registrations
from tidelog.broker.replicas import Replicas
from tidelog.broker.request_order import RequestOrder
from tidelog.broker.said import Said
from tidelog.broker.standing import Standing
from tidelog.broker.storage import Storage
from tidelog.broker.topic_config import write_rules
from tidelog.broker.waiting_fetches import WaitingFetches
from tidelog.broker.write_rules import WriteRules
from tidelog.config.broker import BrokerConfig
from tidelog.config.topic import TopicConfig, validate_topic
from tidelog.controller import nodes
from tidelog.controller.image import ElectionDefaults, Endpoint
from tidelog.controller.topics import Defaults
from tidelog.coordination.port import Coordination, CoordinationError, Session, SessionState
from tidelog.errors import ErrorCode, StorageError, TidelogError
from tidelog.log.directory import LogDirectory
from tidelog.log.producer_room import ProducerRoom
from tidelog.metrics import Metrics
from tidelog.net.channel import RequestChannel
from tidelog.net.server import InterBroker, ServerLimits, SocketServer
from tidelog.ports import Ports
from tidelog.types import NO_EPOCH, Epoch
from tidelog.wire.messages.controller import ControlledShutdownRequest, ControlledShutdownResponse

_log = logging.getLogger(__name__)

_ONE_LIFE_S = 5.0
"""How much longer than a session an earlier life of this broker may hold its name."""
_PATIENCE_S = 10.0
"""How long a broker waits before it complains."""
_RETRY_S = 0.1
_TOPICS_AT_ONCE = 20
"""Whose settings are resolved in one go, when the broker's own have changed."""
CONTROLLED_SHUTDOWN_VERSION = 3


class BrokerState(IntEnum):
    """By Kafka's numbers, for the metric of that name."""

    STARTING = 1
    RUNNING = 3
    SHUTTING_DOWN = 7


class Broker:
    """Made of a configuration, the ports of its machine and a coordination store; everything runs on one loop."""

    def __init__(self, config: BrokerConfig, ports: Ports, coordination: Coordination) -> None:
        self.id: int = config.broker_id
        self.static_config = config
        self.clock, self.random, self.disk = ports.clock, ports.random, ports.disk
        self.served = SERVED
        self.metrics = Metrics()
        self.counts = TopicCounts(self.metrics)
        self.metadata = MetadataCache(self.clock)
        self.request_order = RequestOrder()
        self.registrations = Registrations(lambda: self.session, self.metrics)
        self.known_controller = KnownController(lambda: self.session, self.metrics)
        self.cluster_id = ""
        self.epoch = NO_EPOCH
        """Of this life: the creation id of the broker's node. Requests meant for an earlier one are void, and between
        two lives there is none."""
        self.inter_broker_listener: str = config.inter_broker_listener.name
        self.ports_bound: dict[str, int] = {}
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Gets a reason when the broker cannot go on."""
        self._membership = Membership(coordination, config["zookeeper.session.timeout.ms"], self._session_lost)
        self._coordination = coordination
        self.storage = Storage(config, ports, self._directory_offline)
        self._directory_losses = DirectoryLosses(self.id, lambda: self.session)
        self.producer_ids = ProducerIds(self.id, lambda: self.session)
        self.fetch_sessions = FetchSessions(
            config["max.incremental.fetch.session.cache.slots"],
            config["tidelog.fetch.session.partitions.max"],
            self.clock,
            self.random,
            self.metrics,
        )
        self.waiting_fetches = WaitingFetches(config["tidelog.fetch.session.partitions.max"], self.metrics)
        self.refusals = Refusals(self.clock)
        self.batch_checks = BatchChecks(ports.disk, self.metrics)
        self.lookups = Lookups(self.metrics)
        self.auto_creation = AutoCreation(self)
        self._dispatcher = Dispatcher(
            SERVED,
            self.clock,
            self.metrics,
            config["tidelog.request.max.elements"],
            CONTROL_KEYS,
            config["tidelog.slow.request.ms"],
        )
        self.lane = self._dispatcher.lane
        self.waiting = self._dispatcher.waiting
        self.channel = RequestChannel(
            self._dispatcher.handle, config["queued.max.requests"], CONTROL_KEYS, self.clock, self.metrics
        )
        self._capacity = ports.capacity
        self.server = SocketServer(
            self.channel,
            ServerLimits.of(config, self._capacity),
            self._dispatcher.sent,
            self.metrics,
            _inter_broker(config),
        )
        self.dynamic_config: DynamicConfig
        self.neighbours = Neighbours(
            self.id, self.metadata, self.inter_broker_listener, lambda: int(self.config["controller.socket.timeout.ms"])
        )
        self.fetchers = Fetchers(
            self.id,
            lambda: self.epoch,
            lambda leader: self.neighbours.connect(leader, "fetcher"),
            lambda: FetcherSettings.of(self.config),
            lambda: int(self.config["num.replica.fetchers"]),
            self.counts.copied,
        )
        self.isr_changes = IsrChanges(
            self.id,
            lambda: self.epoch,
            self.neighbours.ask_controller,
            self.metrics,
        )
        self.replicas = Replicas(
            self.id,
            self.storage,
            self._topic_config,
            lambda topic: write_rules(self._topic_config(topic)),
            lambda topic, index: self.metadata.partition(topic, index) is not None,
            lambda topic: self.dynamic_config.refresh_topic(topic),
            self.fetchers,
            self.isr_changes,
            lambda: self.metadata.brokers,
            lambda: int(self.config["replica.lag.time.max.ms"]),
            self.clock,
            lambda partition: self.groups.role_changed(partition),
            Standing(lambda: self._membership.session.is_current()),
        )
        self.replicas.producer_room = ProducerRoom(
            config["tidelog.partition.producer.ids.max"],
            config["tidelog.broker.producer.ids.max"],
            self.replicas,
            self.clock,
            self.metrics,
        )
        self.groups = GroupCoordinator(self)
        self.controller: ControllerShell
        self.topic_admin: TopicAdmin
        self._pages = Pages(self.metrics, self.lane, self.why_not_ready, self.groups.log_ends.refresh)
        self._rejoining: asyncio.Task[None] | None = None
        self._isr_check: asyncio.Task[None] | None = None
        self._is_joining = True
        self._first_registration = True
        """This process has not tried to register yet."""
        self._is_stopping = False
        self._election_rules = _election_defaults(config)
        self._applying: Iterator[None] | None = None
        """The last change of settings, while topics hear of it."""
        self.state = BrokerState.STARTING

    @property
    def config(self) -> BrokerConfig:
        """As it is now, with what was changed while running."""
        return self.dynamic_config.broker_config

    @property
    def session(self) -> Session:
        return self._membership.session

    @property
    def is_current(self) -> bool:
        """Asked before each acknowledgement: a process that was frozen acknowledges nothing."""
        return self._membership.session.is_current()

    def why_not_ready(self) -> str:
        """Why clients should be sent elsewhere, in one line; empty if this broker serves them."""
        if self.failed.done():
            return f"the broker stops: {self.failed.result()}"
        if self.state is BrokerState.SHUTTING_DOWN:
            return "the broker stops"
        if self.epoch == NO_EPOCH:
            return "the broker is not registered with the coordination store"
        if not self.is_current:
            return "the session with the coordination store may be over"
        if self.state is not BrokerState.RUNNING or self.metadata.told_epoch != self.epoch:
            return "no controller has told the broker of the cluster yet"
        return ""

    # Start

    async def start(self) -> None:
        """Returns when clients can be served."""
        await self._meet_the_cluster()
        await self.storage.open(self.id, self.cluster_id, self._topic_config)
        self._membership.former_epoch = self.storage.continuity.last_epoch
        self.controller = self._make_controller()
        add_gauges(self)
        self.topic_admin = TopicAdmin(
            self.controller,
            self.random,
            lambda: Defaults(self.config["num.partitions"], self.config["default.replication.factor"]),
            lambda overrides: validate_topic(overrides, self.config),
            self.lane,
        )
        self._dispatcher.broker = self
        await self._listen()
        self.dynamic_config.on_topic(self._topic_config_changed)
        self.dynamic_config.on_broker(self._broker_config_changed)
        await self._join()
        await self._hear_of_the_cluster()
        self.storage.start_housekeeping()
        self.groups.start()
        self._isr_check = asyncio.create_task(self._check_isrs())
        self.state = BrokerState.RUNNING

    async def _check_isrs(self) -> None:
        while True:
            await asyncio.sleep(self.config["replica.lag.time.max.ms"] / 2000)
            self.refusals.forget_old()
            if self.is_current:
                await self.replicas.check_isrs(Pace(self.lane, is_broker=True))

    async def _meet_the_cluster(self) -> None:
        """What has to be known before the logs can be opened: which cluster this is, and its settings."""
        while True:
            session = await self._membership.connect()
            try:
                await prepare_tree(session)
                self.cluster_id = await cluster_id(session, self.random)
                self.dynamic_config = DynamicConfig(session, self.id, self.static_config, self.clock)
                await self.dynamic_config.load()
                return
            except CoordinationError as failure:
                _log.warning("the coordination store cannot be read yet: %s", failure)
                await session.close()
                await asyncio.sleep(_RETRY_S)

    async def _listen(self) -> None:
        limits = ServerLimits.of(self.config, self._capacity)
        _log.info(
            "clients may have %d connections, %d more are kept for brokers; requests may hold %d bytes (-1: no limit)",
            limits.connections.clients,
            limits.connections.broker_reserve,
            limits.queued_max_request_bytes,
        )
        for listener in self.static_config.listeners:
            listen = partial(self.server.listen, listener.name)
            self.ports_bound[listener.name] = await bound("listeners", listener.host, listener.port, listen)
        config = self.static_config
        host, port = config["tidelog.metrics.host"], config["tidelog.metrics.port"]
        if port >= 0:
            self.ports_bound["metrics"] = await bound("tidelog.metrics.port", host, port, self._pages.listen)

    async def _join(self) -> None:
        """Become a member, in the session of now or in the next if that one is over, until it works."""
        self._is_joining, is_bound, said = True, True, Said()
        timeout_s = self.static_config["zookeeper.session.timeout.ms"] / 1000 + _ONE_LIFE_S
        while self.epoch == NO_EPOCH:
            try:
                if self.session.state is SessionState.LOST:
                    self._end_life()
                    await self.controller.stop("the session was lost")
                    await self._membership.connect()
                    is_bound = False
                session = self.session
                if not is_bound:
                    await self.dynamic_config.rebind(session)
                    is_bound = True
                epoch = await self._register(session, timeout_s)
                await self.controller.start(session)
                if session.state is not SessionState.LOST:
                    self.epoch = epoch
                    self.fetchers.broker_epoch_changed()
            except CoordinationError as failure:
                if said.is_news(str(failure)):
                    _log.warning("broker %d cannot join the cluster yet: %s", self.id, failure)
                await self._membership.rest()
        self._is_joining = False
        if self.storage.is_partly_offline:
            self._directory_losses.tell()
        _log.info("broker %d of cluster %s is registered with epoch %d", self.id, self.cluster_id, self.epoch)

    async def _register(self, session: Session, timeout_s: float) -> Epoch:
        """The log directories note the new epoch first, then the store: so it never knows of one that they missed,
        unless they were put back from a copy. And only then does the broker serve: a life that the store does not know
        of ended before it had a part in anything, and has missed nothing."""
        noted, is_last = await last_epoch(session, self.id)
        if self.storage.were_unused and self._first_registration and noted is not None and noted > NO_EPOCH:
            _log.error(
                "broker %d starts with empty log directories (%s), but it was registered before, with broker epoch %d: "
                "records of which no other broker has a copy may be lost. The others are copied from their leaders. If "
                "the old disk or a backup can be read, stop the broker and put the logs back",
                self.id,
                ", ".join(self.static_config.log_dirs),
                noted,
            )
        self._first_registration = False
        self.storage.compare(noted)
        former = self._membership.is_former
        registration = self._registration()
        since, last = self.storage.continuity
        if noted != NO_EPOCH and 0 <= since <= last:
            registration = registration._replace(last_epoch=nodes.EVERY_EPOCH)
        epoch = await register(session, self.id, registration, self.clock, timeout_s, former, [is_last])
        await self.storage.registered(epoch)
        if self.storage.is_offline:
            raise StorageError(f"no log directory could note broker epoch {epoch}")  # nor will this life serve
        await set_last_epoch(session, self.id, epoch, is_last.version)
        return epoch

    def _make_controller(self) -> ControllerShell:
        settings = ControlSettings(
            listener=self.inter_broker_listener,
            socket_timeout_ms=lambda: int(self.config["controller.socket.timeout.ms"]),
            isolation_timeout_ms=self.static_config["zookeeper.session.timeout.ms"],
            delete_topic_enable=self.static_config["delete.topic.enable"],
            election_defaults=lambda: _election_defaults(self.config),
            auto_leader_rebalance_enable=self.static_config["auto.leader.rebalance.enable"],
            leader_imbalance_check_interval_s=self.static_config["leader.imbalance.check.interval.seconds"],
            leader_imbalance_per_broker_percentage=self.static_config["leader.imbalance.per.broker.percentage"],
            is_stopping=lambda: self._is_stopping,
        )
        return ControllerShell(self.id, self.clock, settings)

    async def _hear_of_the_cluster(self) -> None:
        while not await self.metadata.wait_until(lambda: self.metadata.is_complete, _PATIENCE_S):
            _log.warning("broker %d is registered, but no controller has told it of the cluster yet", self.id)

    def _registration(self) -> nodes.Registration:
        config = self.static_config
        return nodes.Registration(
            tuple(
                Endpoint(one.name, one.host, one.port or self.ports_bound[one.name], one.protocol)
                for one in config.advertised_listeners
            ),
            config["broker.rack"],
            intact_since=self.storage.continuity.intact_since,
            last_epoch=self.storage.continuity.last_epoch,
            has_failed_directory=self.storage.is_partly_offline,
        )

    # Settings

    def _topic_config(self, topic: str) -> TopicConfig:
        return self.dynamic_config.topic_config(topic)

    def _topic_config_changed(self, topic: str, config: TopicConfig) -> None:
        self.controller.config_changed([topic])
        self._apply_topic_config(topic, config)

    def _apply_topic_config(self, topic: str, config: TopicConfig) -> None:
        rules = write_rules(config)
        for partition in self.replicas.of_topic(topic):
            partition.rules = rules
            partition.log.config = config

    def _broker_config_changed(self, config: BrokerConfig) -> None:
        self.server.reconfigure(ServerLimits.of(config, self._capacity))
        self._dispatcher.slow_requests.slow_ns = config["tidelog.slow.request.ms"] * 1_000_000
        self.storage.reconfigure(config)
        rules = _election_defaults(config)
        if rules != self._election_rules:
            self._election_rules = rules
            self.controller.config_changed()
        self._applying = applying = self._apply_topic_configs()
        if next(applying, True) is None:
            asyncio.create_task(self._go_on(applying))  # noqa: RUF006 - it ends by itself

    def _apply_topic_configs(self) -> Iterator[None]:
        """What each topic inherits, in slices. A topic whose turn comes later gets what holds then."""
        partitions: dict[str, list[Partition]] = {}
        for name, partition in self.replicas.partitions.items():
            partitions.setdefault(name.topic, []).append(partition)
        made: dict[int, tuple[TopicConfig, WriteRules]] = {}
        for count, topic in enumerate(partitions, 1):
            config = self.dynamic_config.topic_config(topic)
            if id(config) not in made:  # topics without settings of their own share one
                made[id(config)] = config, write_rules(config)
            _, rules = made[id(config)]
            for partition in partitions[topic]:
                partition.rules = rules
                partition.log.config = config
            if count % _TOPICS_AT_ONCE == 0:
                yield

    async def _go_on(self, applying: Iterator[None]) -> None:
        while self._applying is applying and not self._is_stopping:
            await self.lane.turn()
            if next(applying, True):
                return

    # What can go wrong

    def _directory_offline(self, directory: LogDirectory) -> None:
        self.replicas.went_offline(directory)
        if self.storage.is_offline:
            self.fail(f"the last log directory is offline: {directory.path}: {directory.offline}")
        else:
            self._directory_losses.tell()

    def fail(self, why: str) -> None:
        """The broker cannot go on: whoever runs it stops it and exits with an error."""
        if not self.failed.done():
            _log.critical("broker %d stops: %s", self.id, why)
            self.failed.set_result(why)

    def _session_lost(self) -> None:
        """Others may lead by now: lead nothing, and join again as a new life (S12)."""
        if self._is_stopping:
            return
        self._end_life()
        if not self._is_joining:
            self._is_joining = True
            self._rejoining = asyncio.create_task(self._rejoin())

    def _end_life(self) -> None:
        self.epoch = NO_EPOCH
        self.replicas.resign()

    async def _rejoin(self) -> None:
        try:
            await self._join()
        except Exception as failure:  # whatever it is: a broker that is no member must not linger
            self.fail(f"it cannot join the cluster again: {failure!r}")

    # Stop

    async def _hand_over(self) -> None:
        """ControlledShutdown: others lead what this broker leads before it stops, if there are others (S12.3)."""
        config = self.static_config
        if not config["controlled.shutdown.enable"] or self.epoch == NO_EPOCH or self.failed.done():
            return
        begun_ns = self.clock.monotonic_ns()
        tries: int = config["controlled.shutdown.max.retries"]
        for _ in range(tries):
            try:
                response = await self.neighbours.ask_controller(
                    ControlledShutdownRequest(broker_id=self.id, broker_epoch=self.epoch), CONTROLLED_SHUTDOWN_VERSION
                )
            except (TidelogError, OSError) as failure:
                _log.info("the controller cannot be asked to take over: %s", failure)
            else:
                if response.error_code == ErrorCode.NONE and not self._others_can_lead(response):
                    took_s, left = (self.clock.monotonic_ns() - begun_ns) / 1e9, len(response.remaining_partitions)
                    _log.info(
                        "controlled shutdown of broker %d: its partitions were handed over in %.1f s%s",
                        self.id,
                        took_s,
                        f", but for {left} that no other living broker can lead" if left else "",
                    )
                    return
            await asyncio.sleep(config["controlled.shutdown.retry.backoff.ms"] / 1000)
        _log.info("controlled shutdown of broker %d: given up after %d tries, it stops all the same", self.id, tries)

    def _others_can_lead(self, response: ControlledShutdownResponse) -> bool:
        """Whether it is worth waiting: for some partition another living replica may still come into the ISR."""
        for remaining in response.remaining_partitions:
            partition = self.metadata.partition(remaining.topic_name, remaining.partition_index)
            if partition is not None and any(
                replica != self.id and self.neighbours.is_alive(replica) for replica in partition.replicas
            ):
                return True
        return False

    async def stop(self) -> None:
        """Stop serving, close the logs, then end the session, so that the next life finds all in order."""
        self._is_stopping = True
        self.state = BrokerState.SHUTTING_DOWN
        if self._rejoining is not None:
            self._rejoining.cancel()
            await asyncio.gather(self._rejoining, return_exceptions=True)
        await self._hand_over()
        self.server.stop_listening()
        if hasattr(self, "controller"):
            await self.controller.stop()
        await self.server.close()
        await self._dispatcher.close()
        if self._isr_check is not None:
            self._isr_check.cancel()
        await self._directory_losses.stop()
        await self.groups.close()
        await self.registrations.stop()
        await self.isr_changes.stop()
        await self.fetchers.stop()
        self.neighbours.close()
        await self._pages.close()
        if hasattr(self, "dynamic_config"):
            await self.dynamic_config.stop()
        try:
            await self.storage.close(self.epoch)
        finally:
            if hasattr(self._membership, "session"):
                await self._membership.leave()


def _election_defaults(config: BrokerConfig) -> ElectionDefaults:
    return ElectionDefaults(config["unclean.leader.election.enable"], config["min.insync.replicas"])


def _inter_broker(config: BrokerConfig) -> InterBroker:
    is_separate = len(config.listeners) > 1
    return InterBroker(config.inter_broker_listener.name if is_separate else None, BROKER_KEYS)
