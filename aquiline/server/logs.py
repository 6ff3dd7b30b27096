"""Log lines on standard error: times, names and numbers, never a prompt, an answer or a key."""

from __future__ import annotations

import datetime
import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from aquiline.server.settings import LogFormat


class JsonLines(logging.Formatter):
    """One JSON object per line; `fields` of a record become keys."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"time": _time(record), "level": record.levelname.lower(), "event": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        # Line breaks of Unicode and characters that the terminal's encoding lacks would spoil the line.
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """Lines for people; what clients have chosen is quoted where it could be taken for more than one value."""

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={_spelled(value)}" for name, value in getattr(record, "fields", {}).items())
        line = f"{_time(record)} {record.levelname.lower()} {record.getMessage()} {fields}".rstrip()
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


@contextmanager
def logged_to_standard_error(log_format: LogFormat) -> Iterator[None]:
    """Send what the server and uvicorn log to standard error; afterwards logs go where they went before."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    loggers = [logging.getLogger(name) for name in ("aquiline.server", "uvicorn")]
    before = [(logger, logger.handlers, logger.level, logger.propagate) for logger in loggers]
    try:
        for logger in loggers:
            logger.handlers, logger.propagate = [handler], False
            logger.setLevel(logging.INFO)
        yield
    finally:
        for logger, handlers, level, propagates in before:
            logger.handlers, logger.propagate = handlers, propagates
            logger.setLevel(level)


def _spelled(value: object) -> str:
    text = str(value)
    return text if re.fullmatch(r"[!-~]*", text) and '"' not in text else json.dumps(text)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
