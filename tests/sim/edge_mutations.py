"""Fixes of the edge cases from 29 on, and of 9, each turned off alone; see tests.sim.mutations.

SEEN_IN_SEARCH names those that the seed search notices. The others need what no plan makes go wrong: they are shown by
stories, which name them or are named beside them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, cast

import pytest

from tidelog.broker.control.reach import Reach
from tidelog.broker.control.snapshot import ClusterReader
from tidelog.broker.directory_losses import DirectoryLosses
from tidelog.broker.fetch_answer import Source
from tidelog.broker.fetch_reading import FetchReading
from tidelog.broker.fetcher import Fetcher
from tidelog.broker.handlers.fetch import _Fetch
from tidelog.broker.membership import Membership
from tidelog.broker.metadata import PartitionMetadata
from tidelog.broker.partition import Partition
from tidelog.broker.replicas import Replicas, Unwanted
from tidelog.broker.request_order import RequestOrder
from tidelog.broker.standing import Standing
from tidelog.broker.storage import Storage
from tidelog.client.sequences import PartitionQueue
from tidelog.controller import elections, nodes
from tidelog.controller.elections import Candidates, Election
from tidelog.controller.image import NO_LEADER, Image, PartitionState
from tidelog.controller.image import Broker as RegisteredBroker
from tidelog.controller.turn import Turn
from tidelog.coordination.memory import MemorySession
from tidelog.coordination.port import CoordinationError
from tidelog.groups.records import NO_BAD_RECORDS, read_record
from tidelog.lab.checkers import (
    AcknowledgedIsNeverLost,
    ConsumedNeverDisappears,
    NoTideWithoutSession,
    OnceAndInOrder,
    ReplicasAgree,
)
from tidelog.lab.healing_rules import (
    AllInSyncInTime,
    GroupGoesOn,
    InSyncInTime,
    IsolatedControllerYields,
    MetadataInTime,
    ServedInTime,
)
from tidelog.lab.loss_rules import LossIsReported, ReplicasEndEqual
from tidelog.lab.rules import Rule
from tidelog.log.continuity import BootNote
from tidelog.log.directory import LogDirectory
from tidelog.log.log import Log
from tidelog.log.reading import Region
from tidelog.log.work import FileWork
from tidelog.replication.leader import FollowerFetch, Leader
from tidelog.types import NO_EPOCH, TopicPartition
from tidelog.wire.messages.fetch import FetchResponse


def lost_stays_in_the_isr(patch: pytest.MonkeyPatch) -> None:
    """A broker that may have lost records is taken for as good as before (edge case 9)."""
    patch.setattr(Image, "has_lost", lambda self, state, broker: False)


def no_eligible_replicas(patch: pytest.MonkeyPatch) -> None:
    """A member that leaves an ISR that can commit nothing may not be elected any more (KIP-966)."""
    patch.setattr(Turn, "_elr", lambda self, topic, partition, changed: ())


def the_last_one_back_leads(patch: pytest.MonkeyPatch) -> None:
    """A killed broker counts as one that lost records, and each that returns leaves the recorded ISR (edge case 31)."""
    elect = elections.elect

    def elect_the_last(state: PartitionState, candidates: Candidates, unclean: bool, *, at_once: bool) -> Election:
        elected = elect(state, candidates, unclean, at_once=at_once)
        if elected.leader != NO_LEADER:
            return elected
        away = tuple(member for member in state.isr if not candidates.is_online(member))
        last = candidates.first(state.isr)
        return Election(NO_LEADER, away) if away else Election(last, (last,))

    patch.setattr("tidelog.controller.turn.elect", elect_the_last)
    patch.setattr(RegisteredBroker, "has_kept", lambda self, epoch: epoch >= self.epoch)


def outsiders_outbid_members(patch: pytest.MonkeyPatch) -> None:
    """A replica outside ISR and ELR leads if its last epoch is later than those of members that have lost power."""
    fullness = Candidates._fullness
    patch.setattr(Candidates, "_fullness", lambda self, broker, is_member: fullness(self, broker, False))


def start_in_the_middle(patch: pytest.MonkeyPatch) -> None:
    """An unknown producer may start with any sequence, and the lab's writers send their first batches together."""
    patch.setattr("tidelog.log.producers._check_first_sequence", lambda header: None)
    identify = PartitionQueue.identify

    def identify_as_known(self: PartitionQueue, producer_id: int, epoch: int) -> None:
        identify(self, producer_id, epoch)
        self._is_known = True

    patch.setattr(PartitionQueue, "identify", identify_as_known)


