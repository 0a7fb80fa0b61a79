"""MkDocs hooks of the documentation site: they add pages from outside docs/, and folders to the navigation."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]

ADDED = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "examples.md",
}
"""Pages from outside of docs/, with their names on the site."""

_LINK = re.compile(r"(?<=\]\()(?!\w+:)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace each folder in the navigation by the folder's pages."""
    config.nav = _expanded(config.nav, Path(config.docs_dir))
    return config


def _expanded(nav: Any, docs: Path) -> Any:
    if isinstance(nav, dict):
        return {title: _expanded(below, docs) for title, below in nav.items()}
    if isinstance(nav, str) and nav.endswith("/"):
        names = {page.name for page in (docs / nav).glob("*.md")}
        return [f"{nav}{name}" for name in (*names & {"README.md"}, *sorted(names - {"README.md"}))]
    return [_expanded(entry, docs) for entry in nav] if isinstance(nav, list) else nav


def _contents(folder: Path) -> str:
    """Return a Markdown list of links to the numbered pages of a folder, with their titles."""
    pages = sorted(folder.glob("0*.md"))
    titles = [page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ") for page in pages]
    return "\n".join(f"- [{title}]({page.name})" for page, title in zip(pages, titles, strict=True))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add README.md and other pages from outside docs/ to the site."""
    for source, name in ADDED.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Rewrite links from a page to other files of the repository: to the file's page on the site, else to its source.

    The index of decisions (ADRs) also gets a list of them.
    """
    if page.file.src_uri == "adr/README.md":
        markdown += f"\n{_contents(Path(config.docs_dir) / 'adr')}\n"
    sources = {name: source for source, name in ADDED.items()}
    folder = posixpath.dirname(sources.get(page.file.src_uri, f"docs/{page.file.src_uri}"))

    def changed(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link["path"]))
        if target in ADDED or target.startswith("docs/"):
            name = ADDED.get(target, target.removeprefix("docs/"))
            path = posixpath.relpath(name, posixpath.dirname(page.file.src_uri))
        elif (ROOT / target).exists():
            path = f"{config.repo_url}/blob/main/{target}"
        else:
            return link[0]
        return path + (link["anchor"] or "")

    return _LINK.sub(changed, markdown)
