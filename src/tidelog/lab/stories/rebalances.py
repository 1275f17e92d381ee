"""The four ways in which the partitions of a consumer group are dealt out anew (S8.4)."""

from __future__ import annotations

from tidelog.lab.group_stage import GroupStage
from tidelog.lab.stage import LATENCY_MS

_LATER_S = 4.0
"""Less than a session may be silent for."""


async def joining(stage: GroupStage) -> None:
    """A member joins a Stable group: every step from its request to its share."""
    await stage.set()
    await stage.gather("c1")
    stage.show("c1 is alone: it leads the group, reads every partition, and says by heartbeats that it lives.", "S8.1")
    c2 = stage.reader("c2")
    await stage.until(lambda: stage.is_member("c2"))
    stage.show(
        "c2 sends JoinGroup: the group prepares a rebalance, and c2 waits for c1, which knows nothing and reads on.",
        "S8.2",
        "Its first JoinGroup only brought it a member id, to come again with.",
    )
    await stage.until(lambda: stage.row("c1").heartbeat == "REBALANCE_IN_PROGRESS" and not stage.row("c1").held)
    stage.show("c1 learns of it from its next heartbeat, gives up its partitions, and sends JoinGroup too.", "S8.4")
    await stage.until(lambda: stage.row("c2").waits_for == "SyncGroup")
    stage.show(
        "All have joined, so there is a generation 2. c1, the first to join, leads: it is told all subscriptions and "
        "deals the partitions out. c2 sends its SyncGroup empty.",
        "S8.3",
    )
    await stage.until(lambda: stage.row("c1").waits_for == "SyncGroup")
    stage.show(
        "c1 sends the shares of both with its SyncGroup; they count when the coordinator has stored them.", "S8.3"
    )
    await stage.until(lambda: stage.state == "Stable")
    stage.show("They are stored: the group is Stable, and each SyncGroup is answered with that member's share.", "S8.2")
    await stage.until(lambda: c2.held and stage.is_settled)
    stage.show("The answers have come: c1 reads two partitions, and c2 the other two.", "S8.3")


async def leaving(stage: GroupStage) -> None:
    """Members leave with LeaveGroup, the leader first, and in the end all."""
    await stage.set()
    c1, c2, c3 = await stage.gather("c1", "c2", "c3")
    stage.set_latency("c3", 200.0)
    c1.commit(0, 5)
    await stage.until(lambda: stage.row("c1").commit)
    stage.show("Three consumers came together and share four partitions: by range, the first has one more.", "S8.7")
    c1.leave()
    await stage.until(lambda: stage.state == "PreparingRebalance")
    stage.show(
        "c1 ends: it gives up its partitions and sends LeaveGroup. It is out at once, and no session timeout has to "
        "pass; c2, the next to have joined, leads.",
        "S8.4",
    )
    await stage.until(lambda: stage.row("c2").waits_for == "JoinGroup")
    stage.show(
        "c2's heartbeat tells it to join again: it gives up its share and does. c3 is far away and has not heard of "
        "it: it reads on.",
        "S8.4",
    )
    stage.set_latency("c3", LATENCY_MS)
    await stage.until(lambda: stage.row("c3").waits_for == "SyncGroup")
    stage.show("c3 has heard of it as well and has joined: generation 2 is of c2 and c3, and c2 deals out.", "S8.3")
    await stage.until(lambda: stage.is_settled and stage.row("c2").begins)
    stage.show("Two partitions each: the group is Stable again. c2 goes on where c1 stopped.", "S8.2, S9.1")
    c2.leave()
    c3.leave()
    await stage.until(lambda: stage.state == "Empty")
    stage.show("Both leave: a group without members is Empty. What it has committed stays, for whoever comes.", "S8.2")


async def crashing(stage: GroupStage) -> None:
    """A member dies: only its silence tells."""
    await stage.set()
    _, c2 = await stage.gather("c1", "c2")
    c2.commit(3, 5)
    await stage.until(lambda: stage.row("c2").commit)
    stage.show("c1 and c2 share the partitions, and each says by heartbeats, every 2 s, that it lives.", "S8.5")
    c2.kill()
    died_s = stage.now_s
    stage.show("c2's process dies. A connection that ends means nothing: c2 may have another one soon.", "S8.4")
    await stage.sleep(_LATER_S)
    stage.show(
        f"{_LATER_S:.0f} s later all is well as far as anybody knows: c1's heartbeats are answered as ever, and what "
        "c2 had is read by nobody.",
        "S8.4",
    )
    await stage.until(lambda: stage.state == "PreparingRebalance")
    stage.show(
        "Nothing was heard of c2 for session.timeout.ms, 6 s: it is no member any more, and c1 is to join again.",
        "S8.4",
        f"It died {stage.now_s - died_s:.1f} s ago.",
    )
    await stage.until(lambda: stage.row("c1").waits_for == "SyncGroup")
    stage.show(
        "c1 has heard of it and has joined; nobody else is waited for, so generation 2 is of c1 alone, which deals all "
        "to itself.",
        "S8.3",
    )
    await stage.until(lambda: stage.is_settled and stage.row("c1").begins)
    stage.show(
        "c1 reads all. In partition 3 it goes on at 5, where c2 committed last; what c2 read after that is read again.",
        "S9.1",
    )


async def committing(stage: GroupStage) -> None:
    """Offsets during a rebalance: which commits count, and where the next one begins."""
    await stage.set()
    stage.reader("c1")
    await stage.until(lambda: stage.is_member("c1"))
    c2 = stage.scripted("c2")
    await stage.until(lambda: c2.seat)
    c2.join()
    await stage.until(lambda: stage.row("c2").generation == 1)
    c2.sync()
    await stage.until(lambda: stage.is_settled)
    c2.commit(3, 5)
    await stage.until(lambda: stage.row("c2").commit)
    stage.show("c2 has done all of partition 3 below 5, and commits that.", "S9.1")
    stage.reader("c3")
    await stage.until(lambda: stage.state == "PreparingRebalance")
    c2.heartbeat()
    await stage.until(lambda: stage.row("c2").heartbeat)
    stage.show("c3 joins, and a heartbeat tells c2 that it is to join again.", "S8.4")
    c2.commit(3, 7)
    await stage.until(lambda: not stage.row("c2").waits_for and stage.group.committed == ((3, 7),))
    stage.show(
        "Before it gives up its partitions c2 commits 7. The generation is still 1, which is c2's: accepted.", "S8.4"
    )
    c2.join()
    await stage.until(lambda: stage.row("c2").generation == 2)
    c2.commit(3, 9)
    await stage.until(lambda: stage.row("c2").commit)
    stage.show(
        "All have joined, and generation 2 waits for its shares. Now c2 commits 9, for a partition that may soon be "
        "another's: refused.",
        "S8.4",
    )
    c2.sync()
    await stage.until(lambda: stage.is_settled and stage.row("c3").begins)
    stage.show(
        "Partition 3 is c3's now. It begins at 7, the last offset that was accepted: 7 and 8 are read twice, and none "
        "is left out.",
        "S9.1",
    )
    c2.commit(3, 9, generation=1)
    await stage.until(lambda: "ILLEGAL" in stage.row("c2").commit)
    stage.show("A commit of c2 that comes late, with generation 1 in it, is refused as well.", "S8.4")