def sessions_are_given_up(patch: pytest.MonkeyPatch) -> None:
    """A session whose time is over here is not resumed, and its nodes are waited for (edge case 41)."""
    tick = MemorySession._tick

    def tick_or_lose(self: MemorySession) -> None:
        if self.is_current():
            tick(self)
        else:
            self.lose()

    patch.setattr(MemorySession, "_tick", tick_or_lose)
    patch.setattr(Membership, "is_former", lambda self, node: False)


def accept_later_epochs(patch: pytest.MonkeyPatch) -> None:
    """A follower takes batches of a later leader epoch than the one it fetches in (edge case 30)."""
    append = Log.append_as_follower
    patch.setattr(Log, "append_as_follower", lambda self, buffer, leader_epoch=None: append(self, buffer))


def send_what_stands_there_now(patch: pytest.MonkeyPatch) -> None:
    """An answer is read from its place in the file, whatever was cut and written there since (edges 29 and 30)."""
    patch.setattr(Region, "is_void", False)
    patch.setattr(Source, "is_over", False)
    accept_later_epochs(patch)


def fetch_between_registrations(patch: pytest.MonkeyPatch) -> None:
    """A fetch and an ISR member without a broker epoch count like any other (edge case 32)."""
    patch.setattr(
        Fetcher,
        "_may_ask",
        lambda self: bool(self._forgotten) or not all(one.is_resting for one in self._copying.values()),
    )
    patch.setattr(_Fetch, "_is_follower", property(lambda self: self.replica_id >= 0))
    patch.setattr("tidelog.broker.handlers.fetch._is_of_follower", lambda broker, state: state.replica_id >= 0)
    patch.setattr("tidelog.controller.isr._is_known", lambda state, epoch, member: epoch in (-1, member.epoch))


def followers_do_not_flush(patch: pytest.MonkeyPatch) -> None:
    """A follower acknowledges what its flush policy has not synced (edge case 33)."""
    patch.setattr(Fetcher, "_flush_due", lambda self: None)


def unclean_elections_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    """Records are lost and no gauge tells of it (edge case 9)."""
    elect = elections.elect
    patch.setattr(
        "tidelog.controller.turn.elect", lambda *facts, **more: elect(*facts, **more)._replace(is_unclean=False)
    )


def hear_only_the_watched(patch: pytest.MonkeyPatch) -> None:
    """A follower is heard after a cold read, and not of a partition that changed meanwhile (edge case 34)."""
    hear = _Fetch._hear_follower

    def hear_the_watched(self: _Fetch) -> None:
        sources = self._answer.sources
        self._answer.sources = {item: source for item, source in sources.items() if item.partition is not None}
        hear(self)

    async def read_first(self: _Fetch) -> FetchResponse:
        await self._read_dirty_cold()
        self._hear_follower()
        return self._respond() if self._answer.is_satisfied else cast(FetchResponse, await self._park().wait())

    patch.setattr(_Fetch, "_hear_follower", hear_the_watched)
    patch.setattr(_Fetch, "_start_cold", read_first)


def out_of_range_at_once(patch: pytest.MonkeyPatch) -> None:
    """A leader tells a client that its offset is out of range, however unsure of its term it is (edge case 43)."""
    patch.setattr(FetchReading, "_must_confirm", lambda self, partition, offset: False)


def commit_without_session(patch: pytest.MonkeyPatch) -> None:
    """HW moves and acknowledgements go out while the session may be over."""
    patch.setattr(Standing, "may_commit", lambda self, partition: True)
    patch.setattr(Partition, "is_current", True)


def trust_the_page_cache_after_a_failed_sync(patch: pytest.MonkeyPatch) -> None:
    """What a failed sync left there is taken for written by the next sync that succeeds."""
    patch.setattr("tidelog.log.recovery._write_anew", lambda *facts: None)


