"""The stories that leader epochs were made for, with the old rule and with the new (S5).

A broker whose process was killed and that comes back soon has lost nothing and stays in the ISR (edge case 9), so it
may be elected as in the documents. Only in `divergence` it lost its power: there the topic allows unclean elections,
as every topic did by default then.
"""

from __future__ import annotations

from tidelog.lab.stage import Stage

_UNCLEAN = {"unclean_leader_election_enable": "true"}
_ELECTED_WITH_ALL = "A dies; B, in sync and with all of it, leads with epoch {epoch} from offset 2."
_ELECTED_WITH_LESS = (
    "A dies before B has fetched from it; B leads with epoch {epoch} from offset 1, which is all it has left."
)


async def loss(stage: Stage) -> None:
    """S5 (a): A(2,2) and B(2,1), B restarts, A dies, A returns."""
    await _acknowledged_but_not_known_to_b(stage)
    if stage.by_epoch:
        await _b_restarts_and_asks(stage)
        await _a_dies_and_b_leads(stage, _ELECTED_WITH_ALL, "S6.1")
    else:
        await _b_restarts_and_cuts(stage)
        await _a_dies_and_b_leads(stage, _ELECTED_WITH_LESS, "S6.1")
    await stage.start("A")
    await _until_a_follows(stage)
    if stage.by_epoch:
        stage.show(
            "A returns, asks where its last epoch ends, hears that epoch 0 ends at 2, and cuts nothing: m1 is on both.",
            "S4.4, S5 a",
        )
    else:
        stage.show(
            "A returns, is past the end of its leader's log, and cuts to it: m1 is gone from both.", "S1.5, S5 a"
        )


async def divergence(stage: Stage) -> None:
    """S5 (b): B lost its unsynced tail, both die, B comes back first."""
    await stage.set("AB", _UNCLEAN | {"flush_ms": "2000"})
    await stage.write("m0")
    await stage.until(lambda: stage.synced_end("B") == 1)
    await stage.write("m1")
    await stage.until(lambda: stage.written_high_watermark("A") == 2)
    stage.show("m0 and m1 are on both replicas and acknowledged; B has synced m0 to its disk, but not yet m1.", "S3.3")
    stage.lose_power("B")
    stage.kill("A")
    stage.show("Both die at once; B's machine lost its power, and with it m1, which was only in memory.", "S5 b")
    await stage.until(lambda: not stage.cluster.leader())
    await stage.start("B")
    await stage.until(lambda: stage.leader == "B")
    stage.show(
        f"B comes back first and leads with what it has, with epoch {stage.epoch('B')} from offset 1: "
        "an unclean election, as A has not come back.",
        "S6.2",
    )
    m2 = stage.produce("m2", to="B")
    await stage.until(lambda: m2.is_answered and stage.high_watermark("B") == 2)
    stage.show("B takes m2, at offset 1; it is the whole ISR, so m2 is committed at once.", "S2.6")
    await _a_returns_to_another_record(stage, "S5 b")


async def loss_then_divergence(stage: Stage) -> None:
    """S5 (c): as loss, but B takes m2 before A returns."""
    await _acknowledged_but_not_known_to_b(stage)
    if stage.by_epoch:
        await _b_restarts_and_asks(stage)
        await _a_dies_and_b_leads(stage, _ELECTED_WITH_ALL, "S6.1")
    else:
        await _b_restarts_and_cuts(stage)
        await _a_dies_and_b_leads(stage, _ELECTED_WITH_LESS, "S6.1")
    await _b_takes_m2(stage)
    if stage.by_epoch:
        await _a_returns_and_copies_m2(stage)
    else:
        await _a_returns_to_another_record(stage, "S5 c")


