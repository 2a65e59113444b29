"""The keys of a signed list, made, replaced and lost as docs/how-to/publish-to-a-mirror.md describes."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from gitboot.publish.signed_list import KeyUnreadable, read_list_keys
from tests.helpers.endpoints import FLEET
from tests.helpers.forked_commands import run_forked
from tests.helpers.git_repositories import program
from tests.helpers.signed_lists import SignedSite
from tests.publish.test_signed_list_check import _now

PAGE = (Path(__file__).parents[2] / "docs/how-to/publish-to-a-mirror.md").read_text()
LIST = re.sub(r" *\\\n *", " ", PAGE.partition("\n## Sign the list\n")[2].partition("\n## ")[0])
KEYGEN = "gitboot secret keygen --signed-list /media/offline/list-keys"
COPY = next(iter(re.findall(r"^ +\$ (rsync --archive --exclude root\.key .*)$", LIST, re.MULTILINE)), "")
VERIFY = next(iter(re.findall(r"^ +\$ (gitboot verify-mirror .*--key root\.pub)$", LIST, re.MULTILINE)), "")


class Operator:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.offline, self.host = folder / "media/offline/list-keys", folder / "etc/gitboot/list-keys"
        self.host.parent.mkdir(parents=True)
        self.publisher = SignedSite(folder / "publisher")
        self.publisher.keys = self.host
        self.mirror, self.public = folder / "mirror", folder / "root.pub"

    def run(self, command: str, *more: object) -> None:
        places = {"/media/": f"{self._folder}/media/", "gitboot.example.net:/etc/": f"{self._folder}/etc/"}
        for place, ours in places.items():
            command = command.replace(place, ours)
        words = [*shlex.split(command), *map(str, more)]
        for each in self.host.glob("*"):  # rsync skips what has the size and the time, and operators are no test
            os.utime(each, (0, 0))
        if words[0] == "gitboot":
            done = run_forked(*words[1:])
            assert done.returncode == 0, done.stderr
        else:
            subprocess.run([program(words[0], words[0]), *words[1:]], check=True)

    def renew(self, *more: object) -> None:
        """Make or replace keys, and publish by them."""
        self.run(KEYGEN, *more)
        self.run(COPY)
        self.publish()

    def publish(self) -> None:
        self.publisher.publish(FLEET, made=_now())
        shutil.rmtree(self.mirror, ignore_errors=True)
        shutil.copytree(self.publisher.boot, self.mirror)

    def faults(self) -> set[str]:
        words = VERIFY.replace("https://fra1.example.net", str(self.mirror)).replace("root.pub", str(self.public))
        done = run_forked(*shlex.split(words)[1:], "-o", "json")
        return {each["fault"] for each in json.loads(done.stdout)["items"]}


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    found = Operator(tmp_path)
    assert LIST.count(KEYGEN) >= 2 and VERIFY
    found.renew()
    shutil.copy(found.offline / "root.pub", found.public)
    return found


def test_a_list_is_signed_as_the_page_describes_and_the_root_key_stays_where_it_was_made(operator: Operator) -> None:
    assert (operator.offline / "root.key").exists() and not (operator.host / "root.key").exists()
    assert operator.faults() == set()


def test_a_stolen_or_lost_publication_key_is_replaced_and_mirrors_do_nothing(operator: Operator) -> None:
    stolen = shutil.copytree(operator.host, operator.host.with_name("stolen"))
    (operator.host / "publication.key").unlink()
    with pytest.raises(KeyUnreadable):
        read_list_keys(operator.host)
    operator.renew()
    assert operator.faults() == set()
    roots = [each.name for each in operator.mirror.glob("signed/*.root.json")]
    assert sorted(roots) == ["1.root.json", "2.root.json"]
    thief = SignedSite(operator.host.with_name("thief"))
    thief.keys = stolen
    thief.publish(FLEET, made=_now())
    for each in thief.boot.glob("signed/*.json"):
        shutil.copy(each, operator.mirror / "signed")
    assert operator.faults() == {"BadSignature"}, "a reader that has the new root rejects the stolen key"


def test_the_root_key_is_replaced_and_mirrors_do_nothing(operator: Operator) -> None:
    new = operator.offline.with_name("new.key")
    operator.renew("--new-root-key", new)
    assert operator.faults() == set(), "by the root.pub of before"
    shutil.copy(operator.offline / "root.pub", operator.public)
    assert operator.faults() == set(), "by the new one"
    operator.renew("--root-key", new)
    assert operator.faults() == set()


@pytest.mark.parametrize("lost", ["the root key", "both"])
def test_after_a_lost_root_key_new_keys_need_a_new_public_key_at_each_mirror(operator: Operator, lost: str) -> None:
    operator.renew()
    (operator.offline / "root.key").unlink()
    if lost == "both":
        shutil.rmtree(operator.host)
    assert operator.faults() == set(), "the list stays as it is"
    shutil.rmtree(operator.offline)  # a new folder
    shutil.rmtree(operator.host, ignore_errors=True)
    operator.renew()
    assert operator.faults() == {"BadSignature"}
    shutil.copy(operator.offline / "root.pub", operator.public)
    assert operator.faults() == set()


def test_after_its_keys_are_removed_a_list_becomes_unsigned(operator: Operator) -> None:
    operator.publisher.keys = None
    operator.publish()
    assert operator.faults() == {"Unsigned"}
