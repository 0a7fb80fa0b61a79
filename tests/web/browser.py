"""Debian's Chromium, driven by Playwright. Playwright's own browsers are not used."""

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
    """Open a page. The test fails if the page logs or raises an error, or sends a request to another server.

    allow_eval: bypass the page's content security policy for the test's own script, as axe-core needs. refused: HTTP
    status of an expected error, which the browser logs.
    """
    errors: list[str] = []

    def on_console(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            errors.append(message.text)

    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
        bypass_csp=allow_eval,
    )
    page = context.new_page()
    page.on("console", on_console)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("requestfailed", lambda request: errors.append(f"{request.url}: {request.failure}"))
    hosts: set[str] = set()
    page.on("request", lambda request: hosts.add(request.url.split("/")[2]))
    page.set_default_timeout(20_000)
    try:
        yield page
        # ERR_ABORTED: a stream that the page closed.
        meant = ("ERR_ABORTED", *((f"status of {refused}",) if refused else ()))
        assert [error for error in errors if not any(words in error for words in meant)] == []
        assert len(hosts) <= 1, f"the page sent requests to other servers: {hosts}"
    finally:
        context.close()


def serious_findings(results: AxeResults) -> list[str]:
    """Return the violations that axe-core reports as serious or critical."""
    return [
        f"{violation['id']}: {violation['help']}: {[node['html'] for node in violation['nodes']][:3]}"
        for violation in results.response["violations"]
        if violation["impact"] in ("serious", "critical")
    ]
