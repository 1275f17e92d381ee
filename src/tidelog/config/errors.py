"""What a bad configuration is answered with."""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.errors import ErrorCode, TidelogError


class ConfigError(TidelogError):
    """Settings that cannot be used. `problems` has one sentence each, so that a file is mended in one go."""

    code = ErrorCode.INVALID_CONFIG

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))
