"""Each format of user data is checked by its own rules, at the line of the template."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from unittest.mock import Mock

import pytest

from gitboot.errors import InvalidRepository
from gitboot.model.scalars import Malformed
from gitboot.resolve import user_data_formats
from gitboot.resolve.user_data_formats import check_extra_file, check_user_data
from tests.helpers.cases import for_each
from tests.helpers.fleets import decided, fleet, image, policy, profile, server

HEAD = "#cloud-config\nautoinstall:\n  version: 1\n"
IDENTITY = f"{HEAD}  identity: {{username: a, hostname: b, password: c"
IDENTITY_PART = "autoinstall: {identity: {username: a}}"
NETPLAN = "version: 2\nethernets:\n"
NETPLAN_EXAMPLE = f"""{NETPLAN}  a:
    addresses: [192.0.2.1/24, 192.0.2.2/24: {{label: a}}, "2001:db8::1/64"]
    dhcp4: "no"
    match: {{macaddress: "52:54:00:00:00:01"}}
    mtu: "9000"
    nameservers: {{addresses: [192.0.2.3], search: [a.test]}}
    routes: [{{to: default, via: 192.0.2.4}}]
bonds: {{b: {{interfaces: [a, 1], parameters: {{mode: 802.3ad}}}}}}
vlans: {{c: {{id: 5, link: b}}}}
"""
MACHINE = "version: v1alpha1\nmachine:\n  type: worker\n"
HOSTNAME = "apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: a\n"


def fault(format: str, text: str) -> str | None:
    try:
        check_user_data(format, text)
    except Malformed as error:
        return str(error)
    return None


@for_each(
    ("text", "message"),
    [
        (HEAD, None),
        (f"{HEAD}  late-commands: [reboot, [curl, x]]\n  unknown: 1\n", None),
        (f"{HEAD}  proxy: null\n  shutdown: poweroff\n  updates: all\n", None),
        # the installer ignores these keys without a value
        (f"{HEAD}  apt:\n  codecs:\n  drivers:\n  identity:\n  keyboard:\n  shutdown:\n  timezone:\n", None),
        (f"{HEAD}  kernel:\n  kernel-crash-dumps:\n  source:\n  ssh:\n  storage:\n  user-data:\n", None),
        (f"{HEAD}  oem:\n", "autoinstall.oem in the rendered user data must be a mapping, found nothing"),
        (f"{HEAD}  packages:\n", "autoinstall.packages in the rendered user data must be a list, found nothing"),
        (f"{HEAD}  updates:\n", "autoinstall.updates in the rendered user data must be all or security, found nothing"),
        (f"{HEAD}  packages: [a\n", "is not YAML"),
        (f"{HEAD}\tpackages: []\n", "is not YAML"),
        (f"{HEAD}hostname: a\npackages: [b]\n", None),
        ("#cloud-config\nhostname: a\n", "is not an autoinstall configuration"),
        ("#cloud-config\nversion: 1\nidentity: {}\n", "identity outside `autoinstall`"),
        (f"{HEAD}late-commands: [reboot]\n", "late-commands outside `autoinstall`"),
        ("#cloud-config\nx:\n  autoinstall: {version: 1}\n", "is not an autoinstall configuration"),
        ("#cloud-config\nautoinstall: yes\n", "not a mapping"),
        ("#cloud-config\nautoinstall:\nversion: 1\n", "not a mapping"),
        ("#cloud-config\nautoinstall: {}\n", "autoinstall in the rendered user data has no version"),
        (
            "#cloud-config\nautoinstall: {version: 2}\n",
            "autoinstall.version in the rendered user data must be 1, found",
        ),
        (
            "#cloud-config\nautoinstall: {version: '1'}\n",
            "autoinstall.version in the rendered user data must be 1, found",
        ),
        (
            "#cloud-config\nautoinstall: {version: true}\n",
            "autoinstall.version in the rendered user data must be 1, found",
        ),
        (f"{HEAD}  late-commands: reboot\n", "autoinstall.late-commands in the rendered user data must be a list"),
        (
            f"{HEAD}  late-commands:\n  - echo a: b\n",
            "late-commands[0] in the rendered user data must be a string or a list",
        ),
        (f"{HEAD}  late-commands: [[a, 1]]\n", "late-commands[0][1] in the rendered user data must be a string, found"),
        (f"{HEAD}  shutdown: halt\n", "must be poweroff or reboot"),
        (f"{HEAD}  storage: lvm\n", "must be a mapping"),
        # cases of Subiquity's own schemas
        (
            f"{HEAD}  identity: {{username: a, hostname: b}}\n",
            "autoinstall.identity in the rendered user data has no password",
        ),
        (f"{HEAD}  identity: {{username: a, hostname: b, password: c}}\n", None),
        (
            f"{HEAD}  identity: {{}}\n  user-data: {{users: []}}\n",
            "autoinstall.identity in the rendered user data has no username",
        ),
        (
            f"{HEAD}  keyboard: {{variant: nodeadkeys}}\n",
            "autoinstall.keyboard in the rendered user data has no layout",
        ),
        (f"{HEAD}  ssh: {{authorized-keys: [a], allow-pw: no, install-server: yes}}\n", None),
        (
            f"{HEAD}  ssh: {{authorized-keys: a}}\n",
            "autoinstall.ssh.authorized-keys in the rendered user data must be a list",
        ),
        (
            f"{HEAD}  ssh: {{authorized-keys: [1]}}\n",
            "autoinstall.ssh.authorized-keys[0] in the rendered user data must be a string",
        ),
        (
            f"{HEAD}  ssh: {{install-server: 'yes'}}\n",
            "autoinstall.ssh.install-server in the rendered user data must be true",
        ),
        (
            f"{HEAD}  identity: {{username: a, hostname: b, password: 1}}\n",
            "autoinstall.identity.password in the rendered",
        ),
        (
            f"{HEAD}  drivers: {{install: 'no'}}\n",
            "autoinstall.drivers.install in the rendered user data must be true or",
        ),
        (f"{HEAD}  packages: [a, 1]\n", "autoinstall.packages[1] in the rendered user data must be a string"),
        (f"{HEAD}  oem: {{install: auto}}\n", None),
        (
            f"{HEAD}  oem: {{install: always}}\n",
            "autoinstall.oem.install in the rendered user data must be true or false or auto, found",
        ),
        (f"{HEAD}  kernel-crash-dumps: {{enabled: 'on'}}\n", "autoinstall.kernel-crash-dumps.enabled in the rendered"),
        (f"{HEAD}  kernel: {{package: a}}\n  snaps: [{{name: b, classic: true}}]\n", None),
        (
            f"{HEAD}  kernel: {{package: a, flavor: b}}\n",
            "autoinstall.kernel in the rendered user data must have either",
        ),
        (f"{HEAD}  snaps: [etcd]\n", "autoinstall.snaps[0] in the rendered user data must be a mapping, found"),
        (f"{HEAD}  snaps: [{{channel: edge}}]\n", "autoinstall.snaps[0] in the rendered user data has no name"),
        (f"{HEAD}  oem: {{}}\n", "autoinstall.oem in the rendered user data has no install"),
        (
            f"{HEAD}  kernel-crash-dumps: {{}}\n",
            "autoinstall.kernel-crash-dumps in the rendered user data has no enabled",
        ),
        (f"{HEAD}  kernel-crash-dumps: {{enabled: null}}\n", None),
        # cases of Subiquity's JSON schema
        (f"{HEAD}  network: {{version: 2, ethernets: {{}}}}\n", None),
        (f"{HEAD}  network: {{network: {{version: 2}}}}\n", None),
        (f"{HEAD}  network:\n", None),
        (f"{HEAD}  network: {{ethernets: {{}}}}\n", "autoinstall.network in the rendered user data has no version"),
        (
            f"{HEAD}  network: {{version: 1, config: []}}\n",
            "network.version in the rendered user data must be 2, found",
        ),
        (
            f"{HEAD}  network: {{version: 2, ethernets: }}\n",
            "network.ethernets in the rendered user data must be a map",
        ),
        (f"{HEAD}network: {{version: 2}}\n", "has the autoinstall key network outside `autoinstall`"),
        (f"{HEAD}  keyboard: {{layout: us, toggle: null}}\n", None),
        (f"{HEAD}  keyboard: {{layout: us, varient: a}}\n", 'has the key "varient", which the installer rejects'),
        (f"{HEAD}  ssh: {{unknown: 1}}\n", None),
        (f"{HEAD}  reporting: {{a: {{type: print}}}}\n", None),
        (
            f"{HEAD}  reporting: {{a: {{endpoint: b}}}}\n",
            "autoinstall.reporting.a in the rendered user data has no type",
        ),
        (f"{HEAD}  zdevs: [{{id: 1}}]\n", "autoinstall.zdevs[0].id in the rendered user data must be a string, found"),
        (f"{HEAD}  apt: {{preferences: [{{package: a, pin: b, pin-priority: 1}}]}}\n", None),
        (
            f"{HEAD}  apt: {{preferences: [{{package: a}}]}}\n",
            "apt.preferences[0] in the rendered user data has no pin",
        ),
        (f"{HEAD}  apt: {{mirror-selection: {{primary: [country-mirror, {{uri: a}}]}}}}\n", None),
        (
            f"{HEAD}  apt: {{mirror-selection: {{primary: [a]}}}}\n",
            "primary[0] in the rendered user data must be country-",
        ),
        (
            f"{HEAD}  apt: {{fallback: abort, geoip: 0}}\n",
            "autoinstall.apt.geoip in the rendered user data must be true or",
        ),
        (f"{HEAD}  storage: {{layout: {{name: lvm, sizing-policy: all}}}}\n", None),
        (
            f"{HEAD}  storage: {{layout: lvm}}\n",
            "autoinstall.storage.layout in the rendered user data must be a mapping",
        ),
        (f"{HEAD}  storage: {{layout: {{mode: use_gap}}}}\n", "storage.layout in the rendered user data has no name"),
        (f"{HEAD}  storage: {{layout: {{name: lvm, mode: gap}}}}\n", "must be reformat_disk or use_gap, found"),
        (f"{IDENTITY}, groups: [sudo]}}\n", None),
        (f"{IDENTITY}, groups: {{append: [docker]}}}}\n", None),
        (
            f"{IDENTITY}, groups: {{}}}}\n",
            "identity.groups in the rendered user data must have either the key append or",
        ),
        (f"{IDENTITY}, groups: sudo}}\n", "identity.groups in the rendered user data must be a list or a mapping"),
        (f"{IDENTITY}, uid: 1000}}\n", 'has the key "uid", which the installer rejects'),
        # early commands can change the other keys
        (f"{HEAD}  early-commands: [[sed, -i, s/X/a/, /autoinstall.yaml]]\n  ssh: {{install-server: X}}\n", None),
        (f"{HEAD}  early-commands: &a [*a]\n", "early-commands[0][0] in the rendered user data must be a string"),
        (f"{HEAD}  early-commands: [sed -i s/X/a/ /autoinstall.yaml]\n  ssh: {{install-server: X}}\n", None),
        (
            f"{HEAD}  early-commands: [sed, 1, /autoinstall.yaml]\n",
            "early-commands[1] in the rendered user data must be",
        ),
        # the second part can have the required keys
        (f"#cloud-config-archive\n- {{content: {IDENTITY_PART!r}}}\n- {IDENTITY_PART!r}\n", None),
        ("#!/bin/sh\n", "is not an autoinstall configuration"),
        ("#include\nhttp://192.0.2.1/a\n", None),
        ("## template: jinja\n#cloud-config\nautoinstall: {version: {{ 1 }}}\n", None),
    ],
)
def test_finding_p10_autoinstall_is_a_cloud_config_with_its_root_key(text: str, message: str | None) -> None:
    found = fault("Autoinstall", text)
    assert (found is None) if message is None else message in str(found)


def test_a_list_that_aliases_repeat_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, the check of a document would take a time that grows with the square of its size."""
    has_type = Mock(wraps=user_data_formats._has_type)
    monkeypatch.setattr(user_data_formats, "_has_type", has_type)
    words, aliases = "[" + "word, " * 100 + "word]", "*a, " * 100
    assert fault("Autoinstall", f"{HEAD}  early-commands: [&a {words}]\n  late-commands: [{aliases}*a]\n") is None
    assert has_type.call_count < 1_000


