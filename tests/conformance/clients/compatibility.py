"""docs/COMPATIBILITY.md: clients by features, as the last full run of the suite found them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path

from suite import COLUMNS, Section

from peers import home

_FILE = home.CHECKOUT / "docs" / "COMPATIBILITY.md"
_HEAD = """# Compatibility

Written by `make conformance`; do not edit. Every case is played on Apache Kafka {kafka} first and passes there, then on
tidelog. Nothing of tidelog is in the clients.

- **yes**: the client cannot tell tidelog from Apache Kafka here.
- **differs**: it can; the number is that of the reason below.
- –: the client has no such call, or does not show what the case is about.
"""
Found = Mapping[tuple[str, str], str]


def write_compatibility(found: Found, reasons: Mapping[tuple[str, str], str], file: Path = _FILE) -> bool:
    """Whether the file changed. It has no dates and no paths: the same outcomes give the same file."""
    numbers = {reason: number for number, reason in enumerate(dict.fromkeys(reasons.values()), 1)}
    lines = [*_HEAD.format(kafka=home.KAFKA_KRAFT).splitlines(), ""]
    for section in COLUMNS:
        cells = {key: f"differs {numbers[reason]}" for key, reason in reasons.items()}
        lines += [f"## {section.title}", "", *_versions(section), "", *_table(section, found, cells), ""]
    if numbers:
        lines += ["## Known differences", "", *(f"{number}. {reason}" for reason, number in numbers.items()), ""]
    text = "\n".join(lines)
    if file.exists() and file.read_text() == text:
        return False
    file.write_text(text)
    return True


def _versions(section: Section) -> Iterator[str]:
    for driver in section.drivers:
        yield f"- {driver.name}: version {driver().version()}"


def _table(section: Section, found: Found, cells: Mapping[tuple[str, str], str]) -> Iterator[str]:
    names = [driver.name for driver in section.drivers]
    yield f"| | {' | '.join(names)} |"
    yield "|---" * (len(names) + 1) + "|"
    ordered = sorted(section.cases, key=lambda case: _first_of(section, case.section))
    for title, cases in groupby(ordered, key=lambda case: case.section):
        yield f"| **{title}** |{' |' * len(names)}"
        for case in cases:
            row = [
                "–" if case.id in driver.lacks else _cell(found, cells, driver.name, case.id)
                for driver in section.drivers
            ]
            yield f"| {case.title} | {' | '.join(row)} |"


def _first_of(section: Section, title: str) -> int:
    return next(index for index, case in enumerate(section.cases) if case.section == title)


def _cell(found: Found, cells: Mapping[tuple[str, str], str], client: str, case: str) -> str:
    outcome = found[client, case]
    if outcome == "passed":
        return "yes"
    return cells.get((client, case), "**fails**") if outcome != "failed" else "**fails**"
