"""Check of the optional parts of the installation (extras), for `gangwatch check`."""

from __future__ import annotations

from gangwatch.extras import EXTRAS, missing_modules
from gangwatch.health.machine import Finding


def findings() -> tuple[Finding, ...]:
    """Return a finding for each extra: what it is for, and the command that installs it."""
    return tuple(_finding(name) for name in EXTRAS)


def _finding(name: str) -> Finding:
    missing, purpose = missing_modules(name), EXTRAS[name].purpose
    if not missing:
        return Finding(f"extra {name}", "found", purpose)
    return Finding(
        f"extra {name}", "missing", f"optional: {purpose} ({', '.join(missing)})", f"pip install 'gangwatch[{name}]'"
    )
