"""The error tree.

::

    GangwatchError                 everything of ours; its text names what is wrong and where
    ├── ConfigError                a configuration file or a command-line value
    ├── FrameError                 bytes that are no frame, layout or record of ours
    │   └── VersionError           a wire version that this build does not speak
    ├── SourceError                the machine did not give what was asked (a file, a driver call)
    │   └── UnsupportedError       ... and never will on this machine: do not ask again
    ├── ReporterError              what a training process sent over the step socket or wrote in its ring
    ├── SubmissionError            a job that cannot be accepted as it stands
    ├── StoreError                 the journal could not be written or read
    │   └── NewerStoreError        a newer release wrote it, and only that one can read it
    ├── TraceError                 a job trace or topology file that is not what it was said to be
    ├── DashboardError             a dashboard or rule that names what nobody publishes, or can't be built
    ├── StateFolderBusyError       another controller or supervisor holds the state folder
    └── BackendError               the execution backend could not do or tell something

What the outside does wrong becomes one of these or a failure metric. Bugs are not wrapped: they propagate.
"""

from __future__ import annotations


class GangwatchError(Exception):
    """Root of the tree. The message is written for the operator who reads it."""


class ConfigError(GangwatchError):
    """A configuration value is unknown, missing or wrong; names file, key and reason."""


class FrameError(GangwatchError):
    """A message is no frame, layout or record of ours; names the field."""


class VersionError(FrameError):
    """A message is of a wire version that is not this build's or its neighbour."""


class SourceError(GangwatchError):
    """The machine did not give what was asked; names the file or call."""


class UnsupportedError(SourceError):
    """This machine never gives what was asked (no such file, no such hardware): asking again is pointless."""


class ReporterError(GangwatchError):
    """A training process registered, sent or wrote something that the agent refuses.

    reason: one of REFUSAL_REASONS, the label under which the refusal is counted.
    """

    def __init__(self, message: str, reason: str = "malformed") -> None:
        super().__init__(message)
        self.reason = reason


REFUSAL_REASONS = (
    "malformed",  # no message of ours: its length, its JSON, its fields, its version
    "ring",  # the descriptor is no sealed ring of a permitted size
    "descriptors",  # more descriptors than one, or too many open
    "timeout",  # connected, and sent no whole message in time
    "identity",  # claims to be whom the machine says that it is not
    "name",  # a name too long or with characters that no label may have
    "quota",  # the tenant has as many reporters or connections as it may have
    "rate",  # the tenant registers too often
    "full",  # the node has no slot left for this kind of reporter
)
"""Why registrations are refused: all values of the label `reason`."""


class SubmissionError(GangwatchError):
    """A job cannot be accepted; says what would be."""


class StoreError(GangwatchError):
    """The journal could not be written or read; what was to be recorded has not happened."""


class NewerStoreError(StoreError):
    """The journal contains what only a newer release can read; names that release. Nothing was changed."""


class TraceError(GangwatchError):
    """A file of jobs, nodes or faults for a simulation can't be read; names file, line and column."""


class DashboardError(GangwatchError):
    """A dashboard or rule cannot be built; names it, and what in it is wrong."""


class StateFolderBusyError(GangwatchError):
    """Another process holds this state folder; names it."""


class BackendError(GangwatchError):
    """The backend could not carry out or observe something; names the action or job."""
