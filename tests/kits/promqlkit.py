"""What a query of PromQL asks for: the names of its metrics, and the labels that must or must not be there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.kits.metricskit import Page, Sample

_SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{([^}]*)\})?(?!\s*\()(?![a-zA-Z0-9_:])")
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_RANGE = re.compile(r"\[[^\]]*\]")
_MATCHER = re.compile(r"\s*([a-zA-Z_]\w*)\s*(=~|!~|!=|=)\s*\"([^\"]*)\"\s*(?:,|$)")
_WORDS = {"and", "or", "unless", "bool", "offset"}
_LABEL_VALUES = re.compile(r"label_values\((\w+), (\w+)\)")
_LEGEND_LABEL = re.compile(r"\{\{(\w+)\}\}")
OF_PROMETHEUS = {"instance", "job"}
"""Labels that the scrape adds."""


class Selector(NamedTuple):
    """A metric with its matchers: label, operator and value."""

    metric: str
    matchers: tuple[tuple[str, str, str], ...]

    def takes(self, sample: Sample) -> bool:
        return sample.name == self.metric and all(_holds(sample, matcher) for matcher in self.matchers)


def _holds(sample: Sample, matcher: tuple[str, str, str]) -> bool:
    label, operator, wanted = matcher
    if label in OF_PROMETHEUS:
        return True
    shown = sample.labels.get(label, "")
    if operator in ("=~", "!~"):
        if "$" in wanted:  # a variable of the dashboard: any value that there is
            return shown != ""
        return bool(re.fullmatch(wanted, shown)) == (operator == "=~")
    return (shown == wanted) == (operator == "=")


def selectors(expression: str) -> list[Selector]:
    """All of them, in the order in which they stand there."""
    text = _RANGE.sub("", _GROUPING.sub("", expression))
    found = []
    for name, matchers in _SELECTOR.findall(text):
        if name not in _WORDS:
            read = tuple(_MATCHER.findall(matchers))
            assert len(read) == (matchers.count('"') // 2), f"{matchers} cannot be read"
            found.append(Selector(name, read))
    return found


def grouped_by(expression: str) -> set[str]:
    """The labels by which its results are told apart."""
    return {label.strip() for labels in _GROUPING.findall(expression) for label in labels.split(",") if label.strip()}


def queries(dashboard: Path) -> Iterator[tuple[str, str, set[str]]]:
    """Of each query in a dashboard: where it stands, what it asks, and the labels that it groups by or shows."""
    board = json.loads(dashboard.read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"]
            yield (
                panel["title"],
                expression,
                grouped_by(expression) | set(_LEGEND_LABEL.findall(target["legendFormat"])),
            )
    for variable in board["templating"]["list"]:
        asked = _LABEL_VALUES.fullmatch(_text_of(variable))
        if asked:
            yield f"the variable {variable['name']}", asked[1], {asked[2]}


def _text_of(variable: dict[str, Any]) -> str:
    text: str = variable["query"]["query"] if isinstance(variable["query"], dict) else variable["query"]
    return text


def missing(page: Page, expression: str, labels: set[str]) -> list[str]:
    """What the query asks for and the page does not have."""
    samples = [sample for family in page.values() for sample in family.samples]
    lacking = []
    for selector in selectors(expression):
        taken = [sample for sample in samples if selector.takes(sample)]
        if not taken:
            lacking.append(str(selector))
        elif not any(labels - OF_PROMETHEUS <= sample.labels.keys() for sample in taken):
            lacking.append(f"{selector.metric} has no {sorted(labels - OF_PROMETHEUS)}")
    return lacking
