"""The documentation: its pages are all in the site, and each link of the site leads somewhere."""

from __future__ import annotations

import importlib.util
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parent.parent


# The site


def _named(navigation: list[Any]) -> Iterator[str]:
    for each in navigation:
        if isinstance(each, str):
            yield each
        else:
            for inner in each.values():
                yield from _named([inner] if isinstance(inner, str) else inner)


def test_each_page_is_in_the_navigation_but_decisions_which_their_list_names() -> None:
    named = list(_named(tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]))
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "adr"}
    assert len(named) == len(set(named))
    assert all((ROOT / name).is_file() for name in named)
    assert pages - set(named) == set()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """scripts/site.py, with a site of one page."""
    spec = importlib.util.spec_from_file_location("site_script", ROOT / "scripts" / "site.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "SITE", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a page.html").write_text("")
    return module


@pytest.mark.parametrize(
    ("markup", "said"),
    [
        pytest.param('<a href="docs/a%20page.html#x">', [], id="a page"),
        pytest.param('<a href="docs/">', [], id="a folder"),
        pytest.param('<a href="https://example.net/"><a href="#x">', [], id="elsewhere, and here"),
        pytest.param('<a href="docs/b.html">', ["x.html: links to docs/b.html, which is not there"], id="no page"),
        pytest.param('<img src="a.png">', ["x.html: links to a.png, which is not there"], id="no image"),
        pytest.param('<script src="//cdn.example/x.js">', ["x.html: fetches //cdn.example/x.js"], id="a CDN's script"),
        pytest.param('<link href="https://f.example/">', ["x.html: fetches https://f.example/"], id="a CDN's font"),
    ],
)
def test_a_link_of_the_site_leads_to_a_file_and_nothing_is_fetched_from_elsewhere(
    site: ModuleType, markup: str, said: list[str]
) -> None:
    (site.SITE / "x.html").write_text(markup)
    assert list(site.faults()) == said


def test_a_folder_without_a_page_lists_its_files(site: ModuleType) -> None:
    site.list_folders()
    assert '<a href="docs/">' in (site.SITE / "index.html").read_text()
    assert '<a href="a page.html">' in (site.SITE / "docs" / "index.html").read_text()
    assert list(site.faults()) == []
