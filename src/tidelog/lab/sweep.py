"""Many seeds, in several processes: one result for each, kept in a file so that a search can go on where it stopped."""

from __future__ import annotations

import hashlib
import json
import logging
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import tidelog
from tidelog.lab.search import Outcome, run
from tidelog.lab.world import freeze_base

_SEEDS_PER_PROCESS = 500
"""After so many a worker is replaced, so that it does not grow without bound."""
_AHEAD = 4
"""Seeds that wait for each worker."""
JOURNAL = "search.jsonl"


class Result(NamedTuple):
    """What is kept of a run."""

    seed: int
    cpu_s: float
    virtual_s: float
    faults: dict[str, int]
    """How often each fault was done."""
    effects: dict[str, int]
    """How often it had an effect that could be seen at once."""
    broken: str | None = None
    report: str = ""
    """What a person is told of a failure."""


Report = Callable[[Outcome, Path], str]
"""Writes the trace of a failed run into a directory; what is to be told of it."""


def run_one(seed: int, directory: Path, report: Report) -> Result:
    started = time.process_time()
    outcome = run(seed)
    return Result(
        seed,
        round(time.process_time() - started, 3),
        outcome.virtual_s,
        dict(outcome.trace.count("fault")),
        dict(outcome.trace.count("effect")),
        outcome.broken,
        report(outcome, directory) if outcome.broken is not None else "",
    )


def run_all(seeds: Iterable[int], jobs: int, directory: Path, report: Report) -> Generator[Result, None, None]:
    """In the order in which they end. Closing the iterator ends the search."""
    if jobs == 1:
        freeze_base()
        yield from (run_one(seed, directory, report) for seed in seeds)
        return
    pool = ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=prepare, max_tasks_per_child=_SEEDS_PER_PROCESS
    )
    waiting: set[Future[Result]] = set()
    try:
        for seed in seeds:
            waiting.add(pool.submit(run_one, seed, directory, report))
            if len(waiting) >= jobs * _AHEAD:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)
    finally:
        pool.shutdown(cancel_futures=True)


def prepare() -> None:
    """A worker process is made ready to run seeds."""
    silence()
    freeze_base()


def silence() -> None:
    """Brokers have much to complain of; what happened stands in the trace. A killed one leaves work it never began."""
    logging.getLogger("tidelog").addHandler(logging.NullHandler())
    warnings.filterwarnings("ignore", message="coroutine .* was never awaited", category=RuntimeWarning)


class Journal:
    """The results of a search, a line each. Lines of another version of the code are passed over."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / JOURNAL
        self._version = code_version()

    def results(self) -> list[Result]:
        if not self._file.exists():
            return []
        lines = (json.loads(line) for line in self._file.read_text(encoding="utf-8").splitlines() if line.endswith("}"))
        return [Result(**line["result"]) for line in lines if line["version"] == self._version]

    def add(self, result: Result) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as out:
            out.write(json.dumps({"version": self._version, "result": result._asdict()}) + "\n")


def code_version() -> str:
    """A seed is another run when any of the code has changed."""
    sha = hashlib.sha256()
    root = Path(tidelog.__file__).parent
    for file in sorted(root.rglob("*.py")):
        sha.update(f"{file.relative_to(root)} ".encode() + file.read_bytes())
    return sha.hexdigest()[:16]


class Summary:
    """Of all results, by fault and by rule."""

    def __init__(self) -> None:
        self.seeds = 0
        self.cpu_s = 0.0
        self.longest = (0.0, -1)
        """CPU seconds, and the seed."""
        self.virtual_s = 0.0
        self.runs_with: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.effects: Counter[str] = Counter()
        self.broken: dict[str, list[int]] = {}

    def add(self, result: Result) -> None:
        self.seeds += 1
        self.cpu_s += result.cpu_s
        self.virtual_s += result.virtual_s
        self.longest = max(self.longest, (result.cpu_s, result.seed))
        self.runs_with.update(result.faults.keys())
        self.faults.update(result.faults)
        self.effects.update(result.effects)
        if result.broken is not None:
            self.broken.setdefault(result.broken, []).append(result.seed)

    @property
    def failed(self) -> list[int]:
        return sorted(seed for seeds in self.broken.values() for seed in seeds)
