"""What must be on this machine before Spark can start: Java, and the packages of the extra `spark`."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tidelog.pipeline.errors import PipelineError

LEAST_JAVA = 17
PACKAGES = ("pyspark", "pyarrow", "pandas", "grpc", "grpc_status", "google.rpc", "yaml")
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_ANSWER_S = 30
_HOW = (
    "install it (Debian and Ubuntu: `apt install openjdk-17-jre-headless`, macOS: `brew install openjdk@17`) "
    "or set JAVA_HOME to one that is there"
)


def check_needs(environment: Mapping[str, str] = os.environ) -> None:
    """PipelineError, in one sentence, if Spark could not start here."""
    if lacking := [name for name in PACKAGES if not _is_installed(name)]:
        raise PipelineError(f"pipelines run on Spark, and {lacking[0]} is missing: pip install 'tidelog[spark]'")
    check_java(environment)


def check_java(environment: Mapping[str, str] = os.environ) -> None:
    found = java_command(environment)
    if found is None:
        raise PipelineError(f"Spark needs Java {LEAST_JAVA} or later and there is none here: {_HOW}.")
    asked = subprocess.run([found, "-version"], capture_output=True, text=True, check=False, timeout=_ANSWER_S)
    version = java_version(asked.stderr)
    if asked.returncode or version is None:
        raise PipelineError(f"Spark needs Java {LEAST_JAVA} or later and {found} does not run: {_HOW}.")
    if version < LEAST_JAVA:
        raise PipelineError(f"Spark needs Java {LEAST_JAVA} or later and {found} is Java {version}: {_HOW}.")


def java_command(environment: Mapping[str, str]) -> str | None:
    """The one that Spark would take: JAVA_HOME's, else the first on the path."""
    if home := environment.get("JAVA_HOME"):
        command = Path(home) / "bin" / "java"
        return str(command) if os.access(command, os.X_OK) else None
    return shutil.which("java", path=environment.get("PATH", ""))


def java_version(text: str) -> int | None:
    """From what `java -version` prints; Java 8 calls itself 1.8."""
    found = _VERSION.search(text)
    return int(found.group(1)) if found else None


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of a name with a dot, whose first part is not there
        return False
