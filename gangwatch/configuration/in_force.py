"""The controller's active configuration, which it writes to config.json for the command line."""

from __future__ import annotations

from pathlib import Path

import msgspec

from agent.schema.errors import GangwatchError
from gangwatch.configuration.config_file import Config, load, load_defaults, take_over
from gangwatch.state_folder import StateFolder, write_atomically


class InForce(msgspec.Struct, frozen=True):
    """The active configuration, with the sources that a reload reads again."""

    file: str
    """Configuration file; '' for none."""
    overrides: dict[str, int | bool | str]
    """Keys set on the command line."""
    config: Config

    def read_again(self) -> Config:
        """Return the configuration of the file and the command line now. Raises ConfigError if the file is invalid."""
        # Without a file, do not read one that appears later at the default path.
        return load(Path(self.file), self.overrides) if self.file else load_defaults(self.overrides)

    def reloaded(self) -> InForce:
        """Return this configuration with the reloadable settings read again. Raises ConfigError."""
        return InForce(self.file, self.overrides, take_over(self.config, self.read_again()))


def read_in_force(state: StateFolder) -> InForce | None:
    """Return the latest controller's configuration; None if none ever ran. Raises GangwatchError if unreadable."""
    try:
        return msgspec.json.decode(state.config_file.read_bytes(), type=InForce)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GangwatchError(f"{state.config_file}: {error}") from None


def write_in_force(state: StateFolder, in_force: InForce) -> None:
    """Write the active configuration to config.json, in place of the old file."""
    write_atomically(state.config_file, msgspec.json.encode(in_force))
