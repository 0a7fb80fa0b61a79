"""The configuration that the controller works by, as it leaves it in config.json for the command line to read."""

from __future__ import annotations

from pathlib import Path

import msgspec

from agent.schema.errors import GangwatchError
from gangwatch.config import Config, load
from gangwatch.state_folder import StateFolder, write_atomically


class InForce(msgspec.Struct, frozen=True):
    """file: that it was read from, '' for none. overrides: of the command line. generation: rises with each reload."""

    file: str
    overrides: dict[str, int | bool]
    generation: int
    config: Config

    def reloaded(self) -> InForce:
        """The same, read anew. Raises ConfigError where the file is wrong."""
        config = load(Path(self.file) if self.file else None, self.overrides)
        return InForce(self.file, self.overrides, self.generation + 1, config)


def read_in_force(state: StateFolder) -> InForce | None:
    """What the newest controller wrote; None where none ever ran. Raises GangwatchError where it can't be read."""
    try:
        return msgspec.json.decode(state.config_file.read_bytes(), type=InForce)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise GangwatchError(f"{state.config_file}: {error}") from None


def write_in_force(state: StateFolder, in_force: InForce) -> None:
    """Replace config.json."""
    write_atomically(state.config_file, msgspec.json.encode(in_force))
