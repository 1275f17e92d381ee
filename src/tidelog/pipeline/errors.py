"""What a user of pipelines is told."""

from __future__ import annotations

from tidelog.errors import TidelogError


class PipelineError(TidelogError):
    """The project, the machine or the run is not as it must be; the message says what to do."""
