"""Generator of the chart's README.md, with a table of all values, in the folder gangwatch next to this file.

    python deploy/helm/readme.py

Descriptions are the comments "# --" in values.yaml, in the format of helm-docs.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parent / "gangwatch"
README = CHART / "README.md"
_KEY = re.compile(r'( *)("[^"]+"|[A-Za-z]\w*):(?: |$)')
_TYPES = {str: "string", bool: "bool", int: "int", float: "float", list: "list", dict: "object"}
_HEAD = """\
# gangwatch

<!-- Written by deploy/helm/readme.py from values.yaml. Change the comments there, then run `make docs`. -->

{description}

```sh
helm install gangwatch deploy/helm/gangwatch --namespace gangwatch --create-namespace
```

[Kubernetes](../../../docs/how-to/kubernetes.md) describes installation, use, upgrade and removal. By default the agent
mounts the host's files read-only and drops all capabilities.

## Values

| key | type | default | description |
|---|---|---|---|
"""


def descriptions(text: str) -> dict[str, str]:
    """Return the description of each key of a values file, by the key's path, such as 'agent.port'."""
    found: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    comment: list[str] | None = None
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("# --"):
            comment = [stripped.removeprefix("# --").strip()]
        elif stripped.startswith("#"):
            if comment is not None:
                comment.append(stripped.removeprefix("#").strip())
        elif (key := _KEY.match(line)) is not None:
            indent = len(key[1])
            path = [*((depth, name) for depth, name in path if depth < indent), (indent, key[2].strip('"'))]
            if comment is not None:
                found[".".join(name for _, name in path)] = " ".join(comment)
            comment = None
        else:
            comment = None
    return found


def rows(values: dict[str, Any], described: dict[str, str], prefix: str = "") -> list[tuple[str, Any, str]]:
    """Return (key, default, description) of each value that has a description or no children."""
    found: list[tuple[str, Any, str]] = []
    for name, value in values.items():
        path = f"{prefix}{name}"
        if path in described or not isinstance(value, dict) or not value:
            found.append((path, value, described.get(path, "")))
        else:
            found.extend(rows(value, described, f"{path}."))
    return found


def readme() -> str:
    """Return the text of README.md. Raises ValueError that names values without a description."""
    text = (CHART / "values.yaml").read_text()
    table = rows(yaml.safe_load(text), descriptions(text))
    if missing := [path for path, _, description in table if not description]:
        raise ValueError(f'values.yaml: no comment "# --" above {", ".join(missing)}')
    lines = [
        f"| `{path}` | {_TYPES[type(default)]} | `{json.dumps(default)}` | {description.replace('|', chr(92) + '|')} |"
        for path, default, description in table
    ]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    return _HEAD.format(description=f"{chart['description']} Version {chart['version']}.") + "\n".join(lines) + "\n"


if __name__ == "__main__":
    README.write_text(readme())
