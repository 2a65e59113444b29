"""How clients name themselves in a request: boot loaders, installed systems, tools, and gitboot's own checks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl

from gitboot.model.scalars.machines import parse_uuid
from gitboot.model.scalars.texts import Malformed
from gitboot.render.paths import CHECK

CHECKER: Final = "gitboot-verify-mirror"  # the User-Agent of a check, before the version
_MOST_FIELDS: Final = 100  # of a query

# User-Agents, from the beginning.
_LOADERS: Final = re.compile(r"(?:iPXE|gPXE|GRUB|UefiHttpBoot|Syslinux|PXELINUX|U-Boot|petitboot)\b", re.IGNORECASE)
_SYSTEMS: Final = re.compile("Ignition/|Cloud-Init/|Go-http-client/")  # the last is Talos
_TOOLS: Final = re.compile(
    r"(?:curl|Wget|aria2|HTTPie|xh|Mozilla|Opera|Lynx|Links|w3m|ELinks|Safari|python-|Python|aiohttp|okhttp|Java|"
    r"Go-http-client|libwww|lwp-|Ruby|Faraday|axios|node|undici|PostmanRuntime|insomnia|ApacheBench|hey|k6|wrk|"
    r"Prometheus|Blackbox|kube-probe|check_http|Nagios|Icinga|Zabbix|Datadog|UptimeRobot|Pingdom|StatusCake|"
    r"HAProxy|ELB-HealthChecker|GoogleHC|Consul|Telegraf|Monit|Amazon|Googlebot|bingbot|\S*(?:bot|crawler|spider))",
    re.IGNORECASE,
)


def is_check(agent: str, query: Mapping[str, str]) -> bool:
    """Return whether gitboot itself asks. A check has both marks, because a cache may drop one of them."""
    return CHECK in query or agent.startswith("gitboot")


def is_loader(agent: str) -> bool:
    """Return whether a boot loader asks."""
    return _LOADERS.match(agent) is not None


def is_system(agent: str) -> bool:
    """Return whether an installed or an installing system asks, as no person and no monitor does."""
    return _SYSTEMS.match(agent) is not None


def is_tool(agent: str) -> bool:
    """Return whether a person's tool or a monitor asks."""
    return _TOOLS.match(agent) is not None


def may_be_system(agent: str) -> bool:
    """Return whether a system asks: a known one, or a client with a name of its own that is no tool."""
    return is_system(agent) or (agent != "" and not is_tool(agent))


def has_identity(query: Mapping[str, str]) -> bool:
    """Return whether a query has what gitboot's first script sends of a machine: its UUID and its serial number.

    The serial number may be empty.
    """
    try:
        return "serial" in query and bool(parse_uuid(query.get("uuid", "")))
    except Malformed:
        return False


def is_machine(agent: str, query: Mapping[str, str]) -> bool:
    """Return whether a request for a boot script has what a machine sends. A bare GET may be a monitor's."""
    return is_loader(agent) or (has_identity(query) and not is_tool(agent))


def parse_query(text: str) -> dict[str, str]:
    """Return a query by its keys, also by those without a value; of several values for one key the last."""
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MOST_FIELDS))
    except ValueError:
        return {}
