"""Names, labels and numbers in the text format that Prometheus reads (version 0.0.4)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

_METRIC = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def check_names(name: str, help_text: str, labels: Sequence[str]) -> None:
    """What is wrong here is a fault of ours, and would spoil the whole page."""
    assert all(map(_METRIC.fullmatch, (name, *labels))), f"{name} {labels} is no name of a metric"
    assert help_text, f"{name} has no help"
    assert "\n" not in help_text, f"{name}: help is one line"
    assert "\\" not in help_text, f"{name}: help is plain text"


def series(name: str, labels: Iterable[tuple[str, str]]) -> str:
    """A name with its labels. An empty label is left out, which means the same to Prometheus."""
    shown = ",".join([f'{label}="{escaped(value)}"' for label, value in labels if value])
    return f"{name}{{{shown}}}" if shown else name


def escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return value


def number(value: float) -> str:
    """With all its digits: a large sum that is rounded seems to stand still."""
    if isinstance(value, int):
        return str(int(value))
    if math.isfinite(value):
        return str(int(value)) if value.is_integer() else repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
