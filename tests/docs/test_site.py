"""Documentation site: --strict finds broken links, pages work without a network, diagrams are drawn."""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

import pytest
from markdown_it import MarkdownIt

from tests.web.browser import chromium, page_of

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("site")]  # one worker builds the site once

ROOT = Path(__file__).parents[2]
VENDORED = ROOT / "docs/theme/vendored"

ADDED_TO = "adr/README.md"
"""Page to which hooks.py adds a list."""

# The mistakes of this page, each with the warning that it causes. The page has no entry in `nav`.
BROKEN = """# Broken

[dead](how-to/no-such-page.md) [anchor](reference/glossary.md#no-such-anchor) [absolute](/how-to/agent.md)
[folder](how-to/) [outside](../no-such-file.py)
"""
WARNINGS = (
    r"not included in the .nav. configuration:\s+- broken\.md\s*\Z",
    r"'how-to/no-such-page\.md', but the target is not found",
    r"'reference/glossary\.md#no-such-anchor', but the doc .* does not contain an anchor",
    r"absolute link '/how-to/agent\.md'",
    r"unrecognized relative link 'how-to'",
    r"'\.\./no-such-file\.py'",
)


class Built(NamedTuple):
    """Site that was built with --strict from a copy of docs/, to which a page with errors was added."""

    folder: Path
    exit_code: int
    warnings: list[str]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    project = tmp_path_factory.mktemp("project")
    for entry in ROOT.iterdir():
        if entry.name not in ("docs", "build", ".git"):
            (project / entry.name).symlink_to(entry)
    shutil.copytree(ROOT / "docs", project / "docs")
    (project / "docs/broken.md").write_text(BROKEN)
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(project / "mkdocs.yml")],
        cwd=project,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    log = re.split(r"^(?=WARNING|INFO|ERROR|\nAborted)", done.stderr, flags=re.MULTILINE)
    return Built(
        project / "build/site", done.returncode, [line for line in log if line.startswith(("WARNING", "ERROR"))]
    )


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve the folder on a free loopback port. Yield the address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_strict_finds_each_broken_link_and_nothing_else(built: Built) -> None:
    assert built.exit_code != 0
    for expected in WARNINGS:
        assert sum(re.search(expected, line) is not None for line in built.warnings) == 1, expected
    assert len(built.warnings) == len(WARNINGS), built.warnings


def test_pages_load_nothing_from_other_hosts(built: Built) -> None:
    pages = list(built.folder.rglob("*.html"))
    assert len(pages) > 100
    for page in pages:
        loaded = re.findall(r"<(?:script|img|iframe)[^>]* src=\"?(https?:[^\">\s]+)", page.read_text())
        loaded += re.findall(r"<link[^>]* rel=\"?(?:stylesheet|preconnect)\"?[^>]*(https?:[^\">\s]+)", page.read_text())
        assert loaded == [], page


class _Structure(HTMLParser):
    """Number of list items, code blocks, tables and headings on a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in ("li", "ol", "ul", "pre", "table", "h1", "h2", "h3"):
            self.counts[tag] += 1


def test_pages_have_the_same_structure_on_github_and_on_the_site(built: Built) -> None:
    """Python-Markdown reads a nested list or code block that is indented by less than four spaces as text."""
    markdown = MarkdownIt("commonmark").enable("table")
    differing = {}
    for source in sorted((ROOT / "docs").rglob("*.md")):
        relative = source.relative_to(ROOT / "docs")
        if relative.parts[0] == "theme" or relative.parts[:2] == ("reference", "api") or str(relative) == ADDED_TO:
            continue
        name = relative.parent if source.name == "README.md" else relative.with_suffix("")
        article = re.search(r"<article.*</article>", (built.folder / name / "index.html").read_text(), flags=re.DOTALL)
        assert article is not None
        here, there = _Structure(article[0]).counts, _Structure(markdown.render(source.read_text())).counts
        if here != there:
            differing[str(relative)] = (here - there, there - here)
    assert differing == {}


def test_the_api_reference_has_the_docstrings_of_plug_ins(built: Built) -> None:
    text = (built.folder / "reference/api/training/index.html").read_text()
    assert 'id="gangwatch.steps.Reporter.step"' in text
    assert re.search(r"<li>\s*(<p>)?<code>squares</code>: the sum of the squared lengths", text)
    assert 'id="gangwatch.steps._Registration"' not in text


def test_a_browser_draws_every_diagram(built: Built) -> None:
    pages = [page for page in built.folder.rglob("*.html") if 'class="mermaid"' in page.read_text()]
    assert len(pages) >= 3
    with serving(built.folder) as base, chromium() as browser:
        for page in pages:
            with page_of(browser) as tab:
                tab.goto(f"{base}/{page.relative_to(built.folder)}")
                # Material replaces <pre class="mermaid"> by a <div>; a diagram with an error stays <pre>.
                tab.wait_for_function("document.querySelectorAll('pre.mermaid').length == 0")
                heights = tab.evaluate("[...document.querySelectorAll('div.mermaid')].map(one => one.clientHeight)")
                assert heights and min(heights) > 100, page


def test_every_vendored_file_has_a_licence_and_a_checksum() -> None:
    text = (VENDORED / "README.md").read_text()
    scripts = [file for file in VENDORED.iterdir() if file.suffix == ".js"]
    assert scripts
    for file in scripts:
        assert hashlib.sha256(file.read_bytes()).hexdigest() in text, f"{file.name} differs from README.md's checksum"
        assert (VENDORED / f"{file.name.partition('.')[0]}.LICENSE").exists()
