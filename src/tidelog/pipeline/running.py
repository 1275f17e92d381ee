"""One run: the project's definitions go to Spark, its events and its streams' progress come back."""

from __future__ import annotations

import contextlib
import io
import json
import os
import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tidelog.host.clock import SystemClock
from tidelog.pipeline.errors import PipelineError
from tidelog.pipeline.journal import Journal
from tidelog.pipeline.project import Project
from tidelog.pipeline.run import ENDED, MESSAGE, PROGRESS, STARTED, Run

Heard = Callable[[Mapping[str, Any]], None]
"""Takes an event of a run. Progress comes on a thread of Spark's client, so calls may overlap."""

_LAST_PROGRESS_S = 5


def run_pipeline(
    project: Project,
    session: Any,
    master: str,
    *,
    dry: bool = False,
    full_refresh: Sequence[str] = (),
    full_refresh_all: bool = False,
    on_change: Callable[[Run], None] = lambda run: None,
) -> Run:
    """Returns when everything that was in the topics at its start is processed. PipelineError if that fails.

    A dry run leaves the journal alone: `status` is about runs that did something.
    """
    clock = SystemClock()
    run = Run()
    journal = None if dry else Journal(project.journal)

    def hear(event: Mapping[str, Any]) -> None:
        run.take(event)
        if journal is not None:
            journal.write(event)
        on_change(run)

    failure: str | None = "it was interrupted"
    hear({"event": STARTED, "pipeline": project.name, "master": master, "pid": os.getpid(), "at_ms": clock.wall_ms()})
    try:
        with _listening(session, run, hear):
            _run(project, session, hear, dry, full_refresh, full_refresh_all)
        failure = None
    except PipelineError as told:
        failure = str(told)
        raise
    finally:
        hear({"event": ENDED, "at_ms": clock.wall_ms(), "failure": failure})
        if journal is not None:
            journal.close()
    return run


def _run(
    project: Project, session: Any, hear: Heard, dry: bool, full_refresh: Sequence[str], full_refresh_all: bool
) -> None:
    from pyspark.errors import PySparkException
    from pyspark.pipelines.spark_connect_pipeline import start_run

    failed: list[str] = []
    try:
        graph = _register(project, session)
        events = start_run(
            session,
            graph,
            full_refresh=full_refresh,
            full_refresh_all=full_refresh_all,
            refresh=[],
            dry=dry,
            storage=project.storage,
        )
        for event in events:
            if "pipeline_event_result" in event:
                text = event["pipeline_event_result"].event.message
                hear({"event": MESSAGE, "text": text})
                if "FAILED" in text or "Failed" in text:
                    failed.append(first_lines(text))
    except PySparkException as failure:
        # At the end Spark says only that something failed; what, it said before.
        said = "\n".join(failed or [first_lines(str(failure))])
        raise PipelineError(f"pipeline {project.name}: {said}") from failure


def _register(project: Project, session: Any) -> str:
    """The id of the graph of tables, views, sinks and flows that Spark has made of the project's files."""
    from pyspark.pipelines.cli import load_pipeline_spec, register_definitions
    from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
    from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph

    spec = load_pipeline_spec(project.spec)
    # What is fixed when Spark starts was given to the driver; Spark refuses it here.
    changeable = {
        name: value
        for name, value in project.configuration.items()
        if not name.startswith("spark.") or session.conf.isModifiable(name)
    }
    for name, value in changeable.items():
        session.conf.set(name, value)
    graph: str = create_dataflow_graph(
        session, default_catalog=spec.catalog, default_database=spec.database, sql_conf=changeable
    )
    registry = SparkConnectGraphElementRegistry(session, graph)
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        # What it prints are the names of the files that it reads.
        register_definitions(project.spec, registry, spec, session, graph)
    return graph


@contextlib.contextmanager
def _listening(session: Any, run: Run, hear: Heard) -> Iterator[None]:
    """While it lasts, the progress of all streams of the session is heard.

    It comes by another way than the messages of the run, so at the end it waits for what is under way: each flow that
    ran says at last, behind its progress, that it is over.
    """
    listener, is_over = _listener(hear)
    session.streams.addListener(listener)
    try:
        yield
        # Spark Connect does not tell which streams others have started; a flow that is no stream is waited for in vain.
        with contextlib.suppress(queue.Empty):
            for _ in range(run.streams_started):
                is_over.get(timeout=_LAST_PROGRESS_S)
    finally:
        session.streams.removeListener(listener)


def _listener(hear: Heard) -> tuple[Any, queue.SimpleQueue[str]]:
    """With the queue that gets an item for each stream that is over."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    is_over: queue.SimpleQueue[str] = queue.SimpleQueue()

    class Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802
            hear({"event": PROGRESS, "progress": json.loads(event.progress.json)})

        def onQueryIdle(self, event: Any) -> None:  # noqa: N802
            pass

        def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
            is_over.put(str(event.id))

    return Listener(), is_over


def first_lines(text: str) -> str:
    """What went wrong, without the plans and stack traces that Spark adds."""
    kept: list[str] = []
    for line in text.splitlines():
        if line.startswith(("JVM stacktrace", "\tat ", "'", "+-", "== ")):
            break
        if line.strip():
            kept.append(line.strip())
    return "\n".join(kept[:8])