@for_each(
    ("text", "message"),
    [
        (MACHINE, None),
        (f"{MACHINE}---\n{HOSTNAME}---\n", None),
        (f"---\n{HOSTNAME}", None),
        (f"{MACHINE}---\n{MACHINE}", "a second machine configuration"),
        (f"{MACHINE}  install: [a\n", "is not YAML"),
        (f"{MACHINE}version: v1alpha1\n", "appears twice"),
        (f"{MACHINE}---\n- a\n", "not a mapping"),
        (f"{MACHINE}---\nkind: HostnameConfig\n", "needs apiVersion and kind"),
        (f"{MACHINE}---\nhostname: a\n", "is not a Talos configuration"),
        ("version: v1alpha1\nmachine:\n  type: node\n", "no valid machine.type"),
        ("version: v1alpha1\nmachine: worker\n", "no valid machine.type"),
        ("version: v1alpha1\nmachine:\n", "no valid machine.type"),
        ("version: v1alpha1\nmachine:\n  type: join\n", None),  # Talos only warns
        ("version: v1alpha1\ncluster: {}\ndebug: false\n", None),
        ("version: v1alpha2\nmachine: {}\n", "is not a Talos configuration"),
        (f"{MACHINE}clusters: {{}}\n", 'has the key "clusters", which Talos rejects'),
        (f"{HOSTNAME}---\n{HOSTNAME}", "a second HostnameConfig begins on line 5"),
        (f"{MACHINE}---\n{HOSTNAME}name: [a]\n", "must be text"),
        (f"{MACHINE}---\napiVersion: v1alpha1\nkind: {{a: 1}}\n", "must be text"),
        (f"{HOSTNAME}name: a\n---\n{HOSTNAME}name: b\n", None),
        ("", "contains no documents"),
        ("# a\n---\n", "contains no documents"),
    ],
)
def test_finding_p10_each_document_of_talos_is_checked(text: str, message: str | None) -> None:
    found = fault("Talos", text)
    assert (found is None) if message is None else message in str(found)


