"""Very many produces that wait: they give up at little cost, and are answered in several turns of the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.kits.brokerkit import Kit, run, say_session_is_current
from tests.kits.logkit import batch
from tidelog.broker.waiting import AnswerTime, CommitQueue
from tidelog.broker.write_path import Commits, Written
from tidelog.errors import ErrorCode
from tidelog.lab.broker import eventually
from tidelog.ports import Clock
from tidelog.replication.leader import FollowerFetch

NONE, NOT_LEADER, TIMED_OUT = ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT
AFTER_APPEND = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
MANY = 200


class SlowClock(Clock):
    """Each look at it takes 2 ms, so that 5 ms are over after 48 answers."""

    def __init__(self) -> None:
        self.now_ns = 0

    def wall_ms(self) -> int:
        return self.now_ns // 1_000_000

    def monotonic_ns(self) -> int:
        self.now_ns += 2_000_000
        return self.now_ns


class Produces:
    """Wait for the offsets 1, 2 and so on of a partition with two replicas, whose follower has copied nothing."""

    def __init__(self, kit: Kit) -> None:
        self.partition = kit.partition()
        self.answered: list[tuple[int, ErrorCode]] = []
        """Offsets and codes, in the order of the answers."""
        self._answer_time = kit.broker.replicas.answer_time

    @classmethod
    async def begin(cls, kit: Kit, timeout_ms: int = 60_000, count: int = MANY) -> Produces:
        await kit.create_topic()
        assert await kit.lead_and_isr(isr=[1, 2], replicas=[1, 2]) == 0
        assert (await kit.produce(batch([b"v"] * MANY), acks=1)).error_code == 0
        produces = cls(kit)
        produces._answer_time._clock = SlowClock()
        for number in range(count):
            produces._wait(1 + number % MANY, timeout_ms)
        return produces

    def copied(self) -> None:
        """The follower has copied all, so HW passes all that they wait for."""
        self.partition.follower_fetched(FollowerFetch(2, MANY, 0))
        assert self.partition.log.high_watermark == MANY

    def _wait(self, offset: int, timeout_ms: int) -> None:
        leader = self.partition.leader
        assert leader is not None
        written = Written(self.partition, leader, offset - 1, offset, 0)
        Commits([written], timeout_ms, lambda: self.answered.append((offset, written.code)), self._answer_time)

    @property
    def codes(self) -> list[ErrorCode]:
        return [code for _, code in self.answered]


def test_those_that_need_not_wait_are_answered_in_several_turns_in_their_order() -> None:
    async def story(kit: Kit) -> None:
        produces = await Produces.begin(kit)
        produces.copied()
        turns = [len(produces.answered)]
        while len(produces.answered) < MANY:
            await asyncio.sleep(0)
            if len(produces.answered) > turns[-1]:
                turns.append(len(produces.answered))
            assert len(turns) < MANY
        assert produces.answered == [(offset, NONE) for offset in range(1, MANY + 1)]
        assert max(after - before for before, after in pairwise([0, *turns])) <= 64

    run(story)


def test_a_produce_that_waits_in_a_later_turn_is_not_acknowledged_if_the_session_may_be_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story(kit: Kit) -> None:
        produces = await Produces.begin(kit)
        produces.copied()
        answered = len(produces.answered)
        assert 0 < answered < MANY
        say_session_is_current(monkeypatch, lambda: False)
        await eventually(lambda: len(produces.answered) == MANY)
        assert produces.codes == [NONE] * answered + [NOT_LEADER] * (MANY - answered)

    run(story)


def test_those_that_wait_for_a_later_turn_hear_that_the_isr_has_become_too_small() -> None:
    async def story(kit: Kit) -> None:
        produces = await Produces.begin(kit)
        leader = produces.partition.leader
        assert leader is not None
        leader.need_replicas(2)
        produces.copied()
        answered = len(produces.answered)
        assert 0 < answered < MANY
        produces.partition.isr_changed([1])
        await eventually(lambda: len(produces.answered) == MANY)
        assert produces.codes == [NONE] * answered + [AFTER_APPEND] * (MANY - answered)

    run(story)


def test_another_leader_answers_those_that_wait_for_a_later_turn() -> None:
    async def story(kit: Kit) -> None:
        produces = await Produces.begin(kit)
        produces.copied()
        answered = len(produces.answered)
        produces.partition.follow()
        await eventually(lambda: len(produces.answered) == MANY)
        assert produces.answered == [
            (offset, NONE if offset <= answered else NOT_LEADER) for offset in range(1, MANY + 1)
        ]

    run(story)


def test_a_further_term_answers_those_that_wait_for_a_later_turn() -> None:
    async def story(kit: Kit) -> None:
        produces = await Produces.begin(kit)
        leader = produces.partition.leader
        assert leader is not None
        produces.copied()
        produces.partition.pause()
        for _ in range(20):
            await asyncio.sleep(0)
        answered = len(produces.answered)
        assert 0 < answered < MANY, "none is answered between two terms"
        produces.partition.lead(leader)
        await eventually(lambda: len(produces.answered) == MANY)
        assert produces.codes == [NONE] * MANY

    run(story)


def test_what_is_committed_did_not_time_out_though_its_answer_has_to_wait() -> None:
    async def story(kit: Kit) -> None:
        produces = await Produces.begin(kit, timeout_ms=1_000)
        await asyncio.sleep(0.999)
        produces.copied()
        assert len(produces.answered) < MANY
        produces._answer_time._put_off.clear()  # the next turn comes too late
        await eventually(lambda: len(produces.answered) == MANY)
        assert produces.codes == [NONE] * MANY
        assert not produces.partition.awaiting_commit

    run(story)


def test_those_whose_time_is_over_together_are_told_in_several_turns() -> None:
    async def story(kit: Kit) -> None:
        produces = await Produces.begin(kit, timeout_ms=1_000)
        after_first_turn: list[int] = []
        asyncio.get_running_loop().call_later(1, lambda: after_first_turn.append(len(produces.answered)))
        await eventually(lambda: len(produces.answered) == MANY)
        assert 0 < after_first_turn[0] <= 64
        assert sorted(produces.answered) == [(offset, TIMED_OUT) for offset in range(1, MANY + 1)]
        assert not produces.partition.awaiting_commit
        produces.copied()
        assert len(produces.answered) == MANY

    run(story)


def test_ten_thousand_that_give_up_together_do_not_look_at_each_other() -> None:
    """A queue that is made anew for each of them takes seconds."""

    async def story(kit: Kit) -> None:
        produces = await Produces.begin(kit, timeout_ms=1_000, count=10_000)
        begun = time.process_time()
        await eventually(lambda: len(produces.answered) == 10_000)
        assert time.process_time() - begun < 1.0
        assert not produces.partition.awaiting_commit

    run(story)


def test_who_gives_up_is_not_told_and_keeps_nobody_waiting() -> None:
    queue, told = CommitQueue(), []

    def answer(offset: int) -> Callable[[ErrorCode], None]:
        return lambda code: told.append(offset)

    waiters = {offset: queue.add(offset, answer(offset)) for offset in (1, 2, 3, 5, 6, 7, 4)}
    for offset in (1, 4, 6):
        waiters[offset].forget()
        waiters[offset].forget()
    assert [waiter.offset for waiter in queue] == [2, 3, 5, 7]
    assert len(queue) == 4
    while queue.first_offset() is not None:
        queue.pop()(NONE)
        for waiter in waiters.values():
            if waiter.offset == 5:
                waiter.forget()
    assert told == [2, 3, 7]
    assert not queue
    waiters[2].forget()
    assert len(queue) == 0


def test_few_answers_are_given_at_once() -> None:
    async def ask() -> None:
        answers = AnswerTime(SlowClock())
        assert not any(answers.is_over() for _ in range(40))
        assert any(answers.is_over() for _ in range(40))
        await asyncio.sleep(0)
        assert not any(answers.is_over() for _ in range(40))

    asyncio.run(ask())
