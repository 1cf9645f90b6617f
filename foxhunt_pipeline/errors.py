"""One taxonomy of errors.

Every error a user can meet is a :class:`FoxhuntError`: it says what happened, has a
``category`` that automation can act on and a ``remedy`` that tells a person what to do.
``transient`` errors may be retried; all others give the same answer again.
"""

from __future__ import annotations

from typing import ClassVar


class FoxhuntError(Exception):
    """Base class. ``str(error)`` is the message followed by the remedy."""

    category: ClassVar[str] = "internal"
    transient: ClassVar[bool] = False

    def __init__(self, message: str, *, remedy: str = "") -> None:
        self.message = message
        self.remedy = remedy
        super().__init__(f"{message} {remedy}".strip())


class ConfigError(FoxhuntError):
    """A key or value of ``foxhunt.toml`` or a ``FOXHUNT_*`` variable is wrong."""

    category = "configuration"


class DataError(FoxhuntError):
    """Market data cannot be trusted: truncated, corrupt, of another schema or not DBN."""

    category = "data"


class ValidationError(DataError):
    """Market data is readable but fails a critical expectation."""

    category = "validation"


class ViewUnavailableError(FoxhuntError):
    """A model needs a view of the market that the data does not hold. The model is skipped."""

    category = "skipped"


class CodeError(FoxhuntError):
    """The code of a stage cannot be versioned (undeclared dynamic import, missing module)."""

    category = "code"


class CodeChangedError(CodeError):
    """The code on disk is not the code that the step was planned with."""


class DeviceError(FoxhuntError):
    """The required device or precision is not there."""

    category = "device"


class TrainingError(FoxhuntError):
    """Training cannot go on: non-finite loss, no rows, diverged."""

    category = "training"


class CheckpointError(FoxhuntError):
    """A checkpoint is empty, incomplete, non-finite or does not match its manifest."""

    category = "checkpoint"


class ReleaseError(FoxhuntError):
    """A release is refused; the message names the gate, the number and the bound."""

    category = "release"


class StoreError(FoxhuntError):
    """An artifact or release store refused or lost a request."""

    category = "store"


class AccessDeniedError(StoreError):
    """The store answered 401 or 403. Final: credentials or policy are wrong."""


class NotFoundError(StoreError):
    """The store has no object of that name."""


class PreconditionError(StoreError):
    """A conditional write lost: the object exists, or is not the version expected."""


class UnavailableError(StoreError):
    """The store did not answer, or answered 5xx or 409 after every retry."""

    transient = True
