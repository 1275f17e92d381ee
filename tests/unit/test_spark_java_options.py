"""Options of Spark's JVMs: ours stand beside those that are set where Spark looks for defaults."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tidelog.spark.java_options import DRIVER, EXECUTOR, beside_users

OURS = {DRIVER: "-Da=1 -Db=2", EXECUTOR: "-Da=1"}


@pytest.fixture
def defaults(tmp_path: Path) -> Path:
    file = tmp_path / "conf" / "spark-defaults.conf"
    file.parent.mkdir()
    file.write_text(f"# of the administrator\n{DRIVER}   -Dadmin=1  \nspark.x 1\n{EXECUTOR}=-Dadmin=2 \\\n -Xss4m\n")
    return file


def test_without_any_of_the_users_ours_are_all(tmp_path: Path) -> None:
    assert beside_users(OURS, {"SPARK_HOME": str(tmp_path)}) == OURS


@pytest.mark.parametrize("named_by", ["SPARK_HOME", "SPARK_CONF_DIR"])
def test_defaults_of_the_administrator(defaults: Path, named_by: str) -> None:
    directory = defaults.parent.parent if named_by == "SPARK_HOME" else defaults.parent
    environment = {named_by: str(directory)}
    assert beside_users(OURS, environment) == {DRIVER: "-Da=1 -Db=2 -Dadmin=1", EXECUTOR: "-Da=1 -Dadmin=2 -Xss4m"}
    assert set(environment) == {named_by}


def test_arguments_go_before_files_and_get_ours_too(defaults: Path, tmp_path: Path) -> None:
    """The last setting among the arguments counts, so there the JVM gets both."""
    (tmp_path / "own.conf").write_text(f"{EXECUTOR} -Dfile=1\n")
    arguments = f"--properties-file={tmp_path}/own.conf --conf '{DRIVER}=-Duser=1 -Dx=2' --verbose pyspark-shell"
    environment = {"SPARK_CONF_DIR": str(defaults.parent), "PYSPARK_SUBMIT_ARGS": arguments}
    expected = {DRIVER: "-Da=1 -Db=2 -Duser=1 -Dx=2", EXECUTOR: "-Da=1 -Dfile=1"}
    for _ in range(2):
        assert beside_users(OURS, environment) == expected
        given = shlex.split(environment["PYSPARK_SUBMIT_ARGS"])
        assert given[-3:] == ["--conf", f"{DRIVER}={expected[DRIVER]}", "pyspark-shell"]
        assert len(given) == len(shlex.split(arguments)) + 2
    environment["PYSPARK_SUBMIT_ARGS"] = f"--properties-file {tmp_path}/own.conf --load-spark-defaults pyspark-shell"
    assert beside_users(OURS, environment) == {DRIVER: "-Da=1 -Db=2 -Dadmin=1", EXECUTOR: "-Da=1 -Dfile=1"}


def test_files_that_cannot_be_read_are_sparks_to_complain_of(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_bytes(b"\xff\xfe")
    assert beside_users(OURS, {"SPARK_CONF_DIR": str(tmp_path)}) == OURS
    missing = {"SPARK_CONF_DIR": str(tmp_path / "none"), "PYSPARK_SUBMIT_ARGS": "--properties-file nowhere"}
    assert beside_users(OURS, missing) == OURS
