"""CEL expressions of device selectors, evaluated with CEL's own C++ library (cel-expr-python).

The variable `device` and the functions are those of Kubernetes:
https://kubernetes.io/docs/reference/kubernetes-api/resource/resource-claim-v1/ (selectors.cel.expression) and
https://kubernetes.io/docs/reference/using-api/cel/. Supported: the CEL language with its macros, strings, optional
values, `cel.bind`, and of Kubernetes' own functions `quantity`, `isQuantity`, `semver`, `isSemver`, `compareTo`,
`isGreaterThan` and `isLessThan`. An expression with any other function does not compile, and its claim is refused.
The library limits the iterations of macros, and its regular expressions run in linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from agent.schema.errors import BackendError
from scheduler_feedback.backends.kubernetes.devices.device_objects import Device, DeviceAttribute
from scheduler_feedback.backends.kubernetes.objects.quantities import parse_quantity

if TYPE_CHECKING:
    from cel_expr_python import cel

MOST_EXPRESSIONS = 1024
"""Maximum number of compiled expressions that are kept."""

MOST_SHARED_RESULTS = 65_536
"""Maximum number of results that devices with equal attributes share."""

_VERSION = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?\Z", re.ASCII
)
"""Form of a semantic version: https://semver.org/#semantic-versioning-200"""

_LITERAL = re.compile(r'"([^"\\]*)"|\'([^\'\\]*)\'')
_TESTS_DOMAIN = re.compile(r"\bin\s+device\s*\.\s*(attributes|capacity)\s*(?!\s*\[)")
_WORD = re.compile(r"\w+")
_READS_ALL = re.compile(r"[+\\]|\b(all|exists|exists_one|map|filter|size|format|join|replace|transform\w*)\b")
"""Parts of an expression that may read an attribute which the expression does not name."""


class SelectorError(BackendError):
    """An expression that cannot be evaluated."""


def matches(expression: str, driver: str, device: Device) -> bool:
    """Return whether the device fulfils the expression; an error at this device counts as False.

    Kubernetes does not schedule a pod if its expression fails on any device that it evaluates. Raises SelectorError if
    the expression is not supported.
    """
    program, used, domains = compiled(expression), _used(expression), _domains(expression)
    key = (expression, driver, _read(device, used)) if used is not None else None
    if key is not None and (known := _results.get(key)) is not None:
        return known
    try:
        found = program.eval(data={"device": _data(driver, device, used, domains)}).value() is True
    except RuntimeError:  # more iterations than the library allows
        found = False
    if key is not None:
        if len(_results) >= MOST_SHARED_RESULTS:
            _results.clear()
        _results[key] = found
    return found


_results: dict[tuple[str, str, tuple[object, ...]], bool] = {}


def _read(device: Device, used: frozenset[str]) -> tuple[object, ...]:
    """Return the attributes and capacities of the device that an expression with these words may read."""
    found: list[object] = [device.allow_multiple_allocations]
    for name, one in (device.attributes or {}).items():
        if name.rpartition("/")[2] in used:
            found.append((name, one.number, one.flag, one.text, one.version))
    for name, amount in (device.capacity or {}).items():
        if name.rpartition("/")[2] in used:
            found.append((name, amount.value))
    return tuple(found)


@lru_cache(maxsize=MOST_EXPRESSIONS)
def compiled(expression: str) -> cel.Expression:
    """Compile the expression. Raises SelectorError if it is not supported."""
    try:
        program = _environment().compile(expression)
    except RuntimeError as error:
        raise SelectorError(_first_line(str(error))) from error
    if program.return_type().name() not in ("bool", "dyn", "BOOL", "DYN"):
        raise SelectorError(f"its result is {program.return_type().name()}, not bool")
    return program


def _first_line(error: str) -> str:
    """Return the compiler's first error without its position and the copy of the expression."""
    line = error.partition("\n")[0].rpartition("<input>:")[2]
    return re.sub(r"^\d+:\d+: |\(in container ''\)", "", line).strip() or error[:200]


@lru_cache(maxsize=1)
def _environment() -> cel.Env:
    try:
        from cel_expr_python import cel
        from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings
    except ImportError as error:
        raise SelectorError("the package cel-expr-python is missing: install gangwatch[devices]") from error
    kind = cel.Type
    version = kind.List(kind.DYN)

    def function(name: str, member: bool, *overloads: tuple[Any, list[Any], Any]) -> cel.FunctionDecl:
        return cel.FunctionDecl(
            name,
            [
                cel.Overload(f"{name}_{number}", result, parameters, member, implementation)
                for number, (result, parameters, implementation) in enumerate(overloads)
            ],
        )

    both = ([kind.DOUBLE, kind.DOUBLE], [version, version])
    functions = [
        function("quantity", False, (kind.DOUBLE, [kind.STRING], quantity)),
        function("isQuantity", False, (kind.BOOL, [kind.STRING], lambda text: _parses(quantity, text))),
        function("semver", False, (version, [kind.STRING], semver)),
        function("isSemver", False, (kind.BOOL, [kind.STRING], lambda text: _parses(semver, text))),
        function("compareTo", True, *((kind.INT, one, lambda a, b: (a > b) - (a < b)) for one in both)),
        function("isGreaterThan", True, *((kind.BOOL, one, lambda a, b: a > b) for one in both)),
        function("isLessThan", True, *((kind.BOOL, one, lambda a, b: a < b) for one in both)),
    ]
    extensions = [
        cel.CelExtension("kubernetes", functions),
        ext_strings.ExtStrings(),
        ext_optional.ExtOptional(),
        ext_bindings.ExtBindings(),
    ]
    return cel.NewEnv(variables={"device": kind.DYN}, extensions=extensions)


