"""The configuration that the controller works by, as it leaves it in config.json for the command line to read."""

from __future__ import annotations

from pathlib import Path

import msgspec

from agent.schema.errors import GangwatchError
from gangwatch.configuration.config_file import Config, load, load_defaults, take_over
from gangwatch.state_folder import StateFolder, write_atomically


class InForce(msgspec.Struct, frozen=True):
    """file: that it was read from, '' for none. overrides: of the command line."""

    file: str
    overrides: dict[str, int | bool | str]
    config: Config

    def read_again(self) -> Config:
        """What the file and the command line say now. Raises ConfigError where the file is wrong."""
        # No file means none: one that appears at the usual place later is not what this controller was started with.
        return load(Path(self.file), self.overrides) if self.file else load_defaults(self.overrides)

    def reloaded(self) -> InForce:
        """The same, read anew: what a running controller can take over is new, the rest stays. Raises ConfigError."""
        return InForce(self.file, self.overrides, take_over(self.config, self.read_again()))


def read_in_force(state: StateFolder) -> InForce | None:
    """What the newest controller wrote; None where none ever ran. Raises GangwatchError where it can't be read."""
    try:
        return msgspec.json.decode(state.config_file.read_bytes(), type=InForce)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise GangwatchError(f"{state.config_file}: {error}") from None


def write_in_force(state: StateFolder, in_force: InForce) -> None:
    """Replace config.json."""
    write_atomically(state.config_file, msgspec.json.encode(in_force))
