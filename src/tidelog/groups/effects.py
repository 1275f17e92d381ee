"""What a request or a timer leads to, and the turn in which it does.

The shell carries effects out in their order: it sends an Answer, or many Answers, and appends a Write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from tidelog.errors import ErrorCode
from tidelog.groups.config import GroupConfig
from tidelog.groups.timers import Timers
from tidelog.wire.schema import Message

Ticket: TypeAlias = Any
"""Whoever asked; it comes back with the answer, exactly once."""

Record: TypeAlias = tuple[bytes, bytes | None]
"""Key and value of a record for __consumer_offsets; without value it is a tombstone."""


class Answer(NamedTuple):
    """To be sent now. `message` is the response, or the part of it that the method says."""

    ticket: Ticket
    message: Any


class Answers(NamedTuple):
    """Many answers that differ in the member they name. Each is made when it is sent: to make them for all members of a
    large group in one go takes long."""

    waiting: deque[tuple[Ticket, str]]
    """Who asked, and the id of the member. The shell takes them out, the first one first."""
    make: Callable[[str], Message]

    def take(self) -> Answer:
        """The next one."""
        ticket, member_id = self.waiting.popleft()
        return Answer(ticket, self.make(member_id))


class Write(NamedTuple):
    """To be appended with acks=all, as one batch or within one, after all writes before it.

    `done(error, now_ms)` is called when that is settled, in the order of the log: with NONE when the records are below
    the high watermark, else with the error of the append. REQUEST_TIMED_OUT says that they are in the log and not yet
    replicated; they may still be, and then `done` is called again. Without records it asks for `done` when all before
    it is settled.
    """

    records: list[Record]
    done: Callable[[int, int], list[Effect]]


Effect: TypeAlias = Answer | Answers | Write


class Turn:
    """One event's worth of effects, at one time."""

    __slots__ = ("config", "effects", "now_ms", "timers")

    def __init__(self, config: GroupConfig, timers: Timers, now_ms: int) -> None:
        self.config = config
        self.timers = timers
        self.now_ms = now_ms
        self.effects: list[Effect] = []

    def answer(self, ticket: Ticket, message: Message) -> None:
        self.effects.append(Answer(ticket, message))

    def write(self, records: list[Record], settled: Callable[[Turn, int], None]) -> None:
        """`settled` hears what became of the records, in the turn of that moment."""
        config, timers = self.config, self.timers

        def done(error: int, now_ms: int) -> list[Effect]:
            turn = Turn(config, timers, now_ms)
            settled(turn, error)
            return turn.effects

        self.effects.append(Write(records, done))

    def answer_when_written(self, ticket: Ticket, message: Message, refusal: Callable[[int], Message]) -> None:
        """With the last write of this turn, if there is one; `refusal` makes the answer if it fails."""
        last = self.effects[-1] if self.effects else None
        if not isinstance(last, Write):
            self.answer(ticket, message)
            return
        waiting = [ticket]

        def done(error: int, now_ms: int) -> list[Effect]:
            effects = last.done(error, now_ms)
            if waiting:
                effects.append(Answer(waiting.pop(), message if error == ErrorCode.NONE else refusal(error)))
            return effects

        self.effects[-1] = Write(last.records, done)
