"""What cloud-init would ignore is rejected, and what it takes is accepted: compared with Debian's cloud-init."""

from __future__ import annotations

import base64
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gitboot.model.scalars import Malformed
from gitboot.resolve.cloud_init import read_cloud_configs
from tests.helpers.cases import for_each
from tests.helpers.debian_packages import unpack

_PACKAGES = ("cloud-init", "python3-configobj", "python3-json-pointer", "python3-jsonpatch", "python3-six")


def mime(*parts: tuple[str, str], headers: str = "") -> str:
    """A multipart message of parts with their types."""
    body = "".join(f"--b\nContent-Type: {kind}\n{headers}\n{text}\n" for kind, text in parts)
    return f'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="b"\n\n{body}--b--\n'


def packed(text: str) -> str:
    """A part that is a gzip file in base64."""
    data = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()
    head = "Content-Type: application/gzip\nContent-Transfer-Encoding: base64\n"
    return f'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="b"\n\n--b\n{head}\n{data}\n--b--\n'


HANDLER = "#part-handler\ndef list_types():\n    return ['text/own']\ndef handle_part(*_):\n    pass\n"
CONFIG = "#cloud-config\nhostname: a\n"
PATCH = '#cloud-config-jsonp\n[{"op": "add", "path": "/hostname", "value": "a"}]\n'
ACCEPTED = {
    "a mapping": CONFIG,
    "a header in other letters, after blank lines": "\n\n  #Cloud-Config\nhostname: a\n",
    "a header with a comment": "#cloud-config # of web servers\nhostname: a\n",
    "a mapping in flow style": "#cloud-config\n{hostname: a, packages: [b, c]}\n",
    "a tab in quotes": '#cloud-config\nhostname: "a\tb"\n',
    "a tab in a block": "#cloud-config\nruncmd:\n- |\n  cat <<-X\n  \ta\n  \tX\n",
    "a key that is there twice": "#cloud-config\nhostname: a\nhostname: b\n",
    "an anchor and a merge key": "#cloud-config\nx: &a {b: c}\ny:\n  <<: *a\n",
    "a binary value": "#cloud-config\ncontent: !!binary aGVsbG8=\n",
    "an end of the document": "#cloud-config\n---\nhostname: a\n...\n",
    "letters that are not ASCII": "#cloud-config\nhostname: münchen\n",
    "CRLF": "#cloud-config\r\nhostname: a\r\n",
    "nothing": "",
    "a script": "#!/bin/sh\necho\n",
    "a boothook": "#cloud-boothook\n#!/bin/sh\necho\n",
    "an include": "#include\nhttp://192.0.2.1/a\n# a comment\n",
    "an include in one line": "#include http://192.0.2.1/a\n",
    "an include that is fetched once": "#include-once\nfile:///etc/passwd\n",
    "a part handler": HANDLER,
    "a JSON patch": PATCH,
    "an archive": "#cloud-config-archive\n- type: text/cloud-config\n  content: |\n    hostname: a\n- |\n  #!/bin/sh\n",
    "an archive whose text is a cloud-config": "#cloud-config-archive\n- 'hostname: a'\n",
    "an empty archive": "#cloud-config-archive\n[]\n",
    "a template": "## template: jinja\n#cloud-config\nhostname: {{ v1.local_hostname }}\n",
    "a template of a script": "## template: jinja\n#!/bin/sh\necho {{ v1.local_hostname }}\n",
    "a template that begins with a statement": "## template: jinja\n{% set a = 1 %}\n#cloud-config\nhostname: a\n",
    "a template with do": "## template: jinja\n#cloud-config\n{% do [] %}\nhostname: a\n",
    "parts": mime(("text/cloud-config", CONFIG), ("text/x-shellscript", "#!/bin/sh\n"), ("text/cloud-boothook", "a\n")),
    "a part whose text tells its type": mime(("text/plain", CONFIG)),
    "a part that is a script by its frequency": mime(("text/x-shellscript-per-boot", "#!/bin/sh\n")),
    "a part that includes": mime(("text/x-include-url", "http://192.0.2.1/a\n")),
    "a part for a part handler": mime(("text/part-handler", HANDLER), ("text/own", "x\n")),
    "a compressed part": packed(CONFIG),
    "a merge type": "#cloud-config\nmerge_how: dict(recurse_array,no_replace)+list(append)+str()\nhostname: a\n",
    "a merge type as a list": "#cloud-config\nmerge_how: [{name: list, settings: [append]}, [dict, replace]]\na: b\n",
    "merge_type": "#cloud-config\nmerge_type: 'list(append)+dict(recurse_array)+str()'\na: b\n",
    "a merge type of a part": mime(("text/cloud-config", CONFIG), headers="Merge-Type: list(append)+dict()\n"),
}
REJECTED = {
    "a tab as indentation": "#cloud-config\nusers:\n\t- a\n",
    "a tab behind a key": "#cloud-config\nhostname:\ta\n",
    "a list that is open": "#cloud-config\npackages: [curl\nhostname: a\n",
    "a mapping that is open": "#cloud-config\nx: {a: b\n",
    "a quote that is open": '#cloud-config\nhostname: "a\n',
    "wrong indentation": "#cloud-config\na: b\n  c: d\n",
    "a list for a mapping": "#cloud-config\n- a\n",
    "a text for a mapping": "#cloud-config\nhostname a\n",
    "two documents": "#cloud-config\na: b\n---\nc: d\n",
    "a tag that is not known": "#cloud-config\na: !vault b\n",
    "an anchor that is not there": "#cloud-config\na: *b\n",
    "a date that does not exist": "#cloud-config\na: 2026-13-45\n",
    "a key that is a list": "#cloud-config\n? [a]\n: b\n",
    "a percent sign": "#cloud-config\na: %b\n",
    "an at sign": "#cloud-config\na: @b\n",
    "a control character": "#cloud-config\na: \x01\n",
    "a block whose header is a comment": "#cloud-config\na: |#\n  b\n",
    "a question mark before a bracket": "#cloud-config\na: [b?]\n",
    "no header": "hostname: a\n",
    "a wrong header": "#cloud-confg\nhostname: a\n",
    "a comment before the header": "# web\n#cloud-config\nhostname: a\n",
    "a space for nothing": " \n",
    "multipart without MIME-Version": mime(("text/cloud-config", CONFIG)).partition("\n")[2],
    "a template of another language": "## template: mako\n#cloud-config\nhostname: a\n",
    "a template that is not in the first line": "\n## template: jinja\n#cloud-config\nhostname: a\n",
    "a template that cannot be read": "## template: jinja\n#cloud-config\n{% if x %}\na: b\n",
    "a template with a filter that is not there": "## template: jinja\n#cloud-config\na: {{ 1 | nothing }}\n",
    "a template that includes": "## template: jinja\n#cloud-config\n{% include 'a' %}\n",
    "a template of nothing that is known": "## template: jinja\nhostname: a\n",
    "a template that is broken YAML": "## template: jinja\n#cloud-config\na: [b\n",
    "a compressed part that is not ASCII": packed("#cloud-config\nhostname: a\ngecos: é\n"),
    "a part of a type that is not known": mime(("text/own", "x\n")),
    "a part without a known beginning": mime(("text/plain", "hostname: a\n")),
    "a part that is broken YAML": mime(("text/cloud-config", CONFIG), ("text/cloud-config", "a: [b\n")),
    "a type before its part handler": mime(("text/own", "x\n"), ("text/part-handler", HANDLER)),
    "a JSON patch that is not JSON": "#cloud-config-jsonp\n[{]\n",
    "a JSON patch that is no operation": '#cloud-config-jsonp\n[{"op": "put", "path": "/a", "value": 1}]\n',
    "an archive that is a mapping": "#cloud-config-archive\na: b\n",
    "an archive that is broken YAML": "#cloud-config-archive\n- [a\n",
    "an archive with broken YAML": "#cloud-config-archive\n- content: 'a: [b'\n",
    "an archive with a type that is not known": "#cloud-config-archive\n- {type: text/own, content: a}\n",
    "an archive with a type without a slash": "#cloud-config-archive\n- {type: own, content: a}\n",
    "an archive with content that is no text": "#cloud-config-archive\n- content: {hostname: a}\n",
    "a merge type that cannot be read": "#cloud-config\nmerge_how: list\nhostname: a\n",
    "a merger that is not known": "#cloud-config\nmerge_how: tuple()\nhostname: a\n",
    "a merge type as a list without settings": "#cloud-config\nmerge_how: [{name: list}]\na: b\n",
    "a merge type of a part that is not known": mime(("text/cloud-config", CONFIG), headers="X-Merge-Type: append\n"),
}