def _parses(parse: Any, text: str) -> bool:
    try:
        parse(text)
    except (BackendError, ValueError):
        return False
    return True


def quantity(text: str) -> float:
    """Return a Kubernetes quantity as a number: exact for whole numbers up to 2^53."""
    return float(parse_quantity(text))


def semver(text: str) -> list[Any]:
    """Return a semantic version as a list that compares as semver.org orders versions.

    The list has major, minor and patch, then 1 for a release, or 0 and the parts of the pre-release. Raises ValueError
    for malformed text.
    """
    found = _VERSION.match(text)
    if found is None:
        raise ValueError(f"{text[:64]!r} is not a semantic version")
    major, minor, patch, before = found.groups()
    parts: list[Any] = [int(major), int(minor), int(patch), 0 if before else 1]
    for part in (before or "").split("."):  # numbers are lower than words
        if part:
            parts += [0, int(part)] if part.isdecimal() else [1, part]
    return parts


@lru_cache(maxsize=MOST_EXPRESSIONS)
def _used(expression: str) -> frozenset[str] | None:
    """Return the words of the expression, which name every attribute that it reads; None if it may read all."""
    return None if _READS_ALL.search(expression) else frozenset(_WORD.findall(expression))


@lru_cache(maxsize=MOST_EXPRESSIONS)
def _domains(expression: str) -> list[str]:
    """Return the string literals of the expression, among them the domains of attributes that it reads.

    Return none if the expression tests whether a domain exists.
    """
    if _TESTS_DOMAIN.search(expression):
        return []
    return [double or single for double, single in _LITERAL.findall(expression)]


def _data(driver: str, device: Device, used: frozenset[str] | None, domains: list[str]) -> dict[str, Any]:
    """Return the variable `device`. used: names of the attributes to include; None: all.

    A domain without attributes is an empty map, as in Kubernetes.
    """
    attributes: dict[str, dict[str, Any]] = {domain: {} for domain in domains}
    capacity: dict[str, dict[str, Any]] = {domain: {} for domain in domains}
    for name, attribute in (device.attributes or {}).items():
        domain, identifier = _qualified(name, driver)
        if used is None or identifier in used:
            attributes.setdefault(domain, {})[identifier] = _value(attribute)
    for name, amount in (device.capacity or {}).items():
        domain, identifier = _qualified(name, driver)
        if used is None or identifier in used:
            capacity.setdefault(domain, {})[identifier] = float(_amount(amount.value))
    return {
        "driver": driver,
        "allowMultipleAllocations": device.allow_multiple_allocations,
        "attributes": attributes,
        "capacity": capacity,
    }


def _amount(text: str) -> Decimal:
    try:
        return parse_quantity(text)
    except BackendError:
        return Decimal("NaN")


def _qualified(name: str, driver: str) -> tuple[str, str]:
    """Return (domain, identifier) of an attribute. A name without a domain belongs to the driver."""
    domain, separator, identifier = name.partition("/")
    return (domain, identifier) if separator else (driver, name)


def _value(attribute: DeviceAttribute) -> Any:
    if attribute.version is not None:
        try:
            return semver(attribute.version)
        except ValueError:
            return None
    for value in (attribute.number, attribute.flag, attribute.text):
        if value is not None:
            return value
    return None


def has_capacity(device: Device, least: Iterable[tuple[str, str]]) -> bool:
    """Return whether the device has at least these amounts. least: (name of a capacity as in its slice, quantity)."""
    return all(
        (have := (device.capacity or {}).get(name)) is not None and float(_amount(have.value)) >= quantity(amount)
        for name, amount in least
    )


def attribute_of(driver: str, device: Device, name: str) -> tuple[str, Any] | None:
    """Return (type, value) of the attribute with this full name, 'DOMAIN/IDENTIFIER'; None if the device has none."""
    found: Mapping[str, DeviceAttribute] = device.attributes or {}
    domain, _, identifier = name.partition("/")
    attribute = found.get(name) or (found.get(identifier) if domain == driver else None)
    if attribute is None:
        return None
    for kind in ("text", "number", "flag", "version"):
        if (value := getattr(attribute, kind)) is not None:
            return kind, value
    return None
