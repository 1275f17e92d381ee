"""Leaders that come and go, and who may be one (S3, S4, S6, S12)."""

from __future__ import annotations

from tidelog.errors import ErrorCode
from tidelog.lab.stage import CONTROLLER, Stage


async def back_to_back(stage: Stage) -> None:
    """Edge case 2: the answer about an epoch must name the epoch it is about."""
    await stage.set("ABC", {"min_insync_replicas": "1"})
    await stage.write("m0")
    await stage.until(lambda: all(stage.written_high_watermark(name) == 1 for name in "ABC"))
    stage.cut("A", "B")
    stage.produce("m1", acks=1)
    await stage.until(lambda: stage.log_end("C") == 2)
    stage.produce("m2", acks=1)
    await stage.until(lambda: stage.log_end("C") == 3)
    stage.show("All have m0. B is cut off from A, so m1 and m2 have come to C alone, and are not committed.", "S2.6")
    stage.kill("A")
    stage.cut("B", "C")
    await stage.until(lambda: stage.leader == "B")
    stage.show("A dies before anybody notices that B lags; B is in the ISR, and leads from offset 1.", "S6.1")
    stage.produce("n1", to="B", acks=1)
    await stage.until(lambda: stage.log_end("B") == 2)
    stage.show("B takes n1, at offset 1; C cannot reach B, and so has not been told to cut m1 and m2.", "S4.4")
    stage.kill("B")
    await stage.until(lambda: stage.leader == "C")
    stage.show("B dies too; C leads from offset 3, and never heard of B's term.", "S6.1")
    stage.heal("A", "B")
    stage.heal("B", "C")
    await stage.start("B")
    await stage.until(lambda: stage.log_end("B") == 1)
    stage.show(
        "B returns and asks where its last epoch ends. C knows only the one before, and says so: epoch 0 ends at 3. "
        "B's own epoch 0 ends at 1, so it cuts n1.",
        "S4.4, edge case 2",
        "An answer of a bare 3 would have cut nothing: n1 would stand where C has m1.",
    )
    await stage.until(lambda: stage.log_end("B") == 3 and "B" in stage.isr)
    stage.show("B copies m1 and m2 and joins the ISR.", "S1.2, S3.1")
    await stage.start("A")
    await stage.until(lambda: stage.isr == "ABC" and stage.high_watermark("A") == stage.high_watermark("B") == 3)
    stage.show("A returns, has nothing to cut, and all agree.", "S4.4")


async def zombie(stage: Stage) -> None:
    """A leader that has not heard that it leads no more."""
    await stage.set("ABC", {"min_insync_replicas": "2"})
    await stage.prefer("BAC")
    await stage.until(lambda: len(stage.row("A").purgatory) == 2)
    await stage.write("m0")
    stage.show("A leads, all have m0, and B is preferred as the leader.", "S6.3")
    stage.cut("A", CONTROLLER)
    await stage.elect_preferred()
    await stage.until(lambda: stage.leader == "B")
    stage.show(
        f"The controller hands leadership to B, with epoch {stage.epoch('B')}. A is cut off from the controller, and "
        "does not hear of it.",
        "S6.3",
    )
    await stage.until(lambda: stage.epoch("C") == stage.epoch("B") and not stage.row("A").purgatory)
    stage.produce("z1", acks=1)
    await stage.until(lambda: stage.log_end("A") == 2)
    z2 = stage.produce("z2")
    await stage.until(lambda: stage.log_end("A") == 3)
    stage.show(
        "A client that has not heard of it either writes z1 with acks=1 and z2 with acks=all to A. A produce carries "
        "no epoch, so A takes both; but nobody fetches from A any more, so its HW stays.",
        "S4.3",
    )
    m1 = stage.produce("m1", to="B")
    await stage.until(lambda: m1.is_answered and stage.high_watermark("C") == 2)
    stage.show("B takes m1; A does not fetch it and leaves the ISR, and with C's copy m1 is committed.", "S3.1, S2.6")
    stage.heal("A", CONTROLLER)
    await stage.until(lambda: z2.is_answered)
    assert z2.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    stage.show(
        f"A hears of epoch {stage.epoch('A')} and follows; who waited for its HW is told to ask elsewhere.",
        "S7.3",
        "z1 was acknowledged with acks=1, which promises no more; z2 was answered NOT_LEADER_OR_FOLLOWER.",
    )
    await stage.until(lambda: stage.isr == "ABC" and stage.high_watermark("A") == 2)
    stage.show("A asks B where its last epoch ends, hears 1, cuts z1 and z2, copies m1, and is in sync.", "S4.4, S3.1")