async def unanswered(stage: Stage) -> None:
    """S5 (d), S4.6: B asks, and A dies before it answers."""
    await _acknowledged_but_not_known_to_b(stage)
    if stage.by_epoch:
        stage.kill("B")
        await stage.until(lambda: stage.written_high_watermark("A") == 2)
        await stage.start("B")
        await stage.until(lambda: stage.is_asking("B"))
        stage.show("B restarts, keeps what it has, and asks A where epoch 0 ends.", "S4.4")
        await _a_dies_and_b_leads(
            stage,
            "A dies before it has answered, so B has cut nothing; it leads with epoch {epoch} from offset 2.",
            "S4.6",
        )
    else:
        await _b_restarts_and_cuts(stage)
        await _a_dies_and_b_leads(stage, _ELECTED_WITH_LESS, "S6.1")
    await _b_takes_m2(stage)
    if stage.by_epoch:
        await _a_returns_and_copies_m2(stage)
    else:
        await _a_returns_to_another_record(stage, "S5 d")


# What these stories share


async def _acknowledged_but_not_known_to_b(stage: Stage) -> None:
    await stage.set("AB")
    await stage.write("m0")
    await stage.until(lambda: stage.written_high_watermark("B") == 1)
    m1 = stage.produce("m1")
    await stage.until(lambda: m1.is_answered)
    stage.show("m0 and m1 are on both replicas and acknowledged; B has not yet heard that HW is 2.", "S2.9")


async def _b_restarts_and_cuts(stage: Stage) -> None:
    stage.kill("B")
    stage.cut("A", "B")
    await stage.until(lambda: stage.written_high_watermark("A") == 2)
    await stage.start("B")
    await stage.until(lambda: stage.log_end("B") == 1)
    stage.show("B restarts, and by the old rule cuts its log to its own HW, which is 1, before it asks anybody.", "S5")


async def _b_restarts_and_asks(stage: Stage) -> None:
    stage.kill("B")
    await stage.until(lambda: stage.written_high_watermark("A") == 2)
    await stage.start("B")
    await stage.until(lambda: stage.isr == "AB" and stage.high_watermark("B") == 2)
    stage.show("B restarts, asks A where epoch 0 ends, hears 2, and cuts nothing; it is in sync again.", "S4.4")


async def _a_dies_and_b_leads(stage: Stage, says: str, rule: str) -> None:
    stage.kill("A")
    stage.heal("A", "B")
    await stage.until(lambda: stage.leader == "B")
    stage.show(says.format(epoch=stage.epoch("B")), rule)


async def _b_takes_m2(stage: Stage) -> None:
    m2 = stage.produce("m2", to="B")
    await stage.until(lambda: m2.is_answered)
    stage.show(f"B takes m2, at offset {m2.offset}, and being the whole ISR commits it at once.", "S2.6")


async def _until_a_follows(stage: Stage) -> None:
    """It has copied what there is, and B knows that."""
    await stage.until(lambda: stage.isr == "AB" and stage.log_end("A") == stage.log_end("B"))
    await stage.until(lambda: stage.high_watermark("A") == stage.high_watermark("B") == stage.log_end("B"))


async def _a_returns_and_copies_m2(stage: Stage) -> None:
    await stage.start("A")
    await _until_a_follows(stage)
    stage.show(
        "A returns, asks where its last epoch ends, hears that epoch 0 ends at 2, cuts nothing, and copies m2: "
        "the replicas agree.",
        "S4.4",
    )


async def _a_returns_to_another_record(stage: Stage, rule: str) -> None:
    await stage.start("A")
    if stage.by_epoch:
        await stage.until(lambda: stage.log_end("A") == 1)
        stage.show("A returns and asks where its last epoch ends; B says that epoch 0 ends at 1, so A cuts m1.", "S4.4")
    await _until_a_follows(stage)
    if stage.by_epoch:
        stage.show("A copies m2: the replicas agree.", "S1.2")
    else:
        stage.show(
            "A returns; its HW is its log end, 2, so it cuts nothing: offset 1 differs, and nobody notices.", rule
        )
