"""A pipeline's directory: made by `init`, found from anywhere below it, and what its spec says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.templates import DEFAULT_MAX_OFFSETS, project_files

SPEC_NAMES = ("spark-pipeline.yml", "spark-pipeline.yaml")
BOOTSTRAP = "tidelog.bootstrap.servers"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class Project(NamedTuple):
    """Where everything of one pipeline is. `storage` has Spark's checkpoints; it may lie in another file system."""

    spec: Path
    name: str
    storage: str
    configuration: dict[str, str]

    @property
    def directory(self) -> Path:
        return self.spec.parent

    @property
    def warehouse(self) -> Path:
        return self.directory / "warehouse"

    @property
    def own(self) -> Path:
        """Ours: Spark's log, its catalog, the journal of the last run, and a lock of the present one."""
        return self.directory / ".tidelog"

    @property
    def journal(self) -> Path:
        return self.own / "run.jsonl"

    @property
    def lock(self) -> Path:
        """Held by the process that runs the pipeline, where the checkpoints are if they are on this machine.

        So copies of a project, which have the same checkpoints, have the same lock.
        """
        return self._own_lock if self.checkpoints is None else self.checkpoints.parent / ".tidelog-run.lock"

    @property
    def locks(self) -> list[Path]:
        """All that a run holds: that of the catalog and the journal, which lie in the project, comes first."""
        return list(dict.fromkeys([self._own_lock, self.lock]))

    @property
    def _own_lock(self) -> Path:
        return self.own / "run.lock"

    @property
    def spark_log(self) -> Path:
        return self.own / "spark.log"

    @property
    def checkpoints(self) -> Path | None:
        """None if they are not on this machine."""
        scheme, colon, rest = self.storage.partition(":")
        if not colon:
            return Path(self.storage) / "_checkpoints"
        return Path("/" + rest.lstrip("/")) / "_checkpoints" if scheme == "file" else None


def create(parent: Path, name: str, bootstrap: str, max_offsets: int = DEFAULT_MAX_OFFSETS) -> list[Path]:
    """The files that were written."""
    if not _NAME.fullmatch(name):
        raise PipelineError(f"{name!r} is no name for a pipeline: take letters, digits, - and _")
    directory = parent.resolve() / name
    if directory.exists():
        raise PipelineError(f"{directory} is there already")
    files = project_files(name, (directory / "pipeline-storage").as_uri(), bootstrap, max_offsets)
    written: list[Path] = []
    for path, text in files.items():
        file = directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        written.append(file)
    return written


def find_spec(start: Path) -> Path:
    """In this directory or one above it."""
    for directory in (start.resolve(), *start.resolve().parents):
        found = [directory / name for name in SPEC_NAMES if (directory / name).is_file()]
        if len(found) > 1:
            raise PipelineError(f"{directory} has both {SPEC_NAMES[0]} and {SPEC_NAMES[1]}")
        if found:
            return found[0]
    raise PipelineError(
        f"there is no {SPEC_NAMES[0]} in {start.resolve()} or above it; `tidelog pipeline init NAME` makes a project"
    )


def read_project(spec: Path) -> Project:
    """Only what we need of it; Spark checks the rest."""
    import yaml

    try:
        said: Any = yaml.safe_load(spec.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as failure:
        raise PipelineError(f"{spec} cannot be read: {failure}") from failure
    if not isinstance(said, dict):
        raise PipelineError(f"{spec} is not a pipeline's spec: it has no fields")
    for field in ("name", "storage"):
        if not isinstance(said.get(field), str):
            raise PipelineError(f"{spec} lacks the field '{field}'")
    configuration = said.get("configuration") or {}
    if not isinstance(configuration, dict) or not all(isinstance(value, str) for value in configuration.values()):
        raise PipelineError(f"{spec}: 'configuration' must have names and texts; put numbers between quotes")
    return Project(spec.resolve(), said["name"], said["storage"], dict(configuration))
