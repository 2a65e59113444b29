"""A fleet with something for each part of the page: sites, a rollout at 58 %, a pin that is overdue, windows, a BMC."""

from __future__ import annotations

from typing import Any, Final

from tests.helpers.fleets import at, document, fleet, image, maintenance, policy, profile, server
from tests.helpers.served_tree import Fleet, planned

NOW: Final = at("20T23:00")
HOSTILE: Final = "<img src=x onerror=\"document.title='run'\">"
SITES: Final = ("ams1", "fra1", "lon1")


def shown_fleet(servers: int = 60, **more: Any) -> Fleet:
    """Its servers are web000 and so on, at one site after the other."""
    sites = ", ".join(
        f"{{name: {site}, select: {{matchLabels: {{site: {site}}}}}, baseURL: 'http://{site}.test'}}" for site in SITES
    )
    made = [
        server(f"web{number:03}", f"role: web, site: {SITES[number % 3]}, rack: r{number % 7}", _more(number))
        for number in range(servers)
    ]
    return planned(
        fleet(f"baseURL: 'http://boot.test', outputs: [ipxe, grub, pages], sites: [{sites}]"),
        *made,
        *(image(f"flatcar-{number}") for number in (1, 2, 3)),
        image("memtest-7", "writesDisk: false"),
        document(
            "ImageStream",
            "flatcar-stable",
            "current: flatcar-2, rollout: {image: flatcar-3, percent: 58, selector: All}, "
            "holds: [{select: {servers: [web005]}, image: flatcar-1, reason: GPU driver, "
            "until: '2026-12-24T00:00:00Z'}]",
        ),
        profile("web", "stream: flatcar-stable", "kernelArguments: [console=ttyS0]"),
        profile("repair", "memtest-7"),
        policy("web", "{matchLabels: {role: web}}", "kernelArguments: [quiet]"),
        maintenance("ams1-repair", "20T22:00 21T04:00", select="{matchLabels: {site: ams1}}"),
        maintenance("fra1-repair", "22T22:00 23T04:00", select="{matchLabels: {site: fra1}}"),
        maintenance("lon1-firmware", "25T01:00 -", select="{matchLabels: {site: lon1}}"),
        now=NOW,
        **more,
    )


def _more(number: int) -> str:
    if number == 4:
        return "pin: {image: flatcar-1, reason: waits for its owner, until: '2026-11-01T00:00:00Z'}"
    if number == 1:
        return "bmc: {address: 'https://bmc001.test', credentials: rack}, kernelArguments: [debug]"
    return ""


def area(label: str, size: int, **kinds: int) -> dict[str, Any]:
    none = dict.fromkeys(("changed", "less", "removed", "added", "reinstalled"), 0)
    return {"commit": "c0ffee00c0ffee00", "label": label, "size": size, **none, **kinds}


APPROVED: Final = [
    {"guard": guard, "by": f"ada, with gitboot approve: {HOSTILE}"} for guard in ("maxReinstalls", "maxUpdatePercent")
]
STATUS: Final = {
    "at": "2026-11-20T22:59:00Z",
    "branch": "refs/heads/main",
    "attempted": {
        "commit": "4f2ab9917c03d5e1",
        "problems": [],
        "held": {
            "digest": "8c1f27ab",
            "guards": ["maxReinstalls"],
            "lines": ["Gitboot-Ack: 8c1f27ab maxReinstalls"],
        },
    },
    "accepted": {
        "commit": "c0ffee00c0ffee00",
        "changed": [
            area("", 60, changed=27, reinstalled=12, added=2, removed=1, less=4),
            area("site=ams1", 20, changed=12, reinstalled=12),
            area("site=fra1", 20, changed=15, less=4),
            area("site=lon1", 20, added=2, removed=1),
        ],
        "lately": [
            {**area("", 60), "at": "2026-11-20T22:50:00Z", "subject": "Boot flatcar-3", "acknowledged": APPROVED},
            {**area("", 60, changed=3), "commit": "beef00beef00", "at": "2026-11-20T16:02:00Z", "subject": HOSTILE},
        ],
    },
    "applied": {"commit": "c0ffee00c0ffee00"},
    "links": {
        "commit": "https://git.test/ops/fleet/commit/{commit}",
        "line": "https://git.test/ops/fleet/blob/{commit}/{path}#L{line}",
        "blame": "https://git.test/ops/fleet/blame/{commit}/{path}#L{line}",
        "history": "https://git.test/ops/fleet/commits/{commit}/{path}",
    },
    "conditions": [
        *(
            {"type": f"Bmc/{name}", "status": False, "reason": "Stalled", "message": "none", "remedy": "do"}
            for name in ("web001", "web002")
        ),
        {"type": "BmcReached", "status": False, "reason": "Silent", "message": HOSTILE, "remedy": "look"},
    ],
}
