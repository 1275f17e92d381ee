"""The compiled modules of `tidelog.records` have two lives, compiled and plain Python. Here are both, side by side."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tidelog.records.arrow import to_arrow
from tidelog.records.buffers import ColumnBuffers

COMPILED = ("kernel", "columns", "column_source", "encoder", "key_partitions", "offset_map", "record_walk", "rooms")
ON_TOP = ("batch", "build", "validate", "control", "lookups", "compaction", "splitting")


def _load(name: str, *, plain: bool) -> ModuleType:
    found = importlib.util.find_spec(f"tidelog.records.{name}")
    assert found is not None
    assert found.origin is not None
    if not plain:
        return importlib.import_module(found.name)
    source = Path(found.origin).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(found.name, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[found.name] = module  # so that those loaded after it build on it
    spec.loader.exec_module(module)
    return module


def _life(*, plain: bool) -> Any:
    names = (*COMPILED, *ON_TOP)
    saved = {name: sys.modules.get(f"tidelog.records.{name}") for name in names}
    try:
        return SimpleNamespace(plain=plain, **{name: _load(name, plain=plain) for name in names})
    finally:
        for name, module in saved.items():
            if module is not None:
                sys.modules[f"tidelog.records.{name}"] = module
            elif plain:
                del sys.modules[f"tidelog.records.{name}"]


compiled = _life(plain=False)
plain = _life(plain=True)
assert not plain.kernel.COMPILED

LIVES = [plain, compiled] if compiled.kernel.COMPILED else [plain]
both_lives = pytest.mark.parametrize("life", LIVES, ids=lambda life: "plain" if life.plain else "compiled")


def rows_of(columns: ColumnBuffers) -> list[tuple[Any, ...]]:
    """(offset, timestamp, key, value, headers) of each row, as Arrow reads the buffers after checking them."""
    table = to_arrow(columns)
    table.validate(full=True)
    timestamps = table.column("timestamp").cast(pa.int64())
    return [
        (
            row["offset"],
            timestamp,
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"]),
        )
        for row, timestamp in zip(table.drop_columns("timestamp").to_pylist(), timestamps.to_pylist(), strict=True)
    ]
