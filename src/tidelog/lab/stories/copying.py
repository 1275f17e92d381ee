"""How one record gets onto every replica, and how everybody learns that it has (S2)."""

from __future__ import annotations

from tidelog.lab.stage import Stage


async def two_replicas(stage: Stage) -> None:
    """The follower's fetch comes after the produce."""
    await stage.set("AB", replica_fetch_wait_max_ms="0")
    stage.show("A leads and B follows; both logs are empty, and B asks A for offset 0 again and again.", "S1.2")
    m0 = stage.produce("m0")
    await stage.until(lambda: stage.log_end("A") == 1)
    stage.show(
        "A client writes m0 with acks=all: A appends it, so its log end is 1; as far as A knows nobody else has it, "
        "so HW stays 0 and the produce waits.",
        "S2.7",
    )
    await stage.until(lambda: stage.log_end("B") == 1)
    stage.show("B's fetch at offset 0 brings m0; the answer was sent with HW 0, so that is all B knows.", "S2.8")
    await stage.until(lambda: m0.is_answered)
    stage.show(
        "B asks for offset 1, which tells A that B has all below it: remote LEO 1, so HW is 1, and the client hears "
        "that m0 is committed.",
        "S2.5, S2.6",
    )
    await stage.until(lambda: stage.high_watermark("B") == 1)
    stage.show("The answer to that second fetch carries HW 1 to B: one record takes two rounds.", "S2.9")


async def purgatory(stage: Stage) -> None:
    """The follower's fetch is there first, and waits."""
    await stage.set("AB")
    await stage.until(lambda: stage.row("A").purgatory)
    stage.show(
        "B has asked for offset 0; A has nothing for it, so the fetch waits in purgatory, for 500 ms at most.", "S2.10"
    )
    m0 = stage.produce("m0")
    await stage.until(lambda: stage.log_end("A") == 1)
    stage.show(
        "m0 is appended and wakes the fetch, which is answered at once; now the produce waits, for HW to pass m0.",
        "S2.10",
    )
    await stage.until(lambda: stage.log_end("B") == 1)
    stage.show("The answer has brought m0 to B, with the HW of that moment, 0.", "S2.8")
    await stage.until(lambda: m0.is_answered)
    stage.show(
        "B's next fetch asks for offset 1: HW is 1, and the produce leaves purgatory with its answer.", "S2.5, S2.6"
    )
    await stage.until(lambda: stage.high_watermark("B") == 1)
    stage.show("That fetch found no record, but a newer HW than B was told, so it was answered at once.", "S2.9")
    await stage.until(lambda: stage.row("A").purgatory)
    stage.show("B asks for offset 1 once more; there is neither record nor news, so it waits again.", "S2.10")


async def three_replicas(stage: Stage) -> None:
    """HW waits for the slower of two followers."""
    await stage.set("ABC")
    stage.set_latency("A", "C", 40.0)
    await stage.until(lambda: len(stage.row("A").purgatory) == 2)
    stage.show("A leads; B is near and C is far away; both are in sync and wait for more.", "S1.1")
    m0 = stage.produce("m0")
    await stage.until(lambda: stage.log_end("A") == 1)
    stage.show("A appends m0 and answers both fetches with it.", "S2.10")
    await stage.until(lambda: stage.remote_end("B") == 1)
    stage.show(
        "B has m0 and has said so with its next fetch; HW is the smallest log end in the ISR, so it waits for C.",
        "S2.6",
    )
    await stage.until(lambda: stage.log_end("C") == 1)
    stage.show("m0 has reached C, which A does not know yet.", "S2.4")
    await stage.until(lambda: m0.is_answered)
    stage.show("C's next fetch says that it has m0: HW is 1, and the client hears of it.", "S2.5, S2.6")
    await stage.until(lambda: stage.high_watermark("B") == 1)
    stage.show("B hears of it first.", "S2.9")
    await stage.until(lambda: stage.high_watermark("C") == 1)
    stage.show("Then C: the tide has risen everywhere.", "S2.9")
