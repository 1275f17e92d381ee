"""The events of the last run, in a file: one JSON object per line, so that a run that dies leaves what it knew."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO


class Journal:
    """Every line is out when `write` returns: `status` may read it while the run goes on."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("w", encoding="utf-8")

    def write(self, event: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(event) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Nothing if there was no run; up to the last line that is whole."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            return
        if isinstance(event, dict):
            yield event
