"""Who hears of the changes of one partition."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol

from tidelog.broker.waiting import AnswerTime

_AT_ONCE = 16
"""So many are told of a change in the turn in which it happens, whatever else that turn has to do."""


class Watcher(Protocol):
    """Somebody who wants to know that there may be more to read, or that there is another leader."""

    def changed(self) -> None: ...


class Watchers:
    """Few are told of a change at once. Many are told for as long as the turn of the loop has time for answers, and the
    rest in the next turns, so that other requests are served in between.

    The one who was told longest ago is told first. A change that comes while some have not been told of an earlier one
    is told together with that one.

    Always: those who have not been told of the last change are among the first `_left`.
    """

    __slots__ = ("_answer_time", "_is_put_off", "_left", "all")

    def __init__(self, answer_time: AnswerTime) -> None:
        self.all: OrderedDict[Watcher, None] = OrderedDict()
        self._answer_time = answer_time
        self._left = 0
        """How many are to be told. It may be too many, if some have gone."""
        self._is_put_off = False

    def __len__(self) -> int:
        return len(self.all)

    def __iter__(self) -> Iterator[Watcher]:
        return iter(self.all)

    def add(self, watcher: Watcher) -> None:
        """It knows what there is now, and hears of what comes."""
        self.all[watcher] = None

    def discard(self, watcher: Watcher) -> None:
        self.all.pop(watcher, None)

    def tell(self) -> None:
        """Something has changed."""
        if len(self.all) <= _AT_ONCE:
            self._left = 0
            for watcher in list(self.all):
                watcher.changed()
            return
        self._left = len(self.all)
        if not self._is_put_off:
            self._tell_some()

    def _tell_some(self) -> None:
        self._is_put_off = False
        told = self.all
        while self._left > 0 and told:
            if self._answer_time.is_over():
                self._is_put_off = True
                self._answer_time.put_off(self._tell_some)
                return
            self._left -= 1
            watcher = next(iter(told))
            told.move_to_end(watcher)
            watcher.changed()
