"""Plans of replicas in files, in the format of kafka-reassign-partitions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from tidelog.cli.replica_plan import Plan
from tidelog.types import TopicPartition

FORMAT = '{"version": 1, "partitions": [{"topic": "orders", "partition": 0, "replicas": [1, 2, 3]}]}'


def as_file(plan: Plan) -> str:
    partitions = [
        {"topic": partition.topic, "partition": partition.partition, "replicas": list(replicas)}
        for partition, replicas in sorted(plan.items())
    ]
    return json.dumps({"version": 1, "partitions": partitions})


def read_plan(file: str) -> Plan:
    """What a file in the format of kafka-reassign-partitions says; ClickException with what is wrong with it."""
    try:
        content = json.loads(Path(file).read_text(encoding="utf-8"))
    except UnicodeDecodeError as failure:
        raise click.ClickException(f"{file} is not UTF-8 (byte {failure.start})") from failure
    except (ValueError, RecursionError) as failure:
        raise click.ClickException(f"{file} is not JSON: {failure}") from failure
    except OSError as failure:
        raise click.ClickException(f"{file} cannot be read: {failure.strerror}") from failure
    if not isinstance(content, dict) or not isinstance(content.get("partitions"), list):
        raise click.ClickException(f"{file} is not a plan, which is {FORMAT}")
    if content.get("version", 1) != 1:
        raise click.ClickException(f"{file} has version {content['version']}, and only 1 is known")
    plan: Plan = {}
    for place, entry in enumerate(content["partitions"]):
        problem = _problem(entry)
        if problem is None:
            partition = TopicPartition(entry["topic"], entry["partition"])
            problem = f"{partition} stands there before" if partition in plan else None
        if problem is not None:
            raise click.ClickException(f"{file}: partitions[{place}]: {problem}")
        plan[partition] = tuple(entry["replicas"])
    if not plan:
        raise click.ClickException(f"{file} names no partition")
    return plan


def _problem(entry: Any) -> str | None:
    if not isinstance(entry, dict):
        return "not an object"
    if not isinstance(entry.get("topic"), str):
        return "topic is not a string"
    if not _is_number(entry.get("partition")):
        return "partition is not a number"
    replicas = entry.get("replicas")
    if not isinstance(replicas, list) or not replicas or not all(map(_is_number, replicas)):
        return "replicas are not a list of broker ids"
    if len(set(replicas)) < len(replicas):
        return "replicas name a broker more than once"
    places = entry.get("log_dirs") or []
    if not isinstance(places, list) or any(place != "any" for place in places):
        return 'log_dirs other than "any" cannot be chosen'
    return None


def _is_number(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31