def sync_behind_a_failed_one(patch: pytest.MonkeyPatch) -> None:
    """A sync that was asked for before the failure was heard of counts, although it found nothing to write."""
    patch.setattr(FileWork, "_guarded", lambda self, work: work())


def bad_records_end_a_load(patch: pytest.MonkeyPatch) -> None:
    """A record that no coordinator can have written keeps its whole partition from being loaded (edge case 38)."""

    def read_all(records: Any) -> Any:
        return [read_record(key, value) for key, value in records], NO_BAD_RECORDS

    patch.setattr("tidelog.groups.groups.read_good_records", read_all)


def late_requests_are_applied(patch: pytest.MonkeyPatch) -> None:
    """A broker takes a controller's requests in the order of their arrival (edge case 42)."""
    patch.setattr(RequestOrder, "admit", lambda self, controller_epoch, request: None)
    patch.setattr(PartitionMetadata, "is_older_than", lambda self, known: False)


def isolated_controllers_stay(patch: pytest.MonkeyPatch) -> None:
    """A controller that reaches no other broker keeps its office while it has a session."""
    patch.setattr(Reach, "watch", lambda self, others, isolated: None)


def isr_changes_are_not_told(patch: pytest.MonkeyPatch) -> None:
    """A broker's metadata has the ISR with which a term began."""
    patch.setattr(PartitionMetadata, "is_older_than", lambda self, known: self.leader_epoch <= known.leader_epoch)


def parted_logs_stay(patch: pytest.MonkeyPatch) -> None:
    """The leader never tells where logs part, which is looked at when all is quiet."""
    patch.setattr("tidelog.broker.fetch_reading._diverging_epoch", lambda partition, item: None)


def delete_what_is_not_named(patch: pytest.MonkeyPatch) -> None:
    """A replica that a full LeaderAndIsr leaves out is deleted (edge case 35)."""

    async def delete(self: Replicas, name: TopicPartition) -> None:
        await self._stop(Unwanted(name, NO_EPOCH, delete=True))

    patch.setattr(Replicas, "_set_aside", delete)


def strays_do_not_return(patch: pytest.MonkeyPatch) -> None:
    """A partition that is named again begins with an empty log (edge case 35)."""
    patch.setattr(LogDirectory, "stray_of", lambda self, partition, topic_id: None)


def bad_nodes_stop_the_controller(patch: pytest.MonkeyPatch) -> None:
    """A node that cannot be read ends the take-over (edge case 36)."""
    patch.setattr(ClusterReader, "_readable", lambda self, path, decode: decode())


def tell_of_a_lost_directory_once(patch: pytest.MonkeyPatch) -> None:
    """If the store does not answer just then, the controller is not told (edge case 37)."""

    async def tell_once(self: DirectoryLosses) -> None:
        with contextlib.suppress(CoordinationError):
            await self._session().create(nodes.LOG_DIR_EVENT_PREFIX, self._event, sequential=True)

    patch.setattr(DirectoryLosses, "_run", tell_once)


def lead_on_with_a_failed_log(patch: pytest.MonkeyPatch) -> None:
    """A leader whose log directory failed keeps its term (edge case 37)."""
    step_down = Partition.went_offline

    def lead_on(self: Partition) -> None:
        leader = self.leader
        step_down(self)
        self.leader = leader

    patch.setattr(Partition, "went_offline", lead_on)


def late_fetches_take_followers_back(patch: pytest.MonkeyPatch) -> None:
    """A leader believes a fetch of an earlier position, whenever it comes."""

    def believe(self: Leader, fetch: FollowerFetch, now_ms: int) -> bool:
        remote = self.remotes.get(fetch.follower)
        if remote is not None and fetch.fetch_offset < remote.log_end_offset:
            remote.broker_epoch = NO_EPOCH
        return as_ever(self, fetch, now_ms)

    as_ever = Leader.follower_fetched
    patch.setattr(Leader, "follower_fetched", believe)


