"""The controller's active configuration. The controller writes it to config.json for other commands."""

from __future__ import annotations

from pathlib import Path

import msgspec

from agent.schema.errors import GangwatchError
from gangwatch.configuration.config_file import Config, load, load_defaults, take_over
from gangwatch.state_folder import StateFolder, write_atomically


class InForce(msgspec.Struct, frozen=True):
    """The active configuration, with the file and command-line values from which it can be reloaded."""

    file: str
    """Path of the configuration file; '' for none."""
    overrides: dict[str, int | bool | str]
    """Values that were set on the command line, by configuration key."""
    config: Config

    def read_again(self) -> Config:
        """Read the file again and return its configuration, overridden by the command line. Raises ConfigError.

        The result includes changes that need a restart.
        """
        # Without a file, do not read one that appears later at the default path.
        return load(Path(self.file), self.overrides) if self.file else load_defaults(self.overrides)

    def reloaded(self) -> InForce:
        """Read the file again and return this configuration with the new values of the reloadable settings.

        Settings that need a restart keep their values. Raises ConfigError.
        """
        return InForce(self.file, self.overrides, take_over(self.config, self.read_again()))


def read_in_force(state: StateFolder) -> InForce | None:
    """Return the configuration of the state folder's latest controller; None if there was none. Raises
    GangwatchError."""
    try:
        return msgspec.json.decode(state.config_file.read_bytes(), type=InForce)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GangwatchError(f"{state.config_file}: {error}") from None


def write_in_force(state: StateFolder, in_force: InForce) -> None:
    """Write the active configuration to config.json, in place of the old file."""
    write_atomically(state.config_file, msgspec.json.encode(in_force))
