"""Bring Apache Kafka's jars from Maven and compile our Java mains against them.

Done twice it does nothing the second time: each directory carries a stamp that says what it was made from.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from peers import home

_DEPENDENCY = """<dependency>
<groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version><scope>runtime</scope>
</dependency>"""
_POM = """<project>
<modelVersion>4.0.0</modelVersion>
<groupId>tidelog</groupId><artifactId>peers-{version}</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>
{dependencies}
</dependencies>
</project>
"""


def fetch_all() -> None:
    """Make every version's jars and mains present."""
    for version in home.VERSIONS:
        _fetch_jars(version)
        _compile_mains(version)


def _artifacts(version: str) -> list[tuple[str, str, str]]:
    artifacts = [("org.apache.kafka", name, version) for name in ("kafka_2.13", "kafka-tools")]
    if version == home.KAFKA_KRAFT:
        # Kafka 4 leaves the bridge from slf4j to its log4j to its release archive; without it a broker logs nothing.
        artifacts.append(("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3"))
    return artifacts


def _fetch_jars(version: str) -> None:
    directory = home.libs(version).parent
    dependencies = "\n".join(_DEPENDENCY.format(*artifact) for artifact in _artifacts(version))
    pom_text = _POM.format(version=version, dependencies=dependencies)
    if _is_made(directory, pom_text):
        return
    print(f"fetching Apache Kafka {version} ...", flush=True)
    pom = _empty(directory) / "pom.xml"
    pom.write_text(pom_text)
    options = [f"-DoutputDirectory={home.libs(version)}", "-DincludeScope=runtime"]
    _run([home.program("mvn"), "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", *options])
    home.stamp(directory).write_text(pom_text)


def _compile_mains(version: str) -> None:
    sources = sorted(home.JAVA_SOURCES.glob("*.java"))
    digest = hashlib.sha256(home.stamp(home.libs(version).parent).read_bytes())
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    made_from = digest.hexdigest()
    directory = home.compiled(version)
    if _is_made(directory, made_from):
        return
    print(f"compiling {len(sources)} Java mains for Kafka {version} ...", flush=True)
    _empty(directory)
    command = [home.program("javac"), "-nowarn", "-proc:none", "-cp", f"{home.libs(version)}/*", "-d", str(directory)]
    _run([*command, *map(str, sources)])
    home.stamp(directory).write_text(made_from)


def _is_made(directory: Path, made_from: str) -> bool:
    stamp = home.stamp(directory)
    return stamp.exists() and stamp.read_text() == made_from


def _empty(directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise home.PeersMissingError(f"{Path(command[0]).name} failed with status {done.returncode}:\n{done.stdout}")
