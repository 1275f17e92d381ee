"""A pipeline's project: its files, how it is found, and what the commands refuse before they start Spark."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from tidelog.cli.main import main
from tidelog.pipeline import needs
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.needs import check_java, java_command, java_version
from tidelog.pipeline.project import BOOTSTRAP, create, find_spec, read_project
from tidelog.pipeline.starting import spark_settings
from tidelog.pipeline.templates import TOPICS

yaml = pytest.importorskip("yaml")


def test_a_new_project_is_read_back(tmp_path: Path) -> None:
    spec = create(tmp_path, "shop", "127.0.0.1:9999", max_offsets=7)[0]
    project = read_project(spec)
    assert (project.name, project.directory) == ("shop", tmp_path / "shop")
    assert project.configuration[BOOTSTRAP] == "127.0.0.1:9999"
    assert project.configuration["orders.max.offsets.per.trigger"] == "7"
    assert project.checkpoints == tmp_path / "shop" / "pipeline-storage" / "_checkpoints"


def test_the_transformations_name_the_topics_and_are_python(tmp_path: Path) -> None:
    files = {file.name: file.read_text() for file in create(tmp_path, "shop", "127.0.0.1:9999")}
    compile(files["orders.py"], "orders.py", "exec")
    assert all(f'"{topic}"' in files["orders.py"] for topic in TOPICS)
    assert 'raw("shop-minutes")' in files["orders.py"]
    assert "CREATE STREAMING TABLE minutes" in files["minutes.sql"]


def test_a_project_is_found_from_below_it(tmp_path: Path) -> None:
    spec = create(tmp_path, "shop", "127.0.0.1:9999")[0]
    assert find_spec(tmp_path / "shop" / "transformations") == spec
    with pytest.raises(PipelineError, match="tidelog pipeline init"):
        find_spec(tmp_path)
    (tmp_path / "shop" / "spark-pipeline.yaml").write_text("")
    with pytest.raises(PipelineError, match="both"):
        find_spec(tmp_path / "shop")


@pytest.mark.parametrize("name", ["", "../x", "a b", "-x", "a/b"])
def test_a_name_must_be_one(tmp_path: Path, name: str) -> None:
    with pytest.raises(PipelineError, match="no name"):
        create(tmp_path, name, "127.0.0.1:9999")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    create(tmp_path, "shop", "127.0.0.1:9999")
    with pytest.raises(PipelineError, match="there already"):
        create(tmp_path, "shop", "127.0.0.1:9999")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("- a\n- b\n", "no fields"),
        ("storage: file:///x\n", "lacks the field 'name'"),
        ("name: x\n", "lacks the field 'storage'"),
        ("name: x\nstorage: y\nconfiguration: {a: 1}\n", "between quotes"),
        ("name: [x\n", "cannot be read"),
    ],
)
def test_a_spec_that_is_none_is_told(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "spark-pipeline.yml").write_text(text)
    with pytest.raises(PipelineError, match=complaint):
        read_project(tmp_path / "spark-pipeline.yml")


def test_checkpoints_elsewhere_are_not_ours_to_read(tmp_path: Path) -> None:
    project = read_project(create(tmp_path, "shop", "127.0.0.1:9999")[0])
    assert project._replace(storage="s3://bucket/x").checkpoints is None
    assert project._replace(storage="/data/x").checkpoints == Path("/data/x/_checkpoints")


def test_what_the_spec_configures_wins_but_not_over_what_we_need(tmp_path: Path) -> None:
    project = read_project(create(tmp_path, "shop", "127.0.0.1:9999")[0])
    project.configuration.update({"spark.driver.memory": "9g", "spark.connect.grpc.binding.port": "15002"})
    settings = spark_settings(project, "secret")
    assert settings["spark.driver.memory"] == "9g"
    assert settings["spark.connect.grpc.binding.port"] == "0"
    assert all(name.startswith("spark.") for name in settings)


def test_the_users_java_options_stay_beside_ours(tmp_path: Path) -> None:
    project = read_project(create(tmp_path, "shop", "127.0.0.1:9999")[0])
    project.configuration["spark.driver.extraJavaOptions"] = "-Dusers.own=1"
    settings = spark_settings(project, "secret")
    assert settings["spark.driver.extraJavaOptions"] == "-Dusers.own=1"
    assert "-Dlog4j2.configurationFile=" in settings["spark.driver.defaultJavaOptions"]
    assert "-Darrow.enable_unsafe_memory_access=true" in settings["spark.driver.defaultJavaOptions"]


def test_default_java_options_of_the_spec_and_of_spark_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark")
    names = [f"spark.{where}.defaultJavaOptions" for where in ("driver", "executor")]
    (tmp_path / "spark-defaults.conf").write_text("".join(f"{name} -Dadmins.own=1\n" for name in names))
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
    project = read_project(create(tmp_path, "shop", "127.0.0.1:9999")[0])
    settings = spark_settings(project, "secret")
    assert all(settings[name].endswith(" -Dadmins.own=1") for name in names)
    project.configuration.update(dict.fromkeys(names, "-Dusers.own=1"))
    settings = spark_settings(project, "secret")
    assert all(settings[name].endswith(" -Dusers.own=1") for name in names), "the spec goes before Spark's defaults"
    assert "-Dlog4j2.configurationFile=" in settings[names[0]]
    assert all("-Darrow.enable_unsafe_memory_access=true" in settings[name] for name in names)


# Java and pyspark


def fake_java(directory: Path, script: str) -> str:
    file = directory / "bin" / "java"
    file.parent.mkdir(parents=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return str(directory)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "21" 2023-09-19', 21),
        ("no such thing", None),
    ],
)
def test_versions_of_java(text: str, version: int | None) -> None:
    assert java_version(text) == version


def test_java_home_goes_before_the_path(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "exit 0")
    other = fake_java(tmp_path / "other", "exit 0")
    assert java_command({"JAVA_HOME": home, "PATH": f"{other}/bin"}) == f"{home}/bin/java"
    assert java_command({"PATH": f"{other}/bin"}) == f"{other}/bin/java"
    assert java_command({"PATH": str(tmp_path)}) is None


def test_without_java_one_sentence_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="there is none here: install it") as told:
        check_java({"PATH": str(tmp_path)})
    assert "\n" not in str(told.value)
    old = fake_java(tmp_path / "old", """echo 'java version "1.8.0_402"' >&2""")
    with pytest.raises(PipelineError, match="is Java 8"):
        check_java({"JAVA_HOME": old})
    broken = fake_java(tmp_path / "broken", "exit 1")
    with pytest.raises(PipelineError, match="does not run"):
        check_java({"JAVA_HOME": broken})
    check_java({"JAVA_HOME": fake_java(tmp_path / "new", """echo 'openjdk version "17.0.1"' >&2""")})


def test_run_without_pyspark_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(create(tmp_path, "shop", "127.0.0.1:9999")[0].parent)
    monkeypatch.setattr(needs, "PACKAGES", ("no_such_package",))
    result = CliRunner().invoke(main, ["pipeline", "run"])
    assert result.exit_code == 1
    assert "pip install 'tidelog[spark]'" in result.stderr


def test_run_without_java_fails_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(create(tmp_path, "shop", "127.0.0.1:9999")[0].parent)
    monkeypatch.setattr(needs, "PACKAGES", ())
    monkeypatch.setattr(needs, "check_java", lambda environment: check_java({"PATH": os.devnull}))
    result = CliRunner().invoke(main, ["pipeline", "run"])
    assert result.exit_code == 1
    assert "Spark needs Java 17 or later and there is none here" in result.stderr
    assert not (tmp_path / "shop" / ".tidelog").exists()


def test_init_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["pipeline", "init", "shop", "--bootstrap", "127.0.0.1:7"])
    assert result.exit_code == 0, result.output
    assert "tidelog topics create orders --if-not-exists --bootstrap 127.0.0.1:7" in result.output
    assert read_project(tmp_path / "shop" / "spark-pipeline.yml").configuration[BOOTSTRAP] == "127.0.0.1:7"
    again = CliRunner().invoke(main, ["pipeline", "init", "shop"])
    assert (again.exit_code, "there already" in again.stderr) == (1, True)


def test_what_cannot_be_meant_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    both = CliRunner().invoke(main, ["pipeline", "run", "--full-refresh", "a", "--full-refresh-all"])
    assert (both.exit_code, "not both" in both.stderr) == (2, True)
    wrong = CliRunner().invoke(main, ["pipeline", "init", "x", "--bootstrap", "nowhere:port"])
    assert wrong.exit_code == 2
    none = CliRunner().invoke(main, ["pipeline", "status"])
    assert (none.exit_code, "there is no spark-pipeline.yml" in none.stderr) == (1, True)