PROFILE = '<profile xmlns="http://www.suse.com/1.0/yast2ns" xmlns:config="http://www.suse.com/1.0/configns">'


@for_each(
    ("elements", "message"),
    [
        ("<a>yes</a><b/><c><![CDATA[ ]]></c>", None),
        ('<a config:type="boolean"> true </a><b t="integer">-5</b><c type="symbol">d</c>', None),
        ('<a config:type="list"><b t="map"><c config:type="string"/></b></a><d config:type="disksize">5G</d>', None),
        (
            '<a config:type="boolean">yes</a>',
            '<a> in the rendered AutoYaST profile has the type "boolean" and the text',
        ),
        ('<a><b t="integer"/></a>', '<b> in the rendered AutoYaST profile has the type "integer" and the text ""'),
        ('<a config:type="symbol"/>', 'has the type "symbol" and the text ""'),
        ('<a config:type="bool">true</a>', 'has the type "bool"'),
        ('<a t="boolean" config:type="boolean">true</a>', "<a> in the rendered AutoYaST profile has both attributes"),
        ("<a>b<c/></a>", '<a> in the rendered AutoYaST profile contains both elements and the text "b"'),
        ('<a t="map">b<c/></a><d>b<c/><![CDATA[]]></d>', None),
        ('<a t="string"><b t="boolean"/></a>', None),
        ('<a t="map"><b t="boolean"/></a>', '<b> in the rendered AutoYaST profile has the type "boolean"'),
        ("<a>\ud800</a>", "is not well-formed XML"),
    ],
)
def test_a_value_of_autoyast_matches_its_type(elements: str, message: str | None) -> None:
    for root in (PROFILE, PROFILE.replace(">", ' config:type="boolean">')):  # YaST ignores the type of the root
        found = fault("AutoYaST", f"{root}\n{elements}\n</profile>\n")
        assert (found is None) if message is None else message in str(found)