def topics_of_one_name_are_one(patch: pytest.MonkeyPatch) -> None:
    """A follower takes what is said of a deleted topic for news of the one that has its name now, and does not tell the
    leader to forget the deleted one."""

    def add(self: Fetcher, partition: Partition, epoch: int) -> None:
        self._forgotten = {item: None for item in self._forgotten if item[0] != partition.name}
        as_ever(self, partition, epoch)

    as_ever = Fetcher.add
    patch.setattr(Fetcher, "add", add)
    patch.setattr("tidelog.broker.fetcher._is_about", lambda one, topic: True)


def logs_begin_at_batches(patch: pytest.MonkeyPatch) -> None:
    """A follower that has to begin within a batch of its leader refuses it."""
    patch.setattr("tidelog.broker.fetcher.begins_within", lambda log, records: None)


def fewer_directories_are_as_good(patch: pytest.MonkeyPatch) -> None:
    """A broker that is started with fewer log directories than it had passes for intact."""
    patch.setattr(BootNote, "directories", 0)


def copies_are_as_good(patch: pytest.MonkeyPatch) -> None:
    """A log directory that was put back from a copy passes for the one that was there before."""

    def believe(self: Storage, noted: int | None) -> None:
        if noted is not None and self.continuity.intact_since >= 0:
            self.continuity = self.continuity._replace(last_epoch=noted)

    patch.setattr(Storage, "compare", believe)
    patch.setattr(BootNote, "is_original", True)


def close_within_a_cut(patch: pytest.MonkeyPatch) -> None:
    """A log that is being cut is closed with the producers that it had before, and takes retries for duplicates."""

    async def close(self: Log) -> None:
        end, entries, segments = self.log_end_offset, self.producers.snapshot(), list(self.segments)
        await self.abandon_cleaning()
        self.segments.active.complete_time_index()
        await self.flush()

        def finish() -> None:
            self.snapshots.write(end, entries)
            for segment in segments:
                segment.close()

        await self.work.run(finish)

    patch.setattr(Log, "close", close)


SEEN_IN_SEARCH: dict[Callable[[pytest.MonkeyPatch], None], tuple[int, type[Rule] | None]] = {
    lost_stays_in_the_isr: (10, ConsumedNeverDisappears),
    no_eligible_replicas: (137, AcknowledgedIsNeverLost),
    the_last_one_back_leads: (137, ReplicasAgree),
    outsiders_outbid_members: (22, ReplicasAgree),
    commit_without_session: (25, NoTideWithoutSession),
    followers_do_not_flush: (126, AcknowledgedIsNeverLost),
    trust_the_page_cache_after_a_failed_sync: (312, ReplicasAgree),
    sync_behind_a_failed_one: (58, ReplicasAgree),
    start_in_the_middle: (160, OnceAndInOrder),
    bad_records_end_a_load: (112, GroupGoesOn),
    unclean_elections_are_not_counted: (79, LossIsReported),
    out_of_range_at_once: (350, ConsumedNeverDisappears),
    isolated_controllers_stay: (191, IsolatedControllerYields),
    isr_changes_are_not_told: (1, MetadataInTime),
    parted_logs_stay: (4, ReplicasEndEqual),
    send_what_stands_there_now: (202, ReplicasAgree),
    fetch_between_registrations: (423, ConsumedNeverDisappears),
    hear_only_the_watched: (547, InSyncInTime),
    late_requests_are_applied: (60, MetadataInTime),
    sessions_are_given_up: (52, ServedInTime),
    delete_what_is_not_named: (314, AcknowledgedIsNeverLost),
    strays_do_not_return: (314, AcknowledgedIsNeverLost),
    tell_of_a_lost_directory_once: (6, ServedInTime),
    bad_nodes_stop_the_controller: (152, ServedInTime),
    fewer_directories_are_as_good: (135, ConsumedNeverDisappears),
    copies_are_as_good: (104, ConsumedNeverDisappears),
    topics_of_one_name_are_one: (67, AllInSyncInTime),
    logs_begin_at_batches: (35, AllInSyncInTime),
    close_within_a_cut: (195, AcknowledgedIsNeverLost),
}
"""A seed that shows it, and the rule that it breaks; None if the cluster does not come to rest."""