def is_accepted(text: str) -> bool:
    try:
        read_cloud_configs(text)
    except Malformed:
        return False
    return True


def test_finding_p10_user_data_is_accepted_if_cloud_init_takes_it() -> None:
    assert [case for case, text in ACCEPTED.items() if not is_accepted(text)] == []
    assert [case for case, text in REJECTED.items() if is_accepted(text)] == []


def test_finding_p10_cloud_init_agrees(tmp_path: Path) -> None:
    documents = [*ACCEPTED.values(), *REJECTED.values()]
    script = Path(__file__).with_name("cloud_init_verdicts.py")
    roots = (unpack(package) / "usr/lib/python3/dist-packages" for package in _PACKAGES)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, roots))}
    command = [sys.executable, "-P", str(script), str(tmp_path)]
    done = subprocess.run(
        command, env=environment, input=json.dumps(documents), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    verdicts = dict(zip((*ACCEPTED, *REJECTED), json.loads(done.stdout), strict=True))
    assert {case: found for case, found in verdicts.items() if (found == []) != (case in ACCEPTED)} == {}


def test_finding_p10_an_empty_cloud_config_loses_nothing() -> None:
    """cloud-init reports one, but there is nothing in it that it could ignore."""
    for text in ("#cloud-config\n", "## template: jinja\n", "## template: jinja\n \n"):
        assert read_cloud_configs(text).configs == ()


@for_each(
    ("text", "line", "message"),
    [
        ("#cloud-config\na: b\nc:\td\n", 3, "line 3 of the cloud-config"),
        ("#cloud-config\na: b\npackages: [curl\nhostname: a\n", 3, "line 3 of the cloud-config"),
        ("hostname: a\n", 1, "cloud-init ignores"),
        (mime(("text/cloud-config", "a: b\nc: [d\n")), 8, "line 8 of the cloud-config in part 1"),
        ("## template: jinja\n#cloud-config\na: b\n{% endif %}\n", 4, "cloud-init cannot read"),
    ],
)
def test_finding_p10_a_fault_has_its_line(text: str, line: int, message: str) -> None:
    with pytest.raises(Malformed, match=message) as error:
        read_cloud_configs(text)
    assert error.value.at == (line,)


def test_finding_p10_what_a_machine_adds_is_not_known() -> None:
    for text in (ACCEPTED["an include"], HANDLER, ACCEPTED["a template"], PATCH):
        assert not read_cloud_configs(text).is_complete
    assert read_cloud_configs(CONFIG) == (({"hostname": "a"},), True)


@for_each(
    "text",
    [
        "#cloud-config\n" + "[" * 100_000,
        "#cloud-config\n" + "- " * 100_000,
        "#cloud-config\n" + "{a: " * 5_000 + "}" * 5_000,
        packed("#cloud-config\n" + " " * 50_000_000),
        "MIME-Version: 1.0\n"
        + "".join(f"Content-Type: multipart/mixed; boundary=b{each}\n\n--b{each}\n" for each in range(1500)),
    ],
)
def test_finding_p10_a_hostile_document_ends_in_a_fault(text: str) -> None:
    assert not is_accepted(text)
