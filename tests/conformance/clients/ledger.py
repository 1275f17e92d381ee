"""What the run has found, held against the list of known differences.

A case that fails on tidelog and stands in the list counts as expected; one that stands there and passes fails the run,
so that the list never says more than is true. A case that fails on Apache Kafka is a fault of the suite.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from compatibility import write_compatibility
from suite import COLUMNS
from targets import CONTROL, OURS

_KNOWN_FILE = Path(__file__).resolve().parent.parent / "known_differences.toml"
EVERY_CLIENT = "every client"
PASSED, FAILED, KNOWN = "passed", "failed", "known difference"


class Point(NamedTuple):
    client: str
    case: str
    target: str


class Ledger:
    def __init__(self) -> None:
        self._found: dict[Point, str] = {}
        self._known = dict(_read_known())

    def judge(self, point: Point, report: pytest.TestReport) -> None:
        """Turn what is known into an expected failure, and what is no longer true into a failure."""
        if point.target == CONTROL:
            if report.failed:
                report.sections.append(
                    ("the control fails", "Apache Kafka does not do what the case says: mend the case")
                )
        elif report.when == "call" and (reason := self._reason(point)) is not None:
            _apply(reason, report)
        if report.failed:
            self._found[point] = FAILED
        elif report.when == "call":
            self._found.setdefault(point, KNOWN if report.skipped else PASSED)

    def _reason(self, point: Point) -> str | None:
        return self._known.get((point.client, point.case)) or self._known.get((EVERY_CLIENT, point.case))

    def close(self) -> Iterator[str]:
        """Writes docs/COMPATIBILITY.md if every case was played on both; what is to be said at the end of the run."""
        played = {
            Point(driver.name, case.id, target)
            for target in (CONTROL, OURS)
            for section in COLUMNS
            for driver in section.drivers
            for case in section.cases
            if case.id not in driver.lacks
        }
        if not played <= set(self._found):
            return
        found = {(point.client, point.case): outcome for point, outcome in self._found.items() if point.target == OURS}
        reasons = {
            (client, case): reason for client, case in found if (reason := self._reason(Point(client, case, OURS)))
        }
        if write_compatibility(found, reasons):
            yield "docs/COMPATIBILITY.md has changed: look at it with git diff, and commit it"


def _apply(reason: str, report: pytest.TestReport) -> None:
    if report.failed:
        report.outcome = "skipped"
        report.wasxfail = f"known difference: {reason}"
    elif report.passed:
        report.outcome = "failed"
        report.longrepr = f"stands in {_KNOWN_FILE.name} ({reason}), but it passes: remove the entry"


def _read_known() -> Iterator[tuple[tuple[str, str], str]]:
    clients = {driver.name for section in COLUMNS for driver in section.drivers} | {EVERY_CLIENT}
    ids = {case.id for section in COLUMNS for case in section.cases}
    for entry in tomllib.loads(_KNOWN_FILE.read_text()).get("difference", []):
        client, case, reason = entry["client"], entry["case"], entry["reason"]
        if client not in clients or case not in ids or not reason:
            raise pytest.UsageError(f"{_KNOWN_FILE.name}: no client, no case or no reason in {entry}")
        yield (client, case), reason
