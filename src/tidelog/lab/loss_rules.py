"""Rules of runs that may lose records: by unclean elections, or by more power losses than a cluster has to survive.

They hold in every other run too.
"""

from __future__ import annotations

from itertools import pairwise

from tidelog.lab.rules import Acknowledged, Rule, Settled


class LossIsReported(Rule):
    """By `unclean_leader_elections_total` of the brokers that were controller, over all their lives."""

    name = "if an acknowledged record is lost, an unclean election is reported"

    def __init__(self) -> None:
        self._records: list[Acknowledged] = []
        self._unclean_elections = 0

    def acknowledged(self, record: Acknowledged) -> None:
        self._records.append(record)

    def reported(self, unclean_elections: int) -> None:
        self._unclean_elections = unclean_elections

    def settled(self, logs: Settled) -> None:
        if self._unclean_elections:
            return
        for partition, replicas in logs.items():
            for broker, records in replicas.items():
                values = {record.value for record in records}
                for told in self._records:
                    if told.partition == partition and told.value not in values:
                        self.broken(f"{told.value!r} of {partition} is not on {broker}; no controller has said so")


class ReplicasEndEqual(Rule):
    """Whatever was lost: replicas that differ give other answers after the next election."""

    name = "replicas are equal when all is quiet"

    def settled(self, logs: Settled) -> None:
        for partition, replicas in logs.items():
            brokers = list(replicas)
            for one, other in pairwise(brokers):
                if list(replicas[one]) != list(replicas[other]):
                    pairs = zip(replicas[one], replicas[other], strict=False)
                    first = next((a.offset for a, b in pairs if a != b), "the end of the shorter one")
                    self.broken(f"{partition} on {one} and on {other} differ from {first} on")
