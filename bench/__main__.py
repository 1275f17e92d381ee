"""`make bench`: all tables, or the named ones (`python -m bench wire records`). `change` compares two checkouts.

Markdown on stdout, JSON in bench/results. A table may have `settings()`, which are told with it. With --quick, those
that have a scale of it run once and small: that shows that everything works, and judges nothing.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
from dataclasses import asdict
from pathlib import Path

from bench.table import Row, markdown

TABLES = ["wire", "records", "log", "broker", "hot", "cluster", "groups", "spark", "stalls"]
QUICK_TABLES = ["broker", "hot", "cluster", "groups", "spark"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("tables", nargs="*", default=TABLES, help=f"which of {', '.join(TABLES)}; all if none is named")
    parser.add_argument("--quick", action="store_true", help=f"a smoke run of {', '.join(QUICK_TABLES)}")
    given = parser.parse_args()
    if given.quick:
        for name in (name for name in QUICK_TABLES if name in given.tables):
            _measure(name, quick=True)
        return 0
    missed = [row.what for name in given.tables for row in _measure(name) if not row.met]
    print(f"\n{len(missed)} bars missed" + "".join(f"\n- {what}" for what in missed))
    return 1 if missed else 0


def _measure(name: str, *, quick: bool = False) -> list[Row]:
    module = importlib.import_module(f"bench.{name}")
    title = f"{name}-quick" if quick else name
    settings: dict[str, str] = module.settings() if hasattr(module, "settings") else {}
    rows: list[Row] = module.rows(module.QUICK) if quick else module.rows()
    told = "".join(f"- {what}: {text}\n" for what, text in settings.items())
    print(f"\n## {title}\n\n{told}\n{markdown(rows)}" if told else f"\n## {title}\n\n{markdown(rows)}", flush=True)
    _write(title, settings, rows)
    return rows


def _write(title: str, settings: dict[str, str], rows: list[Row]) -> None:
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    document: dict[str, object] = {"python": platform.python_version(), "cores": os.cpu_count()}
    if settings:
        document["settings"] = settings
    document["rows"] = [asdict(row) | {"met": row.met} for row in rows]
    (folder / f"{title}.json").write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
