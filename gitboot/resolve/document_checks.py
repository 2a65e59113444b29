"""Document checks: find settings in a fleet's documents that cannot work, whichever servers use them."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network
from typing import Final
from urllib.parse import urlsplit

from gitboot.fleet.documents import FleetRepository, Id
from gitboot.model.fleet import UnknownProfile
from gitboot.problems import Code, Problem, Severity
from gitboot.text import format_count

# A file system accepts names of at most 255 bytes, and the mirror program writes the file .NAME.json.gitboot.
_MAX_SERVER_NAME: Final = 255 - len("..json.gitboot")
# The node labels that kubelet accepts. Sources: kubernetes/staging/src/k8s.io/kubelet/pkg/apis/well_known_labels.go
# (KubeletLabels, KubeletLabelNamespaces) and kubernetes/cmd/kubelet/app/options/options.go (isKubernetesLabel).
_KUBERNETES_DOMAINS: Final = ("kubernetes.io", "k8s.io")
_ACCEPTED_NAMESPACES: Final = ("kubelet.kubernetes.io", "node.kubernetes.io")
_ACCEPTED_LABELS: Final = frozenset(
    {
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "beta.kubernetes.io/os",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "kubernetes.io/arch",
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "node.kubernetes.io/instance-type",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
    }
)
# Digests that authors use as placeholders. `gitboot init` writes the third one.
_PLACEHOLDER_DIGESTS: Final = frozenset({"0" * 64, "f" * 64, "feedc0de" * 8, "deadbeef" * 8})


def find_long_server_names(repository: FleetRepository) -> Iterator[Problem]:
    """Yield a problem for each server whose name is too long for the names of its published files."""
    for name in repository.servers:
        if len(name) > _MAX_SERVER_NAME:
            yield repository.build_problem(
                Code.NAME,
                f"the name of this server has {len(name)} characters, which is too long for the names of its files",
                Id("Server", name),
                *("metadata", "name"),
                hint=f"use at most {_MAX_SERVER_NAME} characters",
            )


def find_unsupported_settings(repository: FleetRepository) -> Iterator[Problem]:
    """Yield a problem for each of the fleet's settings that this version of gitboot does not support."""
    fleet = repository.fleet
    if isinstance(unknown := fleet.spec.unknown_servers, UnknownProfile):
        # None if the Fleet is missing, which makes the commit invalid
        profile = repository.profiles.get(unknown.profile)
        if profile is not None and (profile.spec.templates.ipxe or profile.spec.templates.grub):
            yield repository.build_problem(
                Code.NOT_YET,
                "this version of gitboot does not support boot script templates for unknown machines",
                Id("Fleet", fleet.metadata.name),
                *("spec", "unknownServers", "profile"),
                hint="choose a profile without templates.ipxe and templates.grub",
            )


def find_missing_ipv6_clients(repository: FleetRepository) -> Iterator[Problem]:
    """Yield a warning if machines would fetch from an IPv6 address, but no network in `clients` is an IPv6 network.

    The function does not resolve host names, because the result must depend only on the commit.
    """
    spec = repository.fleet.spec
    clients = spec.provisioning.clients
    if not clients or any(ip_network(network).version == 6 for network in clients):
        return
    urls = [spec.base_url, spec.endpoint]
    for site in spec.sites:
        urls += [site.base_url, site.endpoint]
    ipv6_url = next((url for url in urls if url is not None and ":" in (urlsplit(url).hostname or "")), None)
    if ipv6_url is not None:
        yield repository.build_problem(
            Code.NO_IPV6_CLIENTS,
            f"machines fetch from {ipv6_url}, but `clients` contains no IPv6 networks, so machines that use IPv6 boot "
            "from their disks",
            Id("Fleet", repository.fleet.metadata.name),
            *("spec", "provisioning", "clients"),
            severity=Severity.WARNING,
        )


def find_rejected_labels(repository: FleetRepository) -> Iterator[Problem]:
    """Yield a warning for each node label in a policy that kubelet would reject."""
    for name, policy in repository.policies.items():
        for key in policy.spec.node_labels:
            if not is_accepted_by_kubelet(key):
                yield repository.build_problem(
                    Code.KUBELET_LABEL,
                    f"the kubelet rejects the node label {key} and does not start",
                    Id("BootPolicy", name),
                    *("spec", "nodeLabels", key),
                    hint=Code.KUBELET_LABEL.hint,
                    severity=Severity.WARNING,
                )


def is_accepted_by_kubelet(key: str) -> bool:
    """Return whether kubelet accepts a label with this key in `--node-labels`."""
    namespace, slash, _ = key.partition("/")
    if not slash or not _is_in_domain(namespace, _KUBERNETES_DOMAINS):
        return True
    return key in _ACCEPTED_LABELS or _is_in_domain(namespace, _ACCEPTED_NAMESPACES)


def _is_in_domain(namespace: str, domains: tuple[str, ...]) -> bool:
    return any(namespace == domain or namespace.endswith(f".{domain}") for domain in domains)


def find_placeholder_digests(repository: FleetRepository) -> Iterator[Problem]:
    """Yield a warning for each image with placeholder digests. The warning points to the first placeholder."""
    for name, image in repository.images.items():
        placeholders = [
            ("spec", "architectures", architecture, *path, "sha256")
            for architecture, artifacts in image.spec.architectures.items()
            for path, artifact in artifacts.files()
            if artifact.sha256 in _PLACEHOLDER_DIGESTS
        ]
        if placeholders:
            yield repository.build_problem(
                Code.PLACEHOLDER_DIGEST,
                f"BootImage/{name} has {format_count(len(placeholders), 'placeholder digest')}",
                Id("BootImage", name),
                *placeholders[0],
                hint=Code.PLACEHOLDER_DIGEST.hint,
                severity=Severity.WARNING,
            )
