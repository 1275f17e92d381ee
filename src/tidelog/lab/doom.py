"""Death in the midst of a piece of work, at a chosen change to the disk."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NoReturn

from tidelog.lab.process import PROCESS, ProcessDied


class Doom:
    """Counts the changes that a process makes to its disk, and ends the process with one of them.

    That one is done, not done, or if it is a write done in part, as chance will. What the lab itself does to the
    disk is not counted.
    """

    def __init__(self) -> None:
        self._left = 0
        self._chance = random.Random(0)
        self._end: Callable[[], None] = lambda: None

    def set(self, changes: int, chance: random.Random, end: Callable[[], None]) -> None:
        """`end` is called within the change of that number, counted from now; 1 is the next."""
        if changes < 1:
            raise ValueError(f"cannot die at change {changes}: the next one is 1")
        self._left, self._chance, self._end = changes, chance, end

    def lift(self) -> None:
        self._left = 0

    def change(self, apply: Callable[[], None]) -> None:
        """A change that is done as a whole or not at all."""
        if not self._has_come():
            apply()
            return
        if self._chance.random() < 0.5:
            apply()
        self._strike()

    def write(self, size: int, apply: Callable[[int], None]) -> None:
        """A change that may be done in part: `apply` is told how many of the bytes."""
        if not self._has_come():
            apply(size)
            return
        apply(self._chance.choice((0, size, self._chance.randrange(size + 1))))
        self._strike()

    def _has_come(self) -> bool:
        if not self._left or PROCESS.get() is None:
            return False
        self._left -= 1
        return self._left == 0

    def _strike(self) -> NoReturn:
        self._end()
        raise ProcessDied
