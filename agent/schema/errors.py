"""Hierarchy of the exceptions that gangwatch raises.

::

    GangwatchError                 base class; the message names the problem and its location
    ├── ConfigError                invalid configuration file or command-line value
    │   └── ExtraMissingError      command or setting that needs packages which are not installed
    ├── FrameError                 bytes that are not a frame, layout or record
    │   └── VersionError           wire version that this build does not support
    ├── SourceError                failed read of a file or driver call
    │   └── UnsupportedError       read that will never succeed on this machine: do not retry
    ├── ReporterError              invalid message on the step socket, or invalid ring
    ├── SubmissionError            job that cannot be accepted
    ├── StoreError                 failed write or read of the journal
    │   └── NewerStoreError        journal that only a newer release can read
    ├── TraceError                 invalid job trace or topology file
    ├── DashboardError             dashboard or rule that cannot be built, or names an unknown metric
    ├── StateFolderBusyError       state folder in use by another controller or supervisor
    └── BackendError               failed action or query of the execution backend

Errors of the environment are raised as one of these classes or counted in a failure metric. Exceptions of bugs are not
converted: they propagate.
"""

from __future__ import annotations


class GangwatchError(Exception):
    """Base class of all errors that gangwatch raises. The message is written for operators."""


class ConfigError(GangwatchError):
    """Unknown, missing or invalid configuration value. The message names file, key and reason."""


class ExtraMissingError(ConfigError):
    """Command or setting that needs an extra of gangwatch which is not installed. The message has the install command.

    extras: names of the missing extras.
    """

    def __init__(self, what: str, *extras: str) -> None:
        install = f"pip install 'gangwatch[{','.join(extras)}]'"
        super().__init__(f"{what} needs packages that are not installed. To install them: {install}")
        self.extras = extras


class FrameError(GangwatchError):
    """Message that is not a valid frame, layout or record. The error names the field."""


class VersionError(FrameError):
    """Message whose wire version differs from the version of this build by more than one."""


class SourceError(GangwatchError):
    """Failed read of a file, or failed driver call. The message names the file or call."""


class UnsupportedError(SourceError):
    """Failed read that can never succeed on this machine (no such file, no such hardware). Callers do not retry it."""


class ReporterError(GangwatchError):
    """Registration, message or ring of a training process that the agent refuses.

    reason: one of REFUSAL_REASONS, the label value of the refusal counter.
    """

    def __init__(self, message: str, reason: str = "malformed") -> None:
        super().__init__(message)
        self.reason = reason


REFUSAL_REASONS = (
    "malformed",  # invalid message: length, JSON, fields or version
    "ring",  # the descriptor is not a sealed ring of a permitted size
    "descriptors",  # more than one descriptor, or too many open
    "timeout",  # connected without sending a complete message in time
    "identity",  # claims an identity that contradicts the attested one
    "name",  # name too long or with characters that are not allowed in labels
    "quota",  # the tenant is at its limit of reporters or connections
    "rate",  # the tenant registers too often
    "full",  # the node has no free slot for this kind of reporter
)
"""Reasons for which a registration is refused: all values of the label `reason` of the refusal counter."""


class SubmissionError(GangwatchError):
    """Job that cannot be accepted. The message says what would be accepted."""


class StoreError(GangwatchError):
    """Failed write or read of the journal. An event that could not be written has no effect."""


class NewerStoreError(StoreError):
    """Journal that only a newer release can read. The message names the release if known. The journal is unchanged."""


class TraceError(GangwatchError):
    """Unreadable file of jobs, nodes or faults for a simulation. The message names file, line and column."""


class DashboardError(GangwatchError):
    """Dashboard or rule that cannot be built. The message names the dashboard or rule, and the reason."""


class StateFolderBusyError(GangwatchError):
    """State folder in use by another process. The message names the process."""


class BackendError(GangwatchError):
    """Failed action or query of the backend. The message names the action or job."""
