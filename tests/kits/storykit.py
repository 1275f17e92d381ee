"""Stories told by hand: loss by the old rule (S5 a), with the letters of the documents, and a rebalance (S8.4)."""

from __future__ import annotations

from dataclasses import replace

from tidelog.lab.frames import EpochEntry, Frame, Group, MemberRow, Record, ReplicaRow, Role, Strip

M0, M1 = Record(0, "m0"), Record(1, "m1")
M2 = Record(1, "m2", epoch=1)
FIRST = EpochEntry(0, 0)
SECOND = EpochEntry(1, 1)


def leader(name: str, other: str, *records: Record, high_watermark: int, remote: int | None) -> ReplicaRow:
    return ReplicaRow(
        name,
        Role.LEADER,
        records,
        high_watermark,
        len(records),
        leader_epoch=0,
        epochs=(FIRST,),
        isr=(name, other),
        remote_log_ends=((other, remote),),
    )


def follower(name: str, *records: Record, high_watermark: int) -> ReplicaRow:
    return ReplicaRow(name, Role.FOLLOWER, records, high_watermark, len(records), leader_epoch=0, epochs=(FIRST,))


def dead(row: ReplicaRow) -> ReplicaRow:
    return replace(row, role=Role.DEAD, leader_epoch=None, isr=(), remote_log_ends=())


def loss() -> Strip:
    """A(2,2) B(2,1): B cuts m1, A dies before B fetches, B leads, A returns and cuts m1 as well."""
    a = leader("A", "B", M0, M1, high_watermark=2, remote=2)
    b = follower("B", M0, M1, high_watermark=1)
    b_cut = follower("B", M0, high_watermark=1)
    b_leads = replace(
        b_cut, role=Role.LEADER, leader_epoch=1, epochs=(FIRST, SECOND), isr=("B",), remote_log_ends=(("A", None),)
    )
    a_back = replace(follower("A", M0, high_watermark=1), leader_epoch=1)
    b_again = replace(b_leads, isr=("B", "A"), remote_log_ends=(("A", 1),))
    steps = (
        (
            "m0 and m1 are on both replicas and acknowledged; B has not yet heard that the high watermark is 2.",
            "S2.9",
            (a, b),
        ),
        ("B restarts, and before it asks anybody it cuts its log to its own high watermark, 1.", "S5 a", (a, b_cut)),
        ("A dies before B has fetched from it.", "S5 a", (dead(a), b_cut)),
        (
            "B is the only living member of the ISR, so it leads, with epoch 1 from offset 1.",
            "S6.1",
            (dead(a), b_leads),
        ),
        (
            "A returns as a follower and cuts to the new leader's end, 1: m1 is gone from both.",
            "S5 a",
            (a_back, b_again),
        ),
    )
    return Strip("loss", "Loss", tuple(_frame(*step) for step in steps), variant="truncation by high watermark")


def divergence() -> Strip:
    """How S5 (c) ends: as loss, but B takes m2 before A returns with HW = LEO = 2, so that offset 1 differs."""
    before = loss().frames[3]
    a = replace(follower("A", M0, M1, high_watermark=2), leader_epoch=1)
    b = before.replicas[1]
    b = replace(b, records=(M0, M2), log_end=2, high_watermark=2)
    steps = (
        (before.says, before.rule, before.replicas),
        ("B takes m2 at offset 1.", "S2.7", (before.replicas[0], b)),
        ("A returns; its high watermark is its log end, so it cuts nothing.", "S5 c", (a, b)),
    )
    return Strip("loss-then-divergence", "Loss, then divergence", tuple(_frame(*step) for step in steps))


def group(state: str, generation: int, *members: MemberRow) -> Group:
    return Group(state, generation, "A", "t", 3, members, ((2, 5),))


def rebalance() -> Strip:
    """c2 dies, its session ends, and c1 gets its share."""
    c1 = MemberRow("c1", Role.LEADER, 1, (0, 1), heartbeat="ok")
    c2 = MemberRow("c2", Role.MEMBER, 1, (2,), commit="t-2 at 5: ok")
    dead = MemberRow("c2", Role.DEAD, 1, assigned=(2,))
    waiting = MemberRow("c1", Role.LEADER, 1, waits_for="JoinGroup", heartbeat="REBALANCE_IN_PROGRESS")
    alone = MemberRow("c1", Role.LEADER, 2, (0, 1, 2), begins="t-2 at 5")
    steps = (
        ("c1 and c2 share three partitions.", "S8.1", group("Stable", 1, c1, c2)),
        ("c2 dies.", "S8.4", group("Stable", 1, c1, dead)),
        (
            "c2's session is over, and c1 joins again.",
            "S8.4",
            group("PreparingRebalance", 1, waiting, replace(dead, assigned=())),
        ),
        ("c1 has all.", "S8.3", group("Stable", 2, alone, replace(dead, assigned=()))),
    )
    return Strip("rebalance", "Rebalance", tuple(Frame(says, rule, group=seen) for says, rule, seen in steps))


def _frame(says: str, rule: str, replicas: tuple[ReplicaRow, ...]) -> Frame:
    return Frame(says, rule, replicas, controller="C", acknowledged=(M0, M1))
