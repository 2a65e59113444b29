"""What names an image in a registry, and which registries may be asked."""

from __future__ import annotations

import pytest

from gitboot.artifacts.oci import AllowedRegistry, OciReference, origin
from gitboot.errors import RegistryRefused, UsageError
from tests.helpers.cases import for_each

SHA = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "host", "repository", "version"),
    [
        ("oci://registry.test/a:1.2", "registry.test", "a", "1.2"),
        (f"oci://registry.test:5000/a/b_c/d--e@sha256:{SHA}", "registry.test:5000", "a/b_c/d--e", f"sha256:{SHA}"),
        (f"oci://[fd00::1]:5000/a:x@sha256:{SHA}", "[fd00::1]:5000", "a", f"sha256:{SHA}"),
    ],
)
def test_a_reference_has_a_host_a_repository_and_a_version(text: str, host: str, repository: str, version: str) -> None:
    found = OciReference.parse(text)
    assert (found.host, found.repository, found.version) == (host, repository, version)
    assert str(found) == text


@for_each(
    "text",
    [
        *("registry.test/a:1", "oci://registry.test/a", "oci://registry.test:1", "oci://user@registry.test/a:1"),
        *(
            "oci://registry.test/../a:1",
            "oci://registry.test/A:1",
            "oci://registry.test/a?b:1",
            "oci://registry.test/a:ä",
        ),
        *("oci://registry.test//a:1", f"oci://registry.test/a@sha256:{SHA[1:]}", f"oci://registry.test/a@sha512:{SHA}"),
        *("oci://registry.test/a:1/b", "oci://registry.test/a:1\n", f"oci://registry.test/a:{'x' * 129}"),
    ],
)
def test_what_names_no_image_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        OciReference.parse(text)


@for_each(
    ("allowed", "reference", "is_allowed"),
    [
        ("registry.test", "oci://registry.test/any/thing:1", True),
        ("Registry.Test", "oci://registry.TEST/any:1", True),
        ("registry.test", "oci://registry.test:5000/any:1", False),
        ("registry.test:*", "oci://registry.test:5000/any:1", True),
        ("registry.test/os/*", "oci://registry.test/os/a/b:1", True),
        ("registry.test/os/*", "oci://registry.test/other/os/a:1", False),
        ("registry.test/os", "oci://registry.test/os-too:1", False),
        ("*.registry.test", "oci://eu.registry.test/a:1", True),
        ("*.registry.test", "oci://registry.test/a:1", False),
        ("*.registry.test/*", "oci://stranger.test/x.registry.test/a:1", False),
        ("*.registry.test", "oci://registry.test.stranger.test/a:1", False),
    ],
)
def test_only_registries_that_are_named_are_asked(allowed: str, reference: str, is_allowed: bool) -> None:
    found = OciReference.parse(reference)
    if is_allowed:
        assert origin(found, [AllowedRegistry.parse(allowed)]) == f"https://{found.host}"
    else:
        with pytest.raises(RegistryRefused, match="give --registries"):
            origin(found, [AllowedRegistry.parse(allowed)])


def test_a_registry_is_asked_unencrypted_only_where_that_is_said() -> None:
    found = OciReference.parse("oci://registry.test/a:1")
    named = ["https://registry.test/a", "http://registry.test"]
    assert origin(found, [AllowedRegistry.parse(each) for each in named]) == "https://registry.test"
    assert origin(found, [AllowedRegistry.parse(each) for each in reversed(named)]) == "http://registry.test"


@for_each("text", ["*", "*.*", "https://*", "*/os", "", "/os", "user@registry.test", "a b"])
def test_what_would_allow_any_registry_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        AllowedRegistry.parse(text)
