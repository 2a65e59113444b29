"""The files in packaging/ and the release workflow, as far as they can be checked without a build."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import click
import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement

from gitboot import __version__
from gitboot.cli.main import cli
from tests.helpers.git_repositories import program

ROOT: Final = Path(__file__).parents[2]
KUBERNETES: Final = ROOT / "packaging" / "kubernetes"
RESOURCES: Final = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
OLDEST, NEWEST = "1.29", "1.34"  # of Kubernetes: ReadWriteOncePod is of 1.29


def resources() -> list[dict[str, Any]]:
    return [each for name in RESOURCES for each in yaml.safe_load_all((KUBERNETES / name).read_text())]


def pods() -> list[dict[str, Any]]:
    return [each["spec"]["template"]["spec"] for each in resources() if each["kind"] == "StatefulSet"]


def options(name: str) -> set[str]:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_kubernetes_accepts_each_resource(version: str) -> None:
    for each in resources():
        kubernetes_validate.validate(each, version, strict=True)
    wrong = {**resources()[-1], "spec": {"podSelector": "all"}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


def test_kustomize_combines_them_into_one_stream() -> None:
    made = subprocess.run(
        [program("kubectl", "kubernetes-client"), "kustomize", KUBERNETES], capture_output=True, text=True, check=True
    )
    found = list(yaml.safe_load_all(made.stdout))
    assert sorted(each["kind"] for each in found) == sorted([*(each["kind"] for each in resources()), "ConfigMap"])
    assert f"image: gitboot:{__version__}\n" in made.stdout
    assert {each["metadata"].get("namespace", "gitboot") for each in found} == {"gitboot"}


def test_pods_have_no_privilege_that_they_do_not_need() -> None:
    """Pods meet the `restricted` level of Kubernetes, and their root is read-only."""
    (pod,) = pods()
    assert pod["securityContext"]["runAsNonRoot"] is True and pod["securityContext"]["runAsUser"] == 65532
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_containers_start_with_existing_options() -> None:
    (pod,) = pods()
    for container in pod["containers"]:
        command, *arguments = container["args"]
        known = options(command)
        assert {argument for argument in arguments if argument.startswith("--")} <= known
        mounted = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert [path for path in arguments if path.startswith("/")] == [
            path for path in arguments if any(path == mount or path.startswith(f"{mount}/") for mount in mounted)
        ]


@pytest.mark.parametrize("name", ["run", "serve"])
@pytest.mark.parametrize("folder", ["packaging/etc", "packaging/kubernetes"])
def test_a_configuration_has_only_existing_settings(name: str, folder: str) -> None:
    text = re.sub(r"^# (?=[\w-]+ = )", "", (ROOT / folder / f"{name}.toml").read_text(), flags=re.MULTILINE)
    found = tomllib.loads(text).keys()
    assert found and found <= {option.removeprefix("--") for option in options(name)}


@pytest.mark.parametrize(
    "path",
    ["gitboot/cli/commands/requirements.txt", "packaging/python/build.txt", "packaging/python/release.txt"],
)
def test_each_locked_library_has_its_digests(path: str) -> None:
    """`scripts/lock` writes these files; what gitboot requires of each library is what is locked."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = {
        "build": project["build-system"]["requires"],
        "release": project["project"]["optional-dependencies"]["docs"],
        "requirements": [*project["project"]["dependencies"], *project["project"]["optional-dependencies"]["s3"]],
    }[Path(path).stem]
    text = (ROOT / path).read_text()
    locked = dict(re.findall(r"^([\w.-]+)==([\w.]+)", text, re.MULTILINE))
    for requirement in map(Requirement, wanted):
        assert locked[requirement.name.lower()] in requirement.specifier, f"{requirement}: run scripts/lock"
    blocks = re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]
    assert blocks and all("--hash=sha256:" in block for block in blocks)


def test_the_release_workflow_is_valid_for_github() -> None:
    workflow = ROOT / ".github" / "workflows" / "release.yml"
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run([*check, str(workflow)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_release_workflow_runs_the_command_that_everybody_runs() -> None:
    steps = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]["build"]["steps"]
    assert [step["run"] for step in steps if "make" in step.get("run", "").split()[:1]] == ["make release"]
    # Without what an outer make passes on, as if somebody had typed the command.
    typed = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    asked = ["make", "--dry-run", "release"]
    dry = subprocess.run(asked, cwd=ROOT, env=typed, capture_output=True, text=True, check=True)
    commands = dry.stdout.splitlines()
    assert commands[-1] == "scripts/release"
    assert all(os.access(ROOT / command.split()[0], os.X_OK) for command in commands)
