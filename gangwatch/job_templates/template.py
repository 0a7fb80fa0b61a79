"""A template of jobs: TOML with parameters, and its rendering for given values. Pure.

    description = "One sentence"
    words = "SCRIPT [ARGUMENT ...]"                  # what follows `--` on the command line
    command = ["python", "{words}", { if = "config", words = ["--config", "{config}"] }]

    [job]                                            # fields of a job's specification
    restartable = true
    environment = { OMP_NUM_THREADS = "{threads}" }

    [parameters.threads]
    type = "integer"                                 # or string, number, boolean, file
    minimum = 1
    default = 1
    help = "Threads of a rank"

    [parameters.config]
    type = "file"
    optional = true

``{name}`` in a text is the value of a parameter; ``{{`` and ``}}`` are braces. ``"{words}"``, alone in the command, is
all words that follow `--`. ``{python}`` is the Python interpreter of gangwatch. A text that consists of one parameter
gets its value with its type; a field or variable whose parameter has no value is left out. Booleans in a text are 1
and 0.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from scheduler_feedback.core.job import JobSpec

Value = str | int | float | bool

WORDS, PYTHON = "words", "python"
"""Names that every template has without declaring them."""

NOT_IN_TEMPLATES = {"command", "user", "kind", "working_directory", "pinned_node"}
"""Fields of a specification that the command line or the controller decides."""

FIELDS = frozenset(JobSpec.__struct_fields__) - NOT_IN_TEMPLATES

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str, "file": str, "integer": int, "number": (int, float), "boolean": bool,
}  # fmt: skip


class TemplateError(Exception):
    """Error in a template, or in the values for it. The message names the place and the expected value."""


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value that the user gives with `--set NAME=VALUE`."""

    type: Literal["string", "integer", "number", "boolean", "file"] = "string"
    """Type of the value. A file must exist; a relative path starts at the current folder of the submitter."""
    help: str = ""
    default: Value | None = None
    """Value if the user gives none; None: the user must give one, unless it is optional."""
    optional: bool = False
    """Whether it may have no value."""
    choices: tuple[Value, ...] = ()
    """The only allowed values; empty: all of the type."""
    minimum: float | None = None
    maximum: float | None = None