PRESEED = {
    "d-i clock-setup/utc boolean true\n": True,
    "# a\n\n  d-i  a/b\tselect\n": True,
    "d-i a/b string c \\\n  d\n": True,
    "d-i a/b boolean true\r\n": True,
    "d-i a/b\n": False,
    "d-i a/b string c\u00a0d\n": True,
    "d-i a/b string\u00a0c\n": False,
    "d-i\u00a0a/b string c\n": False,
    "d-i a/b strng c\n": False,
    "d-i a/b \\\n": False,
    "boolean\n": False,
}


# The database of the system is locked while another process, for example another run of this test, uses it.
DEBCONF = """Config: configdb
Templates: templatedb

Name: configdb
Driver: File
Filename: {folder}/config.dat

Name: templatedb
Driver: File
Filename: {folder}/templates.dat
"""


def test_finding_p10_debconf_agrees_about_preseed(tmp_path: Path) -> None:
    assert {text: fault("Preseed", text) is None for text in PRESEED} == PRESEED
    program = shutil.which("debconf-set-selections")
    if program is None:
        assert not os.environ.get("CI")
        pytest.skip("debconf-set-selections is in Debian's package debconf")
    (tmp_path / "debconf.conf").write_text(DEBCONF.format(folder=tmp_path))
    environment = {**os.environ, "DEBCONF_SYSTEMRC": str(tmp_path / "debconf.conf")}
    for text, valid in PRESEED.items():
        done = subprocess.run(
            [program, "--checkonly"], input=text, env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode == 0 and done.stderr == "") == valid, (text, done.stderr)


