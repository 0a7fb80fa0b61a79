"""Generator of the chart's dashboard and rule files, in the folder gangwatch/files next to this file.

    python deploy/helm/build.py

A chart can only contain files in its own folder. They are the output of `gangwatch dashboards build`: dashboards as
JSON without white space, rules without comments.
"""

from __future__ import annotations

import json
from pathlib import Path

import yaml

FILES = Path(__file__).resolve().parent / "gangwatch" / "files"
_RULES = "rules/prometheus-rule.yml"


def files() -> dict[str, str]:
    """Return the text of each file, by path below ``FILES``: one file per dashboard, and the rule groups."""
    from dashboards.provisioning import built_files

    built = {path: str(text) for path, text in built_files()}
    found = {
        f"dashboards/{Path(path).parent.name}-{Path(path).name}": json.dumps(json.loads(text), separators=(",", ":"))
        for path, text in built.items()
        if path.startswith("dashboards/")
    }
    spec = yaml.safe_load(built[_RULES])["spec"]
    return {**found, "rules.yaml": yaml.safe_dump(spec, sort_keys=False, width=1_000_000)}


def main() -> None:
    wanted = files()
    for path, text in wanted.items():
        file = FILES / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    for file in FILES.rglob("*"):
        if file.is_file() and str(file.relative_to(FILES)) not in wanted:
            file.unlink()


if __name__ == "__main__":
    main()
