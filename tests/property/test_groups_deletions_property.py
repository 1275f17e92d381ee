"""Commits, deletions of topics and failing writes, in any order: what is read, here and by the next coordinator."""

from __future__ import annotations

from itertools import count

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.kits.groupkit import GROUP, Coordinator, Entry
from tidelog.errors import ErrorCode

PARTITIONS = [(topic, partition) for topic in ("orders", "refunds") for partition in range(3)]
SOME = st.sets(st.sampled_from(PARTITIONS), min_size=1, max_size=4)


class Deletions(RuleBasedStateMachine):
    """One group, and beside it what has to be read of each partition."""

    def __init__(self) -> None:
        super().__init__()
        self.c = Coordinator()
        self.c.commit({("others", 0): 1})
        self.c.hold = True
        self.offset = 0
        self.truth: dict[tuple[str, int], int] = {}
        self.under_way: list[tuple[Entry, dict[tuple[str, int], int]]] = []
        self.ids = count(1)
        for topic in ("orders", "refunds"):
            self.c.topic_ids[topic] = self._next_id()

    def _next_id(self) -> bytes:
        return next(self.ids).to_bytes(16, "big")

    @rule(partitions=SOME, large=st.booleans())
    def commit(self, partitions: set[tuple[str, int]], large: bool) -> None:
        self.offset += 1
        values = dict.fromkeys(sorted(partitions), self.offset)
        self.c.commit(values, large=large)
        self.under_way.append((self.c.log[-1], values))

    @rule(topic=st.sampled_from(["orders", "refunds"]))
    def delete(self, topic: str) -> None:
        self.c.groups.forgetting.topics_deleted({topic: self.c.topic_ids[topic]})
        self.c.topic_ids[topic] = self._next_id()
        for values in [self.truth, *(values for _, values in self.under_way)]:
            for partition in [known for known in values if known[0] == topic]:
                del values[partition]

    @rule(topic=st.sampled_from(["orders", "refunds"]), data=st.data())
    def hear_late_of_a_deletion(self, topic: str, data: st.DataObject) -> None:
        """What a coordinator has committed since, and another one before, is of the new topic."""
        if not any(known == topic for _, values in self.under_way for known, _ in values):
            number = data.draw(st.integers(1, int.from_bytes(self.c.topic_ids[topic], "big")))
            late = number.to_bytes(16, "big")
            if late != self.c.topic_ids[topic]:
                self.c.groups.forgetting.topics_deleted({topic: late})

    @rule(most=st.integers(1, 4), ms=st.sampled_from([0, 1_000]))
    def forget(self, most: int, ms: int) -> None:
        self.c.now_ms += ms
        effects, _ = self.c.groups.forgetting.forget_deleted(most, self.c.now_ms)
        self.c.carry_out(effects)

    @precondition(lambda self: self.c.waiting_writes())
    @rule()
    def succeed(self) -> None:
        self._settle(self.c.waiting_writes()[0], ErrorCode.NONE)

    @precondition(lambda self: self.c.waiting_writes())
    @rule(which=st.integers(0, 5))
    def fail(self, which: int) -> None:
        waiting = self.c.waiting_writes()
        self._settle(waiting[which % len(waiting)], ErrorCode.NOT_ENOUGH_REPLICAS)

    def _settle(self, entry: Entry, error: ErrorCode) -> None:
        self.c.settle(error, entry)
        for other, values in list(self.under_way):
            if other is entry:
                self.under_way.remove((other, values))
                if not error:
                    self.truth |= values

    @invariant()
    def readers_see_the_truth(self) -> None:
        assert self.c.offsets() == self.truth | {("others", 0): 1}

    def teardown(self) -> None:
        while self.c.waiting_writes():
            self.succeed()
        self.c.hold = False
        while self.c.groups.forgetting.has_deleted_topics:
            self.forget(10, 100)
        assert not self.c.groups.commits_of(GROUP).has_void
        self.c.fail_over()
        assert self.c.offsets() == self.truth | {("others", 0): 1}


TestDeletions = Deletions.TestCase
