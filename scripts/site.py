"""Build the documentation as a site from the pages in Git: `scripts/site.py` (zensical.toml).

The script copies all linked files to build/docs with the layout of the repository, so that a link works on a forge and
on the site. zensical checks links to pages and anchors, and this script checks links to all other files.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
PAGES, SITE = ROOT / "build" / "docs", ROOT / "build" / "site"
SHOWN = (
    "*.md",
    "docs",
    "example-repo",
    "fuzz/README.md",
    "packaging",
    "tests/hardware",
    "Containerfile",
    "LICENSE",
    "NOTICE",
)
NOT_SHOWN = (":!gitboot", ":!tests/*.md")
# What a person in trouble types into the search field, and the page that helps.
SEARCHES = {
    "stuck": "docs/how-to/something-is-wrong.html",
    "troubleshoot": "docs/how-to/something-is-wrong.html",
    "rollback": "docs/how-to/roll-back.html",
    "reinstall": "docs/how-to/reinstall-a-server.html",
}


def gather() -> None:
    """Copy the files of the site to build/docs, including files that are not committed yet."""
    asked = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", "--", *SHOWN, *NOT_SHOWN)
    listed = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    shutil.rmtree(PAGES, ignore_errors=True)
    for name in listed.split("\0"):
        if name and (ROOT / name).is_file():
            (PAGES / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, PAGES / name)


def build() -> None:
    shutil.rmtree(SITE, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "zensical", "build", "--clean", "--strict"], cwd=ROOT, check=True)


def list_folders() -> None:
    """Write a list of files into each folder without a page, because many web servers do not list files."""
    for folder in (SITE, *(each for each in SITE.rglob("*") if each.is_dir())):
        names = sorted(f"{each.name}/" if each.is_dir() else each.name for each in folder.iterdir())
        if "index.html" not in names:
            links = "\n".join(f'<li><a href="{escape(each)}">{escape(each)}</a>' for each in names)
            (folder / "index.html").write_text(f"<!doctype html>\n<title>{folder.name}</title>\n<ul>\n{links}\n</ul>\n")


class _References(HTMLParser):
    """The references of a page: its links, and the files that a browser loads to show it."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if (value and name == "src") or (value and tag == "link" and name == "href"):
                self.fetched.append(value)
            elif value and name == "href":
                self.links.append(value)


def find_faults() -> Iterator[str]:
    """Return each link to a missing file, and each file that is loaded from elsewhere."""
    for page in sorted(SITE.rglob("*.html")):
        if page.name == "404.html":  # shown at any path, so by the site's root
            continue
        found = _References()
        found.feed(page.read_text())
        where = page.relative_to(SITE)
        yield from (f"{where}: fetches {each}" for each in found.fetched if urlsplit(each).netloc)
        for each in (*found.links, *found.fetched):
            parts = urlsplit(each)
            if not (parts.scheme or parts.netloc) and not (page.parent / unquote(parts.path)).exists():
                yield f"{where}: links to {each}, which is not there"


def find_missing_words() -> Iterator[str]:
    """Return each word of SEARCHES that the site's search index does not have on its page."""
    items = json.loads((SITE / "search.json").read_text())["items"]
    for word, page in SEARCHES.items():
        texts = [f"{item['title']} {item['text']}" for item in items if item["location"].split("#")[0] == page]
        if not any(re.search(rf"(?<!\w){word}", text, re.IGNORECASE) for text in texts):
            yield f"search: {word} does not find {page}"


def main() -> int:
    gather()
    build()
    list_folders()
    found = [*find_faults(), *find_missing_words()]
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
