"""Every exception that Aquiline raises on purpose.

    AquilineError
    ├── UserError                    something the caller can mend: exit status 2, HTTP 4xx
    │   ├── InvalidParameterError    a setting or sampling parameter outside what is allowed
    │   ├── PromptError              a prompt that cannot be run (empty, too long, malformed)
    │   ├── ModelNotFoundError       no model under that name or path
    │   ├── DownloadError            a model could not be fetched or stored
    │   ├── ModelFormatError         a model file is damaged, incomplete or not understood
    │   ├── DraftMismatchError       the draft model does not fit its target
    │   ├── TrainingDataError        training data that cannot be used
    │   ├── TrainingDivergedError    a training run whose loss went astray
    │   ├── EndpointError            a server that is to be measured cannot be reached, or refuses
    │   └── UnsupportedFeatureError  understood, but not offered here
    └── InternalError                a fault of Aquiline itself
        └── ConsistencyError         two states that must agree do not

A message says what was given, what is allowed, and how to mend it, on one line.
"""

from __future__ import annotations


class AquilineError(Exception):
    """Base of every exception raised on purpose by Aquiline."""


class UserError(AquilineError):
    """Something the caller did and can mend."""

    def __str__(self) -> str:
        """The message on one line: names out of files and prompts may hold anything."""
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in super().__str__())


class InvalidParameterError(UserError):
    """A setting or sampling parameter is outside what is allowed."""


class PromptError(UserError):
    """A prompt cannot be run: empty, too long for the context, or malformed."""


class ModelNotFoundError(UserError):
    """No model was found under the given name, path or hub id."""


class DownloadError(UserError):
    """A model could not be fetched, checked or stored."""


class ModelFormatError(UserError):
    """A model file is damaged, incomplete, or says something Aquiline does not understand."""


class DraftMismatchError(UserError):
    """The draft model does not fit its target."""


class TrainingDataError(UserError):
    """Training data cannot be read, or a conversation cannot become a training example."""


class TrainingDivergedError(UserError):
    """A training run was stopped because its loss is no finite number or has risen too far."""


class EndpointError(UserError):
    """A server that is to be measured cannot be reached, or refuses what it is asked."""


class UnsupportedFeatureError(UserError):
    """A request that is understood but not offered here."""


class InternalError(AquilineError):
    """A fault of Aquiline itself; please report it."""


class ConsistencyError(InternalError):
    """Two states that must describe the same committed history do not."""
