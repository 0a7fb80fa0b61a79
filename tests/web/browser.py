"""A real browser: Debian's Chromium through Playwright, which brings no browser of its own here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from axe_playwright_python.base import AxeResults
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from tests import needs

FLAGS = (
    "--no-sandbox",  # Chromium refuses to run as root with it
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def chromium() -> Iterator[Browser]:
    program = needs.component("chromium", "chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, headless=True, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def page_of(
    browser: Browser,
    width: int = 1280,
    height: int = 900,
    scheme: str = "light",
    allow_eval: bool = False,
    refused: str = "",
) -> Iterator[Page]:
    """A page that may not write an error to its console, nor raise one, nor ask another server for anything.

    allow_eval: whether a test's own script is let past the page's policy, which axe-core needs. refused: a status that
    the server may answer with, which the browser logs.
    """
    errors: list[str] = []

    def said(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            errors.append(message.text)

    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
        bypass_csp=allow_eval,
    )
    page = context.new_page()
    page.on("console", said)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("requestfailed", lambda request: errors.append(f"{request.url}: {request.failure}"))
    hosts: set[str] = set()
    page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
    page.set_default_timeout(20_000)
    try:
        yield page
        # ERR_ABORTED: a stream that the page itself closed.
        meant = ("ERR_ABORTED", *((f"status of {refused}",) if refused else ()))
        assert [error for error in errors if not any(words in error for words in meant)] == []
        assert len(hosts) <= 1, f"other servers were asked: {hosts}"
    finally:
        context.close()


def serious_findings(results: AxeResults) -> list[str]:
    """What axe-core holds against a page, in its own words, where it is serious or worse."""
    return [
        f"{violation['id']}: {violation['help']}: {[node['html'] for node in violation['nodes']][:3]}"
        for violation in results.response["violations"]
        if violation["impact"] in ("serious", "critical")
    ]
