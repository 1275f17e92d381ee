"""The rules that stories name, each in one sentence. A story gives their numbers, and its frames show the sentences."""

from __future__ import annotations

RULES = {
    "S1.1": "A partition has replicas on different brokers: one leads, the others follow.",
    "S1.2": "Clients write to and read from the leader; followers only fetch from it.",
    "S1.4": "An old leader that comes back joins as a follower.",
    "S1.5": "A follower that is past the end of its leader's log cuts its log to that end.",
    "S2.1": "LEO, the log end offset, is the offset that the next record will get.",
    "S2.4": "The leader knows the LEO of each follower, and not its HW.",
    "S2.5": "A follower that fetches at offset N tells that it has all records below N.",
    "S2.6": "HW is the smallest LEO of the ISR, and never falls.",
    "S2.7": "The leader tries to raise HW when it is elected, when the ISR changes, after a produce and after a fetch.",
    "S2.8": "A follower appends what it fetched; then its HW is the leader's HW, or its own LEO if that is smaller.",
    "S2.9": "A follower hears of a new HW with the answer to its next fetch, so a record needs two rounds.",
    "S2.10": "A fetch that finds nothing waits in purgatory until a produce wakes it or its time is over.",
    "S3.1": "A follower leaves the ISR if it has not caught up for replica.lag.time.max.ms, and joins it at HW.",
    "S3.2": "acks=1 is answered when the leader has appended, acks=all when HW has passed the records.",
    "S3.3": "Committed means below HW; min.insync.replicas is the smallest ISR that may take writes.",
    "S4.3": "A request with an older leader epoch is refused (FENCED_LEADER_EPOCH).",
    "S4.4": "A follower that returns asks where its last leader epoch ended, and cuts what is beyond.",
    "S4.6": "If the leader dies before it has answered, the follower cuts nothing.",
    "S5": "Before leader epochs a replica cut its log to its own HW when it started.",
    "S6.1": "The first living member of the ISR, in the order of the replicas, is elected leader.",
    "S6.2": "If no member of the ISR lives, the partition waits for one, unless unclean elections are allowed.",
    "S6.3": "A preferred election gives the partition back to the first of its replicas.",
    "S7.3": "When the leader changes, the produces that wait at the old one are refused at once.",
    "S8.1": "One member of a group at a time reads a partition.",
    "S8.2": "A group is Empty, PreparingRebalance, CompletingRebalance, Stable or Dead.",
    "S8.3": "All members join, the leader of the group assigns the partitions, and each gets its share with SyncGroup.",
    "S8.4": "Any member that joins, leaves or falls silent makes all members rejoin.",
    "S8.5": "A consumer that does not poll for max.poll.interval.ms leaves its group.",
    "S8.7": "A static member keeps its share over a restart.",
    "S9.1": "A committed offset is that of the last processed record, plus one.",
    "S10.2": "Retention and DeleteRecords move the start of the log, and never past HW.",
    "S12.1": "The first broker to create /controller is the controller; when it goes, the others race for it.",
    "S12.2": "The controller creates and deletes topics, elects leaders, and tells all brokers.",
    "S12.4": "What a controller leaves half done the next one finishes.",
    "edge case 2": "The answer where a leader epoch ended names the epoch it found, for elections in a row.",
}


def sentences(cited: str) -> list[str]:
    """The rules that a frame names, such as "S2.5, S2.6": each number with its sentence."""
    return [f"{number}: {_sentence_of(number)}" for number in cited.split(", ")]


def _sentence_of(number: str) -> str:
    """A story of S5 has a letter: "S5 a" is S5."""
    known = RULES.get(number) or RULES.get(number.rsplit(" ", 1)[0])
    assert known is not None, f"no sentence for {number}"
    return known
