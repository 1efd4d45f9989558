"""The site that `make docs` has made, as a browser shows it: opened from its files, as users do."""

import os

import pytest
import yaml
from headless_browser import PROGRAM, Browser
from package_source import ROOT

SITE = ROOT / "build" / "site"
# But for the one that a server shows at any address: it asks for all by absolute paths.
PAGES = sorted(set(SITE.glob("*.html")) - {SITE / "404.html"})

SOURCES = [ROOT / "mkdocs.yml", *(ROOT / "docs").rglob("*.md")]
IS_OLD = bool(PAGES) and max(map(os.path.getmtime, SOURCES)) > min(map(os.path.getmtime, PAGES))

pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="no browser: apt-get install chromium"),
    pytest.mark.skipif(not PAGES, reason="no site in build/site: make docs"),
    pytest.mark.skipif(IS_OLD, reason="the site is older than its sources: make docs"),
]

UNSTYLED = """
[...document.querySelectorAll('table')].filter(
    table => parseFloat(getComputedStyle(table.querySelector('td')).paddingLeft) < 4
).map(table => table.innerText.slice(0, 60))
"""
IN_THE_MENU = "document.querySelector('.navbar .dropdown-item.active').textContent.trim()"
SEARCH_IS_READY = "typeof min_search_length === 'number'"
# Wider than the window: what a reader on a phone would have to move the whole page for.
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_without_errors_and_fits_a_phone(browser, page):
    browser.resize(1280, 900)
    browser.open(page.as_uri())
    browser.wait_for(SEARCH_IS_READY)
    assert browser.evaluate(UNSTYLED) == []
    heading = browser.evaluate("document.querySelector('h1').firstChild.textContent")
    assert browser.evaluate(IN_THE_MENU) == heading
    browser.resize(390, 900)
    assert browser.evaluate(OVERFLOW) <= 0
    assert browser.errors == []


def test_a_search_by_key_finds_pages(browser):
    browser.resize(1280, 900)
    browser.open((SITE / "index.html").as_uri())
    browser.wait_for(SEARCH_IS_READY)
    browser.press("s")
    browser.wait_for("document.activeElement.id === 'mkdocs-search-query'")
    for letter in "residual":
        browser.press(letter)
    found = "document.querySelectorAll('#mkdocs-search-results a')"
    browser.wait_for(f"{found}.length > 3")
    links = browser.evaluate(f"[...{found}].map(link => link.href)")
    assert any("algorithm.html" in link for link in links)
    browser.open(links[0])
    assert browser.errors == []


def test_the_menu_has_its_groups(browser):
    browser.resize(1280, 900)
    browser.open((SITE / "index.html").as_uri())
    groups = browser.evaluate(
        "[...document.querySelectorAll('.navbar .dropdown-toggle')].map(g => g.innerText.trim())"
    )
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert groups == [name for group in navigation for name in group]
