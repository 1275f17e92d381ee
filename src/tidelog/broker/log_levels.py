"""The levels of this process's loggers, by the names Kafka's tools use for them."""

from __future__ import annotations

import logging

from tidelog.errors import ErrorCode, TidelogError

ROOT = "root"
_LEVELS = {
    "TRACE": logging.NOTSET + 1,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}


class UnknownLoggerError(TidelogError):
    """No such logger, or no such level."""

    code = ErrorCode.INVALID_CONFIG


def levels() -> dict[str, str]:
    """Every logger there is, with the level that holds for it."""
    known = sorted(name for name, one in logging.root.manager.loggerDict.items() if isinstance(one, logging.Logger))
    return {name: _level_of(_logger(name)) for name in [ROOT, *known]}


def check_level(name: str, level: str | None) -> None:
    """None for the level of its parent."""
    if name != ROOT and name not in logging.root.manager.loggerDict:
        raise UnknownLoggerError(f"Logger {name} does not exist!")
    if level is not None and level not in _LEVELS:
        raise UnknownLoggerError(
            f"Cannot set the log level of {name} to {level} as it is not a supported log level. "
            f"Valid log levels are {', '.join(sorted(_LEVELS))}"
        )


def set_level(name: str, level: str | None) -> None:
    check_level(name, level)
    _logger(name).setLevel(logging.NOTSET if level is None else _LEVELS[level])


def _logger(name: str) -> logging.Logger:
    return logging.root if name == ROOT else logging.getLogger(name)


def _level_of(logger: logging.Logger) -> str:
    level = logger.getEffectiveLevel()
    return next((name for name, bound in reversed(_LEVELS.items()) if level >= bound), "TRACE")
