"""Check of the metrics of other code, for `gangwatch check`: installed collectors, and the folder of *.prom files."""

from __future__ import annotations

from gangwatch.configuration.sections import ExporterSection
from gangwatch.daemons.agent_daemon import textfile_folder_of
from gangwatch.health.machine import Finding

NAME = "plug-ins"


def findings(section: ExporterSection) -> tuple[Finding, ...]:
    """Collect once from each plug-in and file, as /metrics does, and return the check results.

    There is one result for each plug-in or file that is not served completely; the first result counts the others.
    """
    from exporter.plugins.entry_points import GROUP
    from exporter.plugins.plugins import Plugins

    plugins = Plugins(textfile_folder_of(section), section.deny)
    reports = plugins.reports()
    if any(report.error for report in reports):
        reports = plugins.reports()  # loading a large package may take longer than the limit of one page
    plugins.stop()
    served = [report for report in reports if not report.error]
    series = sum(report.series for report in reports)
    files = sum(report.kind == "textfile" for report in served)
    counted = f"{len(served) - files} collectors of packages and {files} *.prom files are served, {series} series"
    if not section.textfile_folder:
        counted += "; exporter.textfile_folder is not set"
    broken = tuple(
        Finding(
            f"{report.kind} {report.name}",
            "limited",
            f"left out of /metrics: {report.error}",
            f"correct the package with this entry point of {GROUP}, or uninstall it"
            if report.kind == "plugin"
            else "correct or remove the file; write it under another name and rename it",
        )
        for report in reports
        if report.error
    )
    if not broken:
        return (Finding(NAME, "found", counted),)
    return (Finding(NAME, "limited", counted, f"see the {len(broken)} items below"), *broken)