async def isr(stage: Stage) -> None:
    """Followers fall behind and come back; min.insync.replicas=2."""
    await stage.set("ABC", {"min_insync_replicas": "2"})
    await stage.write("m0")
    stage.show("Three replicas in sync; a produce with acks=all needs two of them, and waits for all three.", "S3.3")
    stage.freeze("C")
    m1 = stage.produce("m1")
    await stage.until(lambda: stage.remote_end("B") == 2)
    stage.show("C stops. m1 is on A and B; C is still in the ISR, so HW waits for it.", "S2.6")
    await stage.until(lambda: m1.is_answered)
    stage.show(
        "C has not caught up for replica.lag.time.max.ms: it leaves the ISR, HW moves, m1 is acknowledged.", "S3.1"
    )
    stage.cut("A", "B")
    m2 = stage.produce("m2")
    await stage.until(lambda: stage.isr == "A")
    stage.show(
        "B is cut off, and leaves as well. A has m2, but an ISR smaller than min.insync.replicas moves no HW.", "S2.6"
    )
    m3 = stage.produce("m3")
    await stage.until(lambda: m3.is_answered)
    assert m3.code is ErrorCode.NOT_ENOUGH_REPLICAS
    stage.show("A further produce is refused before it is appended.", "S3.2", "m3 was answered NOT_ENOUGH_REPLICAS.")
    stage.heal("A", "B")
    await stage.until(lambda: stage.isr == "AB" and m2.is_answered)
    stage.show(
        "B is back, has copied m2 and so reached the HW and the start of A's epoch: it joins, and m2 is committed.",
        "S3.1",
    )
    stage.thaw("C")
    await stage.until(lambda: stage.isr == "ABC" and stage.high_watermark("C") == 3)
    stage.show("C goes on, copies what it missed, and joins too.", "S3.1")


async def unclean(stage: Stage) -> None:
    """No member of the ISR is alive: wait, or lose."""
    await stage.set("AB")
    await stage.write("m0")
    stage.cut("A", "B")
    m1 = stage.produce("m1")
    await stage.until(lambda: m1.is_answered and stage.written_high_watermark("A") == 2)
    stage.show("B is cut off and out of the ISR, so m1 is committed on A alone.", "S3.3")
    stage.kill("A")
    stage.heal("A", "B")
    await stage.until(lambda: stage.elected == "")
    stage.show(
        "A dies. B lives but is not in sync: with unclean.leader.election.enable=false nobody leads, "
        "and the partition waits for A.",
        "S6.2",
    )
    await stage.set_topic("unclean.leader.election.enable", "true")
    await stage.until(lambda: stage.leader == "B")
    stage.show(
        "Somebody allows unclean elections: B leads, and is the ISR; m1 is lost, which is logged and counted.", "S6.2"
    )
    m2 = stage.produce("m2", to="B")
    await stage.until(lambda: m2.is_answered)
    stage.show("B takes m2 where m1 was.", "S2.6")
    await stage.start("A")
    await stage.until(lambda: stage.isr == "AB" and stage.high_watermark("A") == 2)
    stage.show("A returns too late, cuts m1 and copies m2: the replicas agree on what is left.", "S4.4")


async def controller(stage: Stage) -> None:
    """The controller falls silent, another takes over, and the first learns that it is nobody."""
    await stage.set("AB")
    await stage.write("m0")
    stage.show("K is the controller: it was the first to create /controller.", "S12.1")
    await stage.until(lambda: stage.written_high_watermark("A") == 1)
    stage.kill("A")
    await stage.sleep(1.0)
    stage.freeze(CONTROLLER)
    await stage.until(lambda: not stage.is_registered("A"))
    stage.show("A dies, and K's process is stopped before it hears of that: nobody elects another leader.", "S12.2")
    await stage.until(lambda: stage.controller == "B")
    stage.show(
        "K's session ends and /controller goes with it; B is the first to create it anew, with controller epoch "
        f"{stage.controller_epoch}.",
        "S12.1",
    )
    await stage.until(lambda: stage.leader == "B")
    stage.show(
        "B reads the whole state, finds a partition without a leader, and finishes the work: it elects itself.", "S12.4"
    )
    m1 = stage.produce("m1", to="B")
    await stage.until(lambda: m1.is_answered)
    stage.thaw(CONTROLLER)
    await stage.until(lambda: not stage.controls(CONTROLLER))
    stage.show(
        "K goes on and finds its session over. It controls no more, and what it had written would have failed the "
        "check of the controller epoch.",
        "S12.1",
    )
    await stage.start("A")
    await stage.until(lambda: stage.isr == "AB" and stage.high_watermark("A") == 2)
    stage.show("A returns, as a follower, and is in sync.", "S1.4")