@for_each(
    ("name", "text", "message"),
    [
        ("vendor-data", "", None),
        ("vendor-data", "\n", None),
        ("vendor-data", "#cloud-boothook\n", None),
        ("vendor-data", "#cloud-config\na: [\n", "is not YAML"),
        ("vendor-data", "a: b\n", "the rendered vendor-data begins with"),
        ("network-config", "version: 2\nethernets: {}\n", None),
        ("network-config", "{network: {version: 1, config: []}}\n", None),
        ("network-config", "network: {config: disabled}\n", None),
        ("network-config", "version: '2'\n", "has neither version 1 nor version 2"),
        ("network-config", "version: 2\nethernets: [\n", "is not YAML"),
        ("network-config", "network:\n  ethernets: {}\nversion: 2\n", "has neither version 1 nor version 2"),
        ("network-config", "# version: 2\n", "is not a mapping"),
        # netplan and cloud-init stop at these values, and the machine has no network
        (
            "network-config",
            f"{NETPLAN}  a: {{addresses: 192.0.2.1/24}}\n",
            "network.ethernets.a.addresses in the render",
        ),
        (
            "network-config",
            f"{NETPLAN}  a: {{nameservers: [192.0.2.1]}}\n",
            "ethernets.a.nameservers in the rendered net",
        ),
        (
            "network-config",
            f"{NETPLAN}  a: {{routes: [{{via: 192.0.2.1}}]}}\n",
            r"ethernets.a.routes\[0\] in .* has no to",
        ),
        ("network-config", f"{NETPLAN}  a: {{match: a}}\n", "network.ethernets.a.match in the rendered network-config"),
        ("network-config", f"{NETPLAN}  a:\n", "network.ethernets.a in the rendered network-config must be a mapping"),
        (
            "network-config",
            "version: 2\nbonds: {a: {interfaces: b}}\n",
            "network.bonds.a.interfaces in the rendered net",
        ),
        ("network-config", "version: 1\n", "network in the rendered network-config has no config"),
        ("network-config", "version: 1\nconfig: {}\n", "network.config in the rendered network-config must be a list"),
        ("network-config", "version: 1\nconfig: [{name: a}]\n", r"network.config\[0\] in .* has no type"),
        (
            "network-config",
            "version: 1\nconfig: [{type: vlans}]\n",
            r"config\[0\].type in .* must be bond or bridge or",
        ),
        ("network-config", NETPLAN_EXAMPLE, None),
        (
            "network-config",
            f"{NETPLAN}  renderer: networkd\n  a: {{match: {{}}, nameservers: {{addresses: a}}}}\n",
            None,
        ),
        ("network-config", "version: 2\ndummy-devices: {a: {unknown: 1}}\n", None),
        ("network-config", "version: 1\nconfig: [{type: physical, name: a, subnets: }, {type: loopback}]\n", None),
    ],
)
def test_finding_p10_files_beside_user_data_are_checked(name: str, text: str, message: str | None) -> None:
    if message is None:
        check_extra_file("CloudInit", name, text)
        return
    with pytest.raises(Malformed, match=message):
        check_extra_file("CloudInit", name, text)


