"""A page of metrics, read as strictly as its format says, and what it shows."""

from __future__ import annotations

import re
import urllib.request
from typing import NamedTuple

from tidelog.metrics import Metrics

_NAME = r"[a-zA-Z_][a-zA-Z0-9_]*"
_HELP = re.compile(rf"# HELP ({_NAME}) (\S.*)")
_TYPE = re.compile(rf"# TYPE ({_NAME}) (counter|gauge|summary)")
_SAMPLE = re.compile(rf"({_NAME})(?:\{{(.+)\}})? (-?[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?|NaN|[+-]Inf)")
_LABEL = re.compile(rf'({_NAME})="((?:[^"\\\n]|\\["\\n])+)"(?:,|$)')
_ESCAPE = re.compile(r"\\(.)")


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


class FamilyShown(NamedTuple):
    """One name: what it is, and its series."""

    help: str
    kind: str
    samples: list[Sample]


Page = dict[str, FamilyShown]


def parse(text: str) -> Page:
    """Every line is asserted to be right; all series of a name stand together, and none is there twice."""
    assert text.endswith("\n")
    page: Page = {}
    seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
    lines = text[:-1].split("\n")
    current = ""
    for number, line in enumerate(lines):
        if line.startswith("# HELP"):
            helped, typed = _HELP.fullmatch(line), _TYPE.fullmatch(lines[number + 1])
            assert helped, line
            assert typed, lines[number + 1]
            current = helped[1]
            assert typed[1] == current, line
            assert current not in page, f"{current} is there twice"
            page[current] = FamilyShown(helped[2], typed[2], [])
        elif not line.startswith("# TYPE"):
            sample = _sample(line)
            family = page[current]
            _check(current, family.kind, sample)
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in seen, f"{line} is there twice"
            seen.add(key)
            family.samples.append(sample)
    assert all(family.samples for family in page.values())
    return page


def _sample(line: str) -> Sample:
    found = _SAMPLE.fullmatch(line)
    assert found, line
    labels: dict[str, str] = {}
    place = 0
    while found[2] is not None and place < len(found[2]):
        label = _LABEL.match(found[2], place)
        assert label, line
        assert label[1] not in labels, line
        labels[label[1]] = _ESCAPE.sub(lambda escape: "\n" if escape[1] == "n" else escape[1], label[2])
        place = label.end()
    return Sample(found[1], labels, float(found[3]))


def _check(name: str, kind: str, sample: Sample) -> None:
    if kind == "summary":
        part = sample.name.removeprefix(name)
        assert part in ("_sum", "_count", ""), sample
        assert ("quantile" in sample.labels) == (part == ""), sample
    else:
        assert sample.name == name, sample
    assert kind != "counter" or (name.endswith("_total") and sample.value >= 0), sample
    assert kind == "counter" or not name.endswith("_total"), f"{name} is no counter"


def value(metrics: Metrics, series: str) -> float:
    """Of one series, written as the page shows it."""
    for line in metrics.text().splitlines():
        name, _, shown = line.rpartition(" ")
        if name == series:
            return float(shown)
    raise AssertionError(f"there is no {series}")


def counted(metrics: Metrics, series: str) -> float:
    """Of a counter by label, which is not shown before it is first used."""
    shown = {line.rpartition(" ")[0]: line.rpartition(" ")[2] for line in metrics.text().splitlines()}
    return float(shown.get(series, 0))


def read_page(port: int, path: str = "/metrics") -> str:
    """From a broker's port on this machine."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
        text: str = answer.read().decode()
    return text
