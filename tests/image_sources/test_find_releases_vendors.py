"""The sources that gitboot ships: each document is valid, complete, and trusts only keys that gitboot ships."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gitboot.artifacts.signatures import SHIPPED_KEYS
from gitboot.fleet.documents import parse_blob
from gitboot.image_sources.find_releases import list_vendor_sources, load_vendor_source, read_vendor_document
from gitboot.image_sources.index_formats import FileRole
from gitboot.model.image_source import BUILT_IN_SOURCES, fill_template
from tests.helpers.fleets import SHA, decision, fleet, policy, profile, server

FOLDER = Path(__file__).parents[2] / "gitboot" / "image_sources" / "vendors"


def test_each_document_is_a_built_in_source() -> None:
    assert sorted(BUILT_IN_SOURCES) == list(BUILT_IN_SOURCES)
    assert sorted(path.stem for path in FOLDER.iterdir()) == list(BUILT_IN_SOURCES)
    assert [source.metadata.name for source in list_vendor_sources()] == list(BUILT_IN_SOURCES)


@pytest.mark.parametrize("name", BUILT_IN_SOURCES)
def test_each_document_can_be_copied_to_a_fleet(name: str) -> None:
    parsed = parse_blob(read_vendor_document(name), f"sources/{name}.yaml")
    assert (parsed.problems, len(parsed.resources)) == ((), 1)


@pytest.mark.parametrize("name", BUILT_IN_SOURCES)
def test_each_document_has_a_description_for_people_and_versioned_https_urls(name: str) -> None:
    spec = load_vendor_source(name).spec
    assert spec.description is not None
    assert spec.releases.url.startswith("https://")
    text = read_vendor_document(name).decode()
    assert text.startswith("# ")
    for _, file in spec.files.list_files():
        url = (file.url or "{version}").replace("{base}", "".join(spec.base_urls.values()))
        assert "{version}" in url and "latest" not in url and "current" not in url


@pytest.mark.parametrize("name", BUILT_IN_SOURCES)
def test_gitboot_ships_each_key_of_a_built_in_source(name: str) -> None:
    shipped = set(re.findall("`([0-9A-F]{40})`", (SHIPPED_KEYS / "README.md").read_text()))
    assert shipped >= set(load_vendor_source(name).spec.keys)


@pytest.mark.parametrize("name", sorted({*BUILT_IN_SOURCES} - {"opensuse-leap"}))  # an ISO has no arguments
def test_a_server_boots_with_the_settings_of_each_source(name: str) -> None:
    spec = load_vendor_source(name).spec
    artifact = f"{{url: 'https://vendor.test/file', sha256: {SHA}}}"
    roles = {FileRole(str(path[0])) for path, _ in spec.files.list_files()}
    files = ", ".join(f"{role}: {f'[{artifact}]' if role is FileRole.INITRD else artifact}" for role in sorted(roles))
    values = {"version": "9.6", "major": "9", "minor": "6", "channel": "stable"}
    arguments = ", ".join(f"'{fill_template(each, values)}'" for each in spec.image.kernel_arguments)
    image = (
        "apiVersion: gitboot.dev/v1alpha1\nkind: BootImage\nmetadata: {name: image-1}\n"
        f"spec: {{version: '1', userData: {spec.image.user_data}, configFrom: {spec.image.config_from}, "
        f"kernelArguments: [{arguments}], architectures: {{x86_64: {{{files}}}}}}}\n"
    )
    documents = fleet(), image, profile("web", "image-1"), policy("web", "All"), server("web01", "role: web")
    made = decision("web01", *documents)
    assert made.policy is not None and made.policy.boot is not None
    found = made.policy.boot.kernel_arguments
    assert len(found) >= len(spec.image.kernel_arguments)
    assert not [each for each in found if "{" in each or "}" in each]