@for_each(
    ("template", "line"),
    [
        ("#cloud-config\na: b\nc:\td\n", 3),
        ("#cloud-config\n# a\u2028\u2028\x85# b\nc:\td\n", 3),
        ("#cloud-config\n# a\u2028\u2028\x85# b\nc: [d", 3),
        ("{#- a -#}\n#cloud-config\na: {{ server.name }}\n{% for i in [1, 2] %}\nb{{ i }}:\tx\n{% endfor %}\n", 5),
        ("#cloud-config\n{% if true %}\na: b\n{%- endif %}\nc:\td\n", 5),
        ("#cloud-config\na: {{ 'b\n  c: d\n  e: f' | indent(2) }}\n", 4),
        ("#cloud-config\n{%- set a %}\na: [\n{% endset %}\n{{ a | b64encode }}\n", 1),
    ],
)
def test_finding_p10_a_fault_is_at_the_line_of_the_template(template: str, line: int) -> None:
    documents = (
        *(fleet(), server("web01"), image("a-1", "userData: CloudInit"), policy("web")),
        profile("web", "a-1", "userData: {format: CloudInit, template: t}"),
    )
    with pytest.raises(InvalidRepository) as error:
        decided(*documents, files={"t": template})
    (problem,) = error.value.problems
    assert (problem.path, problem.line, problem.code) == ("t", line, "GB4005")


@for_each(
    ("format", "template", "line"),
    [
        ("Kickstart", "text\n# a\f\x85\u2028\ntimezone UTC\nfoo", 4),
        ("Kickstart", "text\n# a\f\x85\u2028\n%post\n", 3),
        ("Talos", f"# a\u2028\u2028\x85\n{MACHINE}---\n{HOSTNAME}---\n- a\n", 10),
        ("Talos", f"# a\u2028\u2028\x85\n{MACHINE}x: [a", 5),
        ("AutoYaST", "<a>\n{{ '\\r\\r\\r' }}<b>\n</a>", 1),
        ("AutoYaST", f"{PROFILE}\n<a t='integer'>\n</a></profile>", 3),
    ],
)
def test_a_line_ends_at_a_line_feed_alone_as_in_the_template(format: str, template: str, line: int) -> None:
    documents = (
        *(fleet(), server("web01"), image("a-1", f"userData: {format}"), policy("web")),
        profile("web", "a-1", f"userData: {{format: {format}, template: t}}"),
    )
    with pytest.raises(InvalidRepository) as error:
        decided(*documents, files={"t": template})
    (problem,) = error.value.problems
    assert (problem.path, problem.line) == ("t", line)
