"""Rules that clients can check by what they are told: readers, writers that read back, and members of groups."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.lab.rules import Acknowledged, ReadOn, Rule, Settled, Share, Told
from tidelog.records.kernel import Record
from tidelog.types import Offset, TopicPartition

MEMBER_PREFIX = "m"
"""The names of members of the group begin so."""


class ReadersSkipNothing(Rule):
    """The other half of "a consumer never sees a record that later disappears": what is in the log is seen.

    Nothing is ever removed from these logs, so their offsets have no gaps.
    """

    name = "a consumer that reads on never skips a committed record"

    def __init__(self) -> None:
        self._seen: dict[str, dict[TopicPartition, set[Offset]]] = {}

    def read_on(self, read: ReadOn) -> None:
        offsets = [record.offset for record in read.records]
        if offsets != list(range(read.position, read.next_offset)):
            self.broken(
                f"{read.reader} goes from {read.position} to {read.next_offset} of {read.partition} "
                f"and was given the offsets {offsets}"
            )
        self._seen.setdefault(read.reader, {}).setdefault(read.partition, set()).update(offsets)

    def settled(self, logs: Settled) -> None:
        """Every reader has come to the end of every log. Members of a group share it: see GroupPassesOverNothing."""
        for reader, partitions in self._seen.items():
            if reader.startswith(MEMBER_PREFIX):
                continue
            for partition, replicas in logs.items():
                for broker, records in replicas.items():
                    missed = [r.offset for r in records if r.offset not in partitions.get(partition, set())]
                    if missed:
                        self.broken(f"{reader} never saw the offsets {missed[:5]} of {partition}, as {broker} has them")


class ReadYourWrites(Rule):
    name = "a record acknowledged with acks=all can be read at once"

    def read_back(self, record: Acknowledged, found: Sequence[Record], refusal: str) -> None:
        at = f"{record.offset} of {record.partition}"
        if refusal:
            self.broken(f"{record.producer} asks the leader for {at}, which was acknowledged: {refusal}")
        values = {one.offset: one.value for one in found}
        if values.get(record.offset) != record.value:
            self.broken(
                f"{record.producer} was told that {record.value!r} is at {at}, and reads {values.get(record.offset)!r} "
                f"there from the leader"
            )


class OneOwnerPerPartition(Rule):
    name = "a partition has one owner per generation"

    def __init__(self) -> None:
        self._owners: dict[tuple[int, TopicPartition], str] = {}

    def assigned(self, share: Share) -> None:
        for partition in share.partitions:
            owner = self._owners.setdefault((share.generation, partition), share.member)
            if owner != share.member:
                self.broken(f"in generation {share.generation} both {owner} and {share.member} have {partition}")


class OffsetsNeverGoBack(Rule):
    name = "a committed group offset never goes back by itself"

    def member_told(self, told: Told) -> None:
        if told.offset < told.acknowledged:
            self.broken(
                f"{told.member} was told {told.offset} for {told.partition}, "
                f"after {told.acknowledged} had been acknowledged"
            )


class GroupPassesOverNothing(Rule):
    """At least once: a member begins where some members before it have read everything."""

    name = "a group as a whole passes over no committed record"

    def __init__(self) -> None:
        self._seen: dict[TopicPartition, set[Offset]] = {}

    def read_on(self, read: ReadOn) -> None:
        """Of readers that are in no group too: they read everything, so they say nothing about the group."""
        if read.reader.startswith(MEMBER_PREFIX):
            self._seen.setdefault(read.partition, set()).update(record.offset for record in read.records)

    def member_told(self, told: Told) -> None:
        seen = self._seen.get(told.partition, set())
        missed = [offset for offset in range(told.offset) if offset not in seen]
        if missed:
            self.broken(
                f"{told.member} begins at {told.offset} of {told.partition}, "
                f"and no member has ever read the offsets {missed[:5]}"
            )

    def settled(self, logs: Settled) -> None:
        """The group has committed the end of every log."""
        for partition, seen in self._seen.items():
            for broker, records in logs.get(partition, {}).items():
                missed = [record.offset for record in records if record.offset not in seen]
                if missed:
                    self.broken(f"no member ever read the offsets {missed[:5]} of {partition}, as {broker} has them")


class DeletedUpToThere(Rule):
    """Checked by tidelog.lab.side_topics."""

    name = "DeleteRecords takes nothing above its offset, and the log start never falls"


class RetentionKeepsEnough(Rule):
    """Checked by tidelog.lab.side_topics."""

    name = "retention takes records from the start only, and keeps about as much as it is told"


class LastOfEachKeyStays(Rule):
    """Checked by tidelog.lab.side_topics."""

    name = "compaction keeps the last record of each key"
