"""Redaction of text: removal of known secrets by value, and of unknown secrets by format.

core/disclosure.py first removes the fields that may contain secrets. This module then searches text that has no fields:
logs of daemons, tracebacks, sentences, metrics.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote

from scheduler_feedback.core.disclosure import REMOVED
from scheduler_feedback.core.job import JobSpec

SECRET_NAME = re.compile(
    r"pass(word|wd|phrase)?$|secret|token|credential|(api|access|private|signing|encryption)[_-]?key|auth",
    re.IGNORECASE,
)
"""Pattern of the names of variables, keys and options that usually have secret values."""

_SHORTEST_SECRET = 6
"""Minimum length in characters of a secret that is removed by value. Shorter values could also be ordinary text."""

_SHORTEST_KEY, _SHORTEST_HEX = 16, 32
"""Minimum number of characters of a value that is removed as a generated key. _SHORTEST_KEY applies to letters of both
cases with digits, _SHORTEST_HEX to hexadecimal digits."""

_HEX = re.compile(r"[0-9a-fA-F]+")

_WORDS = "password|passwd|passphrase|secret|token|credential|api[_-]?key|access[_-]?key|private[_-]?key|signing[_-]?key"
_NAME = rf"(?:{_WORDS})[A-Za-z0-9_.-]{{0,64}}"
"""Pattern of a secret's name, which begins with a word such as 'password'. Its length is limited to keep the search
fast in text without blanks."""

_FORMS: tuple[tuple[re.Pattern[str], str], ...] = (
    # RFC 7468: a private key in PEM, whole or cut off at the end of the text, with real or escaped ends of line.
    (
        re.compile(r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)", re.DOTALL),
        REMOVED,
    ),
    # RFC 3986, 3.2.1: user and password in a URL; and secrets in its query.
    (re.compile(r"(://)[^\s/\"'<>\\]{1,1024}@"), rf"\1{REMOVED}@"),
    (
        re.compile(rf"([?&](?:{_NAME}|[\w.-]{{0,64}}(?:signature|sig|auth|code))=)[^&\s\"'\\]+", re.I),
        rf"\1{REMOVED}",
    ),
    # RFC 9110, 11.6.2, RFC 6750 and RFC 7617: credentials in a header.
    (re.compile(r"\b(Bearer|Basic|Negotiate)\s+(?!\[removed\])[A-Za-z0-9._~+/=-]{8,}", re.I), rf"\1 {REMOVED}"),
    # RFC 7519: a JSON Web Token.
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"), REMOVED),
    # Tokens of gangwatch, and of services that publish their format for secret scanning.
    (re.compile(r"\bgwt_[A-Za-z0-9_-]{20,}"), REMOVED),
    (
        re.compile(
            r"\b(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|hf_[A-Za-z0-9]{20,}|"
            r"sk-[A-Za-z0-9_-]{16,}|xox[abeprs]-[A-Za-z0-9-]{10,}|(?:AKIA|ASIA)[0-9A-Z]{16}|AIza[\w-]{30,}|"
            r"nvapi-[\w-]{20,}|dckr_pat_[\w-]{16,}|npm_[A-Za-z0-9]{30,})"
        ),
        REMOVED,
    ),
    # NAME=value, "name": "value" and --name value, if the name is that of a secret. A line of JSON stays valid JSON:
    # quotes, numbers, lists and tables remain.
    (re.compile(rf"({_NAME}\\?[\"']?\s*[=:]\s*\\?[\"'])(?!\[removed\])[^\"'\\\n]+", re.I), rf"\1{REMOVED}"),
    (re.compile(rf"({_NAME}=)(?!\[removed\])[^\s\"',;&\\]+", re.I), rf"\1{REMOVED}"),
    (
        re.compile(
            rf"({_NAME}[\"']?\s*:\s*)(?!\[|\{{|-?\d+(?:\.\d+)?(?![\w.])|true\b|false\b|null\b)[^\s\"',;&\\]+", re.I
        ),
        rf"\1{REMOVED}",
    ),
)

_OPTION = re.compile(rf"{_NAME}(?:\s+|\\?\",\s*\\?\")(?!\[removed\])(?P<value>'[^'\n]*'|[^\s\"'\\]+)", re.I)
_OPTION_BEGINS = re.compile(r"(?:^|[\s\"'\[])--?[A-Za-z0-9_.-]{0,64}$")


def _option(found: re.Match[str]) -> str:
    """Return the matched text, without the value if the name before it is a command-line option (begins with '-')."""
    before = found.string[max(0, found.start() - 66) : found.start()]
    if _OPTION_BEGINS.search(before) is None:
        return found[0]
    return found[0][: found.start("value") - found.start()] + REMOVED


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """Return the text without the given secrets, and without other text that has the format of a secret."""
    text = remove_secrets(text, secrets)
    for form, instead in _FORMS:
        text = form.sub(instead, text)
    return _OPTION.sub(_option, text)


def remove_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return the text without the secrets. Secrets that are escaped for JSON, Python or URLs are also removed."""
    for secret in secrets:
        forms = {
            secret,
            json.dumps(secret, ensure_ascii=False)[1:-1],
            json.dumps(secret)[1:-1],
            repr(secret)[1:-1],
            quote(secret, safe=""),
        }
        for form in sorted(forms, key=len, reverse=True):
            text = text.replace(form, REMOVED)
    return text


def longest_first(found: Iterable[str]) -> list[str]:
    """Return the distinct secrets that are long enough to search for, longest first, since one may contain another."""
    return sorted({one for one in found if len(one) >= _SHORTEST_SECRET}, key=lambda one: (-len(one), one))


def of_specification(spec: JobSpec) -> Iterator[str]:
    """Yield the values in a job's specification that look like secrets, by their name or their format."""
    for name, value in spec.environment.items():
        if SECRET_NAME.search(name) or _looks_secret(value):
            yield value
    for arguments in (spec.command, spec.checkpoint_command, *(group.command for group in spec.groups)):
        yield from _of_arguments(arguments)


def _of_arguments(arguments: tuple[str, ...]) -> Iterator[str]:
    before = ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if equals and (SECRET_NAME.search(name) or _looks_secret(value)):
            yield value
        elif (before.startswith("-") and SECRET_NAME.search(before)) or _looks_secret(argument):
            yield argument
        before = argument


def _looks_secret(text: str) -> bool:
    """Return whether a value looks like a generated key.

    Such a key is long, has no blanks or slashes, and is hexadecimal or has digits and letters of both cases. Names
    of hosts and files rarely look like this.
    """
    if len(text) < _SHORTEST_KEY or any(one in text for one in "/ \t\n"):
        return False
    if len(text) >= _SHORTEST_HEX and _HEX.fullmatch(text):
        return True
    return any(one.isdigit() for one in text) and any(one.isupper() for one in text) and any(map(str.islower, text))


def of_file(text: str) -> Iterator[str]:
    """Yield the possible secrets in a file's text: each line, and the part of each line after ':' or '='."""
    for line in text.split("\n"):
        for piece in (line, *re.split(r"[:=]", line, maxsplit=1)[1:]):
            piece = piece.strip().strip("\"'")
            yield piece
            # In a header such as 'Authorization: Bearer XYZ', the secret is the last word.
            yield piece.rpartition(" ")[2]