class Conditional(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Words of a command that are left out if a parameter has no value, or is false."""

    condition: str = msgspec.field(name="if")
    words: tuple[str, ...]


class Template(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A template of jobs; `parse` checks it."""

    description: str
    command: tuple[str | Conditional, ...]
    words: str = "PROGRAM [ARGUMENT ...]"
    """What the user writes after `--`, for help texts."""
    job: dict[str, Any] = {}
    parameters: dict[str, Parameter] = {}


@dataclass(frozen=True)
class Rendered:
    """A job's command, and fields of its specification."""

    command: list[str]
    job: dict[str, Any]


def parse(text: str) -> Template:
    """Return the template in a TOML text. Raises TemplateError."""
    try:
        template = msgspec.convert(tomllib.loads(text), Template)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise TemplateError(str(error)) from None
    for name, parameter in template.parameters.items():
        _check_parameter(name, parameter)
    if unknown := sorted(template.job.keys() - FIELDS):
        raise TemplateError(f"job.{unknown[0]} can't be in a template; allowed are {', '.join(sorted(FIELDS))}")
    if not template.command:
        raise TemplateError("command is empty")
    _check_command(template)
    for place, value in _texts(template.job, "job"):
        # A field is left out if it is a parameter without a value. Within a longer text that is not possible.
        whole = _whole(value)
        for name in _names(value, place):
            _check_known(template, name, place, optional=whole is not None)
    return template


def render(template: Template, given: Mapping[str, str], words: Sequence[str], python: str) -> Rendered:
    """Return the job for these values and words. given: values of `--set`, as text. Raises TemplateError."""
    if unknown := sorted(given.keys() - template.parameters.keys()):
        known = ", ".join(template.parameters) or "none"
        raise TemplateError(f"there is no parameter {unknown[0]!r}; the template's are: {known}")
    values: dict[str, Value | None] = {PYTHON: python}
    for name, parameter in template.parameters.items():
        values[name] = _value(name, parameter, given[name]) if name in given else parameter.default
        if values[name] is None and not parameter.optional:
            raise TemplateError(f"parameter {name!r} has no value: add --set {name}={parameter.type.upper()}")
    command: list[str] = []
    for part in template.command:
        if isinstance(part, str):
            command += words if _whole(part) == WORDS else [_filled(part, values)]
        elif values[part.condition] not in (None, False):
            command += [_filled(word, values) for word in part.words]
    return Rendered(command, _replaced(template.job, values))


def schema(template: Template) -> dict[str, Any]:
    """Return a JSON Schema of the template's parameters (json-schema.org, draft 2020-12)."""
    properties: dict[str, Any] = {}
    for name, parameter in template.parameters.items():
        found: dict[str, Any] = {"type": "string" if parameter.type == "file" else parameter.type}
        numbers = {"minimum": parameter.minimum, "maximum": parameter.maximum, "default": parameter.default}
        found |= {key: value for key, value in numbers.items() if value is not None}
        if parameter.help:
            found["description"] = parameter.help
        if parameter.choices:
            found["enum"] = list(parameter.choices)
        properties[name] = found
    required = [name for name, one in template.parameters.items() if one.default is None and not one.optional]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _check_parameter(name: str, parameter: Parameter) -> None:
    place = f"parameters.{name}"
    if not _NAME.fullmatch(name) or name in (WORDS, PYTHON):
        raise TemplateError(f"{place}: a name has small letters, digits and _, and is neither {WORDS} nor {PYTHON}")
    numeric = parameter.type in ("integer", "number")
    if not numeric and (parameter.minimum is not None or parameter.maximum is not None):
        raise TemplateError(f"{place}: only numbers have a minimum or maximum")
    for key, value in (("choices", one) for one in parameter.choices):
        _check_type(f"{place}.{key}", parameter, value)
    if parameter.default is not None:
        _check_type(f"{place}.default", parameter, parameter.default)
        _check_range(f"{place}.default", parameter, parameter.default)


def _check_type(place: str, parameter: Parameter, value: Value) -> None:
    wanted = _TYPES[parameter.type]
    if not isinstance(value, wanted) or (isinstance(value, bool) and parameter.type != "boolean"):
        raise TemplateError(f"{place}: {value!r} is not of the type {parameter.type}")


def _check_range(place: str, parameter: Parameter, value: Value) -> None:
    if parameter.choices and value not in parameter.choices:
        raise TemplateError(f"{place}: {value!r} is not one of {', '.join(map(str, parameter.choices))}")
    if isinstance(value, (str, bool)):
        return
    if value != value or value in (float("inf"), float("-inf")):
        raise TemplateError(f"{place}: {value} is not a number with a value")
    if parameter.minimum is not None and value < parameter.minimum:
        raise TemplateError(f"{place}: {value} is less than {parameter.minimum:g}")
    if parameter.maximum is not None and value > parameter.maximum:
        raise TemplateError(f"{place}: {value} is more than {parameter.maximum:g}")


def _check_command(template: Template) -> None:
    for index, part in enumerate(template.command):
        place = f"command[{index}]"
        condition, texts = ("", (part,)) if isinstance(part, str) else (part.condition, part.words)
        if condition and condition not in template.parameters:
            raise TemplateError(f"{place}: if names {condition!r}, which is no parameter")
        for text in texts:
            for name in _names(text, place):
                if name != WORDS:
                    _check_known(template, name, place, optional=name == condition)
                elif condition or _whole(text) != WORDS:
                    raise TemplateError(f"{place}: {{words}} must be a whole element of the command")


def _check_known(template: Template, name: str, place: str, *, optional: bool) -> None:
    """Check that a text may use a name. optional: whether the text may use a parameter without a value."""
    if name == PYTHON:
        return
    parameter = template.parameters.get(name)
    if parameter is None:
        raise TemplateError(f"{place}: {{{name}}} is no parameter; write {{{{ for a brace")
    if parameter.optional and parameter.default is None and not optional:
        raise TemplateError(f"{place}: {{{name}}} may have no value: make it the whole text, or put it below an `if`")


def _value(name: str, parameter: Parameter, text: str) -> Value:
    """Return the value of a text from the command line. Raises TemplateError."""
    value: Value = text
    try:
        if parameter.type == "integer":
            value = int(text)
        elif parameter.type == "number":
            value = float(text)
        elif parameter.type == "boolean":
            value = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]
    except (ValueError, KeyError):
        raise TemplateError(f"--set {name}: {text!r} is not of the type {parameter.type}") from None
    _check_range(f"--set {name}", parameter, value)
    return value


def _texts(value: Any, place: str) -> list[tuple[str, str]]:
    """Return all texts in a document with their places."""
    if isinstance(value, str):
        return [(place, value)]
    if isinstance(value, dict):
        return [one for key, each in value.items() for one in _texts(each, f"{place}.{key}")]
    if isinstance(value, list):
        return [one for index, each in enumerate(value) for one in _texts(each, f"{place}[{index}]")]
    return []


def _names(text: str, place: str) -> list[str]:
    """Return the names in the braces of a text. Raises TemplateError for a single brace."""
    found = []
    for part in _PART.finditer(text):
        if part[0] in ("{", "}"):
            raise TemplateError(f"{place}: a single {part[0]} in {text!r}; write {part[0] * 2} for a brace")
        if part[1] is not None:
            found.append(part[1])
    return found


def _whole(text: str) -> str | None:
    """Return the name if the text is one name in braces."""
    found = _PART.fullmatch(text)
    return found[1] if found else None


def _filled(text: str, values: Mapping[str, Value | None]) -> str:
    def replacement(part: re.Match[str]) -> str:
        if part[1] is None:
            return part[0][0]
        value = values[part[1]]
        return str(int(value)) if isinstance(value, bool) else str(value)

    return _PART.sub(replacement, text)


def _replaced(value: Any, values: Mapping[str, Value | None], *, texts: bool = False) -> Any:
    """Return a document with its names replaced; None for a name without a value. texts: values become texts."""
    if isinstance(value, str):
        name = _whole(value)
        if name is None:
            return _filled(value, values)
        if values[name] is None:
            return None
        return _filled(value, values) if texts else values[name]
    if isinstance(value, dict):
        made = {key: _replaced(each, values, texts=texts or key == "environment") for key, each in value.items()}
        return {key: each for key, each in made.items() if each is not None}
    if isinstance(value, list):
        return [each for one in value if (each := _replaced(one, values, texts=texts)) is not None]
    return value
