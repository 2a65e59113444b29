"""Warnings about single documents: node labels that kubelet rejects, and placeholder digests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gitboot.fleet.resources import FleetRepository, Id
from gitboot.model.boot_image import BootImage
from gitboot.problems.codes import Code, Problem, Severity
from gitboot.text import count

# Which labels kubelet accepts: kubernetes/staging/src/k8s.io/kubelet/pkg/apis/well_known_labels.go (KubeletLabels,
# KubeletLabelNamespaces) and kubernetes/cmd/kubelet/app/options/options.go (isKubernetesLabel).
_KUBERNETES: Final = ("kubernetes.io", "k8s.io")
_ACCEPTED_NAMESPACES: Final = ("kubelet.kubernetes.io", "node.kubernetes.io")
_ACCEPTED: Final = frozenset(
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
# What people write until they have a digest; the third is that of `gitboot init`.
_PLACEHOLDERS: Final = frozenset({"0" * 64, "f" * 64, "feedc0de" * 8, "deadbeef" * 8})


def rejected_labels(repository: FleetRepository) -> Iterator[Problem]:
    """Yield a warning for each node label of a policy that kubelet rejects."""
    for name, policy in repository.policies.items():
        for key in policy.spec.node_labels:
            if not is_accepted_by_kubelet(key):
                yield repository.problem(
                    Code.KUBELET_LABEL,
                    f"kubelet does not start with the node label {key}",
                    Id("BootPolicy", name),
                    *("spec", "nodeLabels", key),
                    hint=Code.KUBELET_LABEL.hint,
                    severity=Severity.WARNING,
                )


def is_accepted_by_kubelet(key: str) -> bool:
    """Return whether kubelet accepts a label's key in `--node-labels`."""
    namespace, slash, _ = key.partition("/")
    if not slash or not _is_in(namespace, _KUBERNETES):
        return True
    return key in _ACCEPTED or _is_in(namespace, _ACCEPTED_NAMESPACES)


def _is_in(namespace: str, domains: tuple[str, ...]) -> bool:
    return any(namespace == each or namespace.endswith(f".{each}") for each in domains)


def placeholder_digests(repository: FleetRepository) -> Iterator[Problem]:
    """Yield a warning for each image with placeholders in place of digests, at the first one."""
    for name, image in repository.images.items():
        if found := [path for path, digest in _digests(image) if digest in _PLACEHOLDERS]:
            yield repository.problem(
                Code.PLACEHOLDER_DIGEST,
                f"BootImage/{name} has {count(len(found), 'placeholder digest')}",
                Id("BootImage", name),
                *found[0],
                hint=Code.PLACEHOLDER_DIGEST.hint,
                severity=Severity.WARNING,
            )


def _digests(image: BootImage) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield where the digest of each file of an image is written, and the digest."""
    for architecture, artifacts in image.spec.architectures.items():
        of_architecture: tuple[str | int, ...] = ("spec", "architectures", architecture)
        for field in ("kernel", "rootfs", "uki", "iso", "loader"):
            if (artifact := getattr(artifacts, field)) is not None:
                yield (*of_architecture, field, "sha256"), artifact.sha256
        for number, initrd in enumerate(artifacts.initrds):
            yield (*of_architecture, "initrds", number, "sha256"), initrd.sha256
