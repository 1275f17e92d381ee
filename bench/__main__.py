"""`make bench`: all tables, or the named ones (`python -m bench wire records`).

Markdown on stdout, JSON in bench/results.
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

TABLES = ["wire", "records", "log"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("tables", nargs="*", default=TABLES, help=f"which of {', '.join(TABLES)}; all if none is named")
    names = parser.parse_args().tables
    results: dict[str, list[Row]] = {}
    for name in names:
        rows: list[Row] = importlib.import_module(f"bench.{name}").rows()
        results[name] = rows
        print(f"\n## {name}\n\n{markdown(rows)}", flush=True)
    _write(results)
    missed = [row.what for rows in results.values() for row in rows if not row.met]
    print(f"\n{len(missed)} bars missed" + "".join(f"\n- {what}" for what in missed))
    return 1 if missed else 0


def _write(results: dict[str, list[Row]]) -> None:
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    facts = {"python": platform.python_version(), "cores": os.cpu_count()}
    for name, rows in results.items():
        document = facts | {"rows": [asdict(row) | {"met": row.met} for row in rows]}
        (folder / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
