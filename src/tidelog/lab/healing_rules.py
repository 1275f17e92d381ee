"""Rules of time: who is well is in sync soon, and what can be acknowledged is acknowledged soon."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

from tidelog.lab.health import Footing, Standing
from tidelog.lab.rules import Acknowledged, Rule
from tidelog.types import TopicPartition

IN_SYNC_S = 10.0
ACKNOWLEDGED_S = 10.0
YIELDS_S = 9.0
METADATA_S = 10.0
SERVED_S = 10.0
ALL_IN_SYNC_S = 20.0
GROUP_GOES_ON_S = 120.0
"""Virtual time, with replica.lag.time.max.ms=2000, sessions of 4 s and time-outs of requests of 2 s: a few tries of
each. The longest that a hundred seeds have shown was 4.9 s to the ISR and 5.4 s to an acknowledgement."""
_FIRM_S = 1.0
"""What a leader has sent before its log directory failed has arrived by then."""
_ENOUGH_FOLLOWERS = 1
"""For min.insync.replicas=2."""


class InSyncInTime(Rule):
    name = "a healthy follower is in the ISR within a bound"

    def __init__(self) -> None:
        self._out_since: dict[Hashable, float] = {}

    def stands(self, standings: Sequence[Standing], away: Collection[str], answered_s: float) -> None:
        before, self._out_since = self._out_since, {}
        for standing in standings:
            for follower, life in standing.followers.items():
                if follower in standing.isr:
                    continue
                key = (standing.partition, standing.term, follower, life)
                since = self._out_since[key] = before.get(key, answered_s)
                if answered_s - since > IN_SYNC_S:
                    self.broken(
                        f"{follower} is well, and so is the leader of {standing.partition}, and the store has answered "
                        f"for {answered_s - since:.1f} s since then; the ISR is {list(standing.isr)}"
                    )


class IsolatedControllerYields(Rule):
    """A controller that reaches no other broker, while the others are well and reach each other."""

    name = "a controller that reaches no other broker yields to one that does within a bound"

    def __init__(self) -> None:
        self._since: tuple[Hashable, float] | None = None

    def isolated(self, controller: Hashable, now_s: float) -> None:
        if controller is None:
            self._since = None
        elif self._since is None or self._since[0] != controller:
            self._since = (controller, now_s)
        elif now_s - self._since[1] > YIELDS_S:
            self.broken(f"{controller} is controller, and cut off from all others for {now_s - self._since[1]:.1f} s")


class MetadataInTime(Rule):
    """Clients go by what any broker tells them of leaders and of living brokers. Checked by tidelog.lab.search."""

    name = "when all is quiet, every broker's metadata is that of the store within a bound"


class GroupGoesOn(Rule):
    """Its coordinator is there, whatever was written to the coordinators' topic. Checked by tidelog.lab.search."""

    name = "when all is quiet, a group has committed all that was written within a bound"


class AllInSyncInTime(Rule):
    """Topics from which records go, and topics that are made anew. Checked by tidelog.lab.search."""

    name = "when all is quiet, every replica of every topic is in sync within a bound"


class AcknowledgedInTime(Rule):
    """The partition has a leader and a follower that are well, in the same term, while the record waits."""

    name = "an acknowledgement in a healthy cluster comes within a bound"

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, TopicPartition, int], float | None] = {}
        """Since when; None until the next look."""
        self._since: dict[TopicPartition, tuple[Hashable, float]] = {}

    def sent(self, producer: str, partition: TopicPartition, number: int, now_s: float) -> None:
        self._waiting[producer, partition, number] = None

    def gave_up(self, producer: str) -> None:
        self._waiting = {key: since for key, since in self._waiting.items() if key[0] != producer}

    def acknowledged(self, record: Acknowledged) -> None:
        self._waiting.pop((record.producer, record.partition, record.number), None)

    def stands(self, standings: Sequence[Standing], away: Collection[str], answered_s: float) -> None:
        before, self._since = self._since, {}
        for standing in standings:
            if len(standing.followers) >= _ENOUGH_FOLLOWERS:
                term, since = before.get(standing.partition, (standing.term, answered_s))
                self._since[standing.partition] = (standing.term, since if term == standing.term else answered_s)
        for (producer, partition, number), sent_s in self._waiting.items():
            well = self._since.get(partition)
            if producer in away or sent_s is None:
                self._waiting[producer, partition, number] = answered_s
            elif well is not None and (waited_s := answered_s - max(sent_s, well[1])) > ACKNOWLEDGED_S:
                self.broken(
                    f"{producer} waits for record {number} of {partition}; its leader and a follower are well, and the "
                    f"store has answered for {waited_s:.1f} s since then"
                )


class ServedInTime(Rule):
    """All brokers run and reach each other. The store may restart again and again: only the time counts in which it
    answers. A log directory may have failed, if enough members of the ISR have all of theirs.
    """

    name = "while all brokers run, a record is acknowledged within a bound of the time in which the store answers"

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, TopicPartition, int], float] = {}
        """For how long each record could have been acknowledged."""
        self._firm: dict[TopicPartition, tuple[Hashable, float]] = {}
        """The lives of the brokers, and since when they are the same. They were firm at the start."""

    def sent(self, producer: str, partition: TopicPartition, number: int, now_s: float) -> None:
        self._waiting[producer, partition, number] = 0.0

    def gave_up(self, producer: str) -> None:
        self._waiting = {key: waited_s for key, waited_s in self._waiting.items() if key[0] != producer}

    def acknowledged(self, record: Acknowledged) -> None:
        self._waiting.pop((record.producer, record.partition, record.number), None)

    def runs(self, footings: Sequence[Footing], away: Collection[str], answered_s: float, now_s: float) -> None:
        before, self._firm = self._firm, {}
        for footing in footings:
            lives, since_s = before.get(footing.partition, (None, now_s))
            if lives == footing.lives and (footing.is_firm or now_s - since_s >= _FIRM_S):
                self._firm[footing.partition] = (lives, since_s)
            elif footing.is_firm:
                self._firm[footing.partition] = (footing.lives, now_s)
        for key, waited_s in self._waiting.items():
            producer, partition, number = key
            is_served = producer not in away and now_s - self._firm.get(partition, (None, now_s))[1] >= _FIRM_S
            self._waiting[key] = waited_s = waited_s + answered_s if is_served else 0.0
            if waited_s > SERVED_S:
                self.broken(
                    f"{producer} waits for record {number} of {partition}; for {waited_s:.1f} s in which the store "
                    f"answered, all brokers ran"
                )
