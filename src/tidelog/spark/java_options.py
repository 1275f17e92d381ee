"""Options for the JVMs of Spark: ours, beside those that an administrator or the user has set as defaults.

A setting has one value in Spark, so a session that sets spark.driver.defaultJavaOptions replaces what
spark-defaults.conf says. Therefore what Spark would take is found out first, where Spark itself looks.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path

from tidelog.config.errors import ConfigError
from tidelog.config.properties import parse_properties

DRIVER = "spark.driver.defaultJavaOptions"
EXECUTOR = "spark.executor.defaultJavaOptions"

SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set where spark-submit started this process, with a JVM that has all settings."""
_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_SHELL = "pyspark-shell"
"""What pyspark submits if the variable says nothing."""


def beside_users(ours: Mapping[str, str], environment: MutableMapping[str, str] = os.environ) -> dict[str, str]:
    """By setting, our options and then the user's, so that these win where both say something.

    Spark gives the arguments in PYSPARK_SUBMIT_ARGS the last word on what its JVM starts with. If they have one of the
    settings, it is replaced there.
    """
    said = _said_in_jvm(ours) if SUBMITTED in environment else _said_in_files(ours, environment)
    merged = {name: joined(options, said.get(name, "")) for name, options in ours.items()}
    if SUBMITTED not in environment:
        _replace_arguments(merged, environment)
    return merged


def joined(ours: str, users: str) -> str:
    """Our options that the user does not have as well, then all of the user's."""
    taken = users.split()
    return " ".join([*(option for option in ours.split() if option not in taken), users]).strip()


def _said_in_jvm(names: Mapping[str, str]) -> dict[str, str]:
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    conf = SparkConf()
    return {name: conf.get(name) or "" for name in names}


def _said_in_files(names: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Arguments go before the file that they name, and that before spark-defaults.conf."""
    arguments = shlex.split(environment.get(_ARGUMENTS, ""))
    said: dict[str, str] = {}
    named = _values(arguments, "--properties-file")
    if not named or "--load-spark-defaults" in arguments:
        said.update(_file(_conf_directory(environment) / "spark-defaults.conf"))
    if named:
        said.update(_file(Path(named[-1])))
    for setting in _values(arguments, "--conf", "-c"):
        name, _, value = setting.partition("=")
        said[name] = value
    return {name: said[name] for name in names if name in said}


def _conf_directory(environment: Mapping[str, str]) -> Path:
    if directory := environment.get("SPARK_CONF_DIR"):
        return Path(directory)
    import pyspark

    return Path(environment.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "conf"


def _file(path: Path) -> dict[str, str]:
    """Spark trims the values. It says itself what is wrong with a file that it cannot read."""
    try:
        found = parse_properties(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ConfigError):
        return {}
    return {name: value.strip() for name, value in found.items()}


def _values(arguments: list[str], *options: str) -> list[str]:
    return [value for option, value in _pairs(arguments) if option in options]


def _pairs(arguments: list[str]) -> Iterator[tuple[str, str]]:
    """Of `--option value` and `--option=value`."""
    for number, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        if equals and option.startswith("--"):
            yield option, value
        elif number + 1 < len(arguments):
            yield argument, arguments[number + 1]


def _replace_arguments(merged: Mapping[str, str], environment: MutableMapping[str, str]) -> None:
    """Add the settings that the arguments have once more, behind them: the last one counts."""
    arguments = shlex.split(environment.get(_ARGUMENTS, _SHELL))
    set_there = {value.partition("=")[0] for value in _values(arguments, "--conf", "-c")}
    added = [part for name, value in merged.items() if name in set_there for part in ("--conf", f"{name}={value}")]
    if not added or all(part in arguments for part in added):
        return
    at = arguments.index(_SHELL) if _SHELL in arguments else len(arguments)
    environment[_ARGUMENTS] = shlex.join([*arguments[:at], *added, *arguments[at:]])
