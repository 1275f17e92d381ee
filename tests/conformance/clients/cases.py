"""The table of cases: each is written once and played with every client that can.

A case has an id that known_differences.toml and the test names use, a title and a section for docs/COMPATIBILITY.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from driver import Driver
from scene import Scene
from targets import PLAIN

Play = Callable[[Scene[Any]], None]


@dataclass(frozen=True)
class Case:
    id: str
    section: str
    title: str
    play: Play
    server: str = PLAIN
    needs: str = ""
    """What a broker has to serve for it (targets.NOT_SERVED_YET); empty for what every broker serves."""


class Table:
    """Cases in the order they were written, and what all of them need."""

    def __init__(self, needs: str = "") -> None:
        self.cases: list[Case] = []
        self._needs = needs

    def case(self, section: str, title: str, server: str = PLAIN) -> Callable[[Play], Play]:
        """The id is the function's name."""

        def add(play: Play) -> Play:
            self.cases.append(Case(play.__name__.replace("_", "-"), section, title, play, server, self._needs))
            return play

        return add


def played_by(cases: Sequence[Case], *drivers: type[Driver]) -> pytest.MarkDecorator:
    """Parametrizes a test with each driver and each case that it does not lack."""
    known = {case.id for case in cases}
    played = []
    for driver in drivers:
        assert set(driver.lacks) <= known, f"{driver.name} lacks what is no case: {set(driver.lacks) - known}"
        played += [
            pytest.param(driver, case, id=f"{driver.name.replace(' ', '-')}:{case.id}")
            for case in cases
            if case.id not in driver.lacks
        ]
    return pytest.mark.parametrize(("driver", "case"), played)
