"""`tidelog zookeeper`: a real ZooKeeper server on this machine, for development."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

import click

_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_JVM_OPTIONS = ("-Xmx256m", "-XX:+UseSerialGC")
_CONFIG = """dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
tickTime=500
maxSessionTimeout=40000
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=ruok,srvr,stat
"""


@click.command()
@click.option("--port", default=2181, show_default=True, type=click.IntRange(1, 65535), help="On 127.0.0.1.")
@click.option("--data", default="tidelog-zookeeper", show_default=True, type=click.Path(file_okay=False), metavar="DIR")
@click.option(
    "--jars",
    type=click.Path(exists=True, file_okay=False),
    metavar="DIR",
    help="Where ZooKeeper's jars are; else those in the installed pyspark.",
)
def command(port: int, data: str, jars: str | None) -> None:
    """Run one ZooKeeper server until Ctrl-C. Its data stays in DIR, for the next time."""
    found = Path(jars).resolve() if jars is not None else _jars_of_pyspark()
    if not any(found.glob("zookeeper-*.jar")):
        raise click.ClickException(f"there is no zookeeper-*.jar in {found}; name another directory with --jars")
    java = shutil.which("java")
    if java is None:
        raise click.ClickException("ZooKeeper needs Java, version 8 or later, and there is no `java` on the PATH")
    directory = Path(data).resolve()
    (directory / "data").mkdir(parents=True, exist_ok=True)
    config = directory / "zoo.cfg"
    config.write_text(_CONFIG.format(data=directory / "data", port=port), encoding="utf-8", errors="surrogateescape")
    click.echo(f"ZooKeeper on 127.0.0.1:{port}, data in {directory} (zookeeper.connect=127.0.0.1:{port})", err=True)
    # It takes the place of this process, so signals and the exit status are its own.
    os.execv(java, [java, *_JVM_OPTIONS, "-cp", f"{found}/*", _MAIN, str(config)])


def _jars_of_pyspark() -> Path:
    pyspark = importlib.util.find_spec("pyspark")
    if pyspark is None or pyspark.origin is None:
        raise click.ClickException(
            "ZooKeeper's jars come with pyspark, which is not installed: `pip install tidelog[spark]`, "
            "or name a directory that has them with --jars"
        )
    return Path(pyspark.origin).parent / "jars"
