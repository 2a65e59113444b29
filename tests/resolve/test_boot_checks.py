"""Warnings about single documents: node labels that kubelet rejects, and placeholder digests."""

from __future__ import annotations

from hashlib import sha256

from gitboot.evaluator.evaluation import Evaluator
from gitboot.problems import Problem, Severity
from gitboot.resolve.boot_checks import is_accepted_by_kubelet
from tests.helpers.cases import for_each
from tests.helpers.fleets import SEED, SHA, decided, image, policy, server, snapshot


@for_each(
    ("key", "accepted"),
    [
        ("pool", True),
        ("example.net/pool", True),
        ("mykubernetes.io/pool", True),  # another domain
        ("node-role.kubernetes.io/worker", False),
        ("node-role.kubernetes.io/control-plane", False),
        ("node-restriction.kubernetes.io/pool", False),
        ("kubernetes.io/role", False),
        ("kubernetes.io/hostname", True),
        ("topology.kubernetes.io/zone", True),
        ("topology.kubernetes.io/rack", False),
        ("node.kubernetes.io/pool", True),
        ("gpu.node.kubernetes.io/model", True),
        ("kubelet.kubernetes.io/pool", True),
        ("k8s.io/pool", False),
        ("cluster.k8s.io/pool", False),
    ],
)
def test_finding_r15_a_node_label_that_kubelet_rejects_is_a_warning(key: str, accepted: bool) -> None:
    assert is_accepted_by_kubelet(key) is accepted
    found = decided(*SEED[:-1], files={"pool.yaml": policy("web", "All", f"nodeLabels: {{a: b, {key}: ''}}")})
    said = [(each.code, each.path, each.severity) for each in found.warnings]
    assert said == ([] if accepted else [("GB2028", "pool.yaml", Severity.WARNING)])
    assert all(each.message == f"kubelet does not start with the node label {key}" for each in found.warnings)


def _of_image(digest: str, artifacts: str = "kernel, initrd, rootfs") -> tuple[Problem, ...]:
    return decided(*SEED, files={"image.yaml": image("rescue-1", artifacts=artifacts).replace(SHA, digest)}).warnings


@for_each(
    ("digest", "is_placeholder"),
    [
        ("feedc0de" * 8, True),
        ("0" * 64, True),
        ("f" * 64, True),
        ("deadbeef" * 8, True),
        (sha256(b"a kernel").hexdigest(), False),
        (sha256(b"").hexdigest(), False),
    ],
)
def test_finding_r11_a_placeholder_in_place_of_a_digest_is_a_warning(digest: str, is_placeholder: bool) -> None:
    found = [(each.code, each.message, each.line) for each in _of_image(digest)]
    assert found == ([("GB2029", "BootImage/rescue-1 has 3 placeholder digests", 4)] if is_placeholder else [])


def test_the_warnings_stay_if_only_servers_change() -> None:
    pool = policy("web", "All", "nodeLabels: {node-role.kubernetes.io/web: ''}")
    trees = [
        snapshot(*SEED[:-1], pool, server("db0", spec=f"provision: {each}"), revision=f"{each}") for each in (1, 2)
    ]
    evaluator = Evaluator(lambda revision, previous: next(each for each in trees if each.revision == revision))
    for number, base in ((0, None), (1, trees[0].revision)):
        found = evaluator.evaluate(trees[number].revision, base)
        assert [each.code for each in found.head.decided.decisions.warnings] == ["GB2028"]
    assert found.servers == {"db0"}
