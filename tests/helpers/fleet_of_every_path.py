"""A fleet whose tree has a path of each kind that machines, loaders and other systems ask for."""

from __future__ import annotations

from typing import Final

from gitboot.model.fleet import Output
from gitboot.render.paths import SIGNED, Role, kind_of
from gitboot.render.token_keys import TokenKeys
from tests.helpers.fleets import fleet, image, policy, profile, server
from tests.helpers.served_tree import planned

BASE: Final = "/some%20base"  # the path of the base URL
SITE: Final = "/v1"  # that of a site's, which is the name of a folder of the tree, too

_SPEC: Final = f"""
  baseURL: 'http://boot.test{BASE}'
  sites: [{{name: fra1, select: {{matchLabels: {{site: fra1}}}}, baseURL: 'http://fra1.test{SITE}'}}]
  unknownServers: {{profile: look}}
  outputs: [{", ".join(sorted(Output))}]
  provisioning: {{evidence: Reported}}
"""
FLEET: Final = planned(
    fleet(_SPEC.replace("\n  ", ", ").strip(", \n")),
    server("web01", "role: web", "provision: 1, serial: ABC123.json"),  # which names no type
    server("init01", "role: init, site: fra1"),
    server("edge01", "role: edge"),
    server("disc01", "role: disc", "provision: 1"),
    image("flatcar-1", "userData: CloudInit", "kernel, initrd"),
    image("live-1", "userData: CloudInit, writesDisk: false", "kernel, initrd"),
    image("edge-1", "userData: Ignition/3.4, configFrom: SystemUUID, writesDisk: false", "uki"),
    image("disc-1", "configFrom: Medium, userData: CloudInit", "iso"),
    image("look-1", "writesDisk: false", "uki"),
    profile("web", "flatcar-1", "userData: {format: CloudInit, template: c}"),
    profile("init", "live-1", "userData: {format: CloudInit, template: c}"),
    profile("edge", "edge-1", "httpBoot: uki, userData: {format: Ignition/3.4, template: t}", method="UefiHttp"),
    profile("disc", "disc-1", "userData: {format: CloudInit, template: c}", method="VirtualMedia"),
    profile("look", "look-1"),
    policy("web", "{matchLabels: {role: web}}", often="Once"),
    policy("init", "{matchLabels: {role: init}}", boots="init"),
    policy("edge", "{matchLabels: {role: edge}}", boots="edge"),
    policy("disc", "{matchLabels: {role: disc}}", boots="disc", often="Once"),
    templates={
        "c": "#cloud-config\nphone_home: {url: '{{ urls.provisioned }}'}\n",
        "t": '{"ignition": {"version": "3.4.0"}}',
    },
    keys=TokenKeys(b"a key of this test"),
)

_ORDER: Final = (Role.DATA, Role.MEDIUM, Role.REPORT)  # each ends that the ones before are given


def _rank(path: str) -> int:
    kind = kind_of(f"boot{path}")
    return _ORDER.index(kind.role) + 1 if kind is not None and kind.role in _ORDER else 0


# In an order in which an endpoint gives them all. It has no signed list, which is for copies.
PATHS: Final = tuple(path for path in sorted(FLEET.boot_files, key=_rank) if not f"boot{path}".startswith(SIGNED))
