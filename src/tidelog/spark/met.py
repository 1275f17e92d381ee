"""The brokers that processes of one Spark application have met, and their cluster, by the addresses that were given.

Spark keeps its Python workers from task to task, but ends those that were idle for a minute, and makes a sink's writer
anew for each micro-batch. So what a process has met is kept in memory, and for other processes of the application on
this machine in a file in Spark's own directory, which Spark removes when the application ends.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tidelog.client.addresses import NONE_KNOWN, Address, KnownBrokers, address_text

_DIRECTORIES = "SPARK_LOCAL_DIRS"
"""Set by Spark in its Python workers, those on the driver as well."""

_MET: dict[tuple[Address, ...], KnownBrokers] = {}


def remember(addresses: Sequence[Address], known: KnownBrokers) -> None:
    if _MET.get(tuple(addresses)) == known:
        return
    _MET[tuple(addresses)] = known
    file = _file(addresses, os.environ)
    if file is not None:
        _write(file, known)


def remembered(addresses: Sequence[Address]) -> KnownBrokers:
    met = _MET.get(tuple(addresses))
    file = _file(addresses, os.environ) if met is None else None
    return met or (NONE_KNOWN if file is None else _read(file))


def _file(addresses: Sequence[Address], environment: Mapping[str, str]) -> Path | None:
    directory = environment.get(_DIRECTORIES, "").split(",")[0]
    if not directory:
        return None
    text = ",".join(map(address_text, addresses))
    return Path(directory) / f"tidelog-met-{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


def _write(file: Path, known: KnownBrokers) -> None:
    """Another process may read it, or write it, at the same time. If it cannot be written, others do without it."""
    whole = file.with_suffix(f".{os.getpid()}")
    try:
        whole.write_text(json.dumps(known._asdict()), encoding="utf-8")
        whole.replace(file)
    except OSError:
        whole.unlink(missing_ok=True)


def _read(file: Path) -> KnownBrokers:
    try:
        said = json.loads(file.read_text(encoding="utf-8"))
        return KnownBrokers(tuple((host, port) for host, port in said["addresses"]), said["cluster_id"])
    except (OSError, ValueError):
        return NONE_KNOWN
