"""Where templates of jobs come from: a file, the folders of GANGWATCH_TEMPLATES, and those shipped with gangwatch."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

from gangwatch.job_templates.template import Template, TemplateError, parse

SHIPPED = Path(__file__).with_name("shipped")
VARIABLE = "GANGWATCH_TEMPLATES"
"""Environment variable with folders of templates, separated by colons. They precede the shipped ones."""

MOST_BYTES = 1 << 20
"""Largest size of a template."""


def folders(environment: Mapping[str, str]) -> list[Path]:
    """Return the folders in which a template is searched by name, the first first."""
    named = [Path(one).expanduser() for one in environment.get(VARIABLE, "").split(":") if one]
    return [*named, SHIPPED]


def names(environment: Mapping[str, str]) -> dict[str, Path]:
    """Return the paths of all templates that have a name. Raises TemplateError if a folder cannot be read."""
    found: dict[str, Path] = {}
    for folder in folders(environment):
        try:
            paths = sorted(folder.iterdir())
        except OSError as error:
            raise TemplateError(f"{folder}, named by {VARIABLE}: {error.strerror}") from None
        for path in paths:
            if path.suffix == ".toml":
                found.setdefault(path.stem, path)
    return found


def find(name: str, environment: Mapping[str, str]) -> Path:
    """Return the path of a template: a path with a slash or the suffix .toml, else a name. Raises TemplateError."""
    if "/" in name or name.endswith(".toml"):
        return Path(name).expanduser()
    known = names(environment)
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(known))}"
    raise TemplateError(f"there is no template {name!r}: {hint}")


def load(path: Path) -> Template:
    """Return the template of a file. Raises TemplateError, which names the file."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise TemplateError(f"larger than {MOST_BYTES} bytes")
        return parse(content.decode())
    except OSError as error:
        raise TemplateError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise TemplateError(f"{path}: not UTF-8: {error}") from None
    except TemplateError as error:
        raise TemplateError(f"{path}: {error}") from None
