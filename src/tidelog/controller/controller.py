"""The controller: an event comes in, writes and requests go out (S12).

It keeps the image and applies its own writes to it at once. If one of them fails the shell reads everything again and
says so with TookOver; so nothing here has to know how a write can fail.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidelog.controller.events import (
    AlterPartitionAsked,
    BrokersChanged,
    ElectionAsked,
    ElectionRulesChanged,
    Event,
    ImbalanceChecked,
    LeaderAndIsrAnswered,
    LogDirFailed,
    LogEndsTold,
    LogEndsUntold,
    Outcome,
    ReassignmentAsked,
    ReplicasPutOff,
    ShutdownAsked,
    StatesChanged,
    StopReplicaAnswered,
    TookOver,
    TopicsChanged,
)
from tidelog.controller.image import ElectionDefaults, Image, Snapshot
from tidelog.controller.isr import alter_partitions
from tidelog.controller.leadership import hold_elections, restore_balance
from tidelog.controller.observed import (
    brokers_changed,
    election_rules_changed,
    leader_and_isr_answered,
    log_dir_failed,
    log_ends_told,
    log_ends_untold,
    replicas_put_off,
    states_changed,
    stop_replica_answered,
    took_over,
    topics_changed,
)
from tidelog.controller.reassignment import end_where_in_sync, reassign
from tidelog.controller.requests import Batch
from tidelog.controller.shutdown import shut_down
from tidelog.controller.turn import Turn
from tidelog.types import BrokerId, Epoch

_RULES: dict[type, Callable[[Turn, Any], None]] = {
    # What is asked for
    AlterPartitionAsked: alter_partitions,
    ShutdownAsked: shut_down,
    ElectionAsked: hold_elections,
    ImbalanceChecked: restore_balance,
    ReassignmentAsked: reassign,
    # What is observed
    TookOver: took_over,
    BrokersChanged: brokers_changed,
    TopicsChanged: topics_changed,
    StatesChanged: states_changed,
    LogDirFailed: log_dir_failed,
    ElectionRulesChanged: election_rules_changed,
    LeaderAndIsrAnswered: leader_and_isr_answered,
    LogEndsTold: log_ends_told,
    LogEndsUntold: log_ends_untold,
    ReplicasPutOff: replicas_put_off,
    StopReplicaAnswered: stop_replica_answered,
}


class Controller:
    """One term of one controller.

    Always: a state in the image was written by this term or read, and each change of leader or ISR raises the leader
    epoch by one, but for the ISRs that leaders ask for. Topics to delete are left alone but for their deletion.
    """

    def __init__(
        self,
        broker_id: BrokerId,
        epoch: Epoch,
        listener: str,
        *,
        defaults: Callable[[], ElectionDefaults] = ElectionDefaults,
        deletion_enabled: bool = True,
    ) -> None:
        self.broker_id = broker_id
        self.epoch = epoch
        self._listener = listener
        self._defaults = defaults
        self._deletion_enabled = deletion_enabled
        self._turn = self._new_turn(Image(Snapshot({}, {}, {}, ())))

    @property
    def image(self) -> Image:
        return self._turn.image

    def handle(self, event: Event) -> Outcome:
        self._turn = self._new_turn(self.image)
        _RULES[type(event)](self._turn, event)
        end_where_in_sync(self._turn)
        return self._turn.finish()

    def tell(self, outcome: Outcome) -> Outcome:
        """Adds what the brokers have to be told, of the last event that was handled.

        To describe many partitions takes as long as to decide on them. The shell has written the nodes in between, and
        others had their turn.
        """
        assert outcome is self._turn.outcome, "the image has changed since"
        outcome.requests = self._turn.batch.requests()
        return outcome

    def _new_turn(self, image: Image) -> Turn:
        batch = Batch(image, self.broker_id, self.epoch, self._listener)
        return Turn(image, self.epoch, batch, self._defaults, self._deletion_enabled)
