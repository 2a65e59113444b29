"""Which secrets a boot's machine may fetch, and where: only for an installation, which has an end."""

from __future__ import annotations

from base64 import b64encode
from typing import Final

from gitboot.fleet.documents import sealed
from gitboot.model.boot_policy import NetworkBoot
from gitboot.problems.codes import Code
from gitboot.resolve.server_decision_from_plan import provisioned_token
from gitboot.resolve.source import BootSource, Unbootable

_WITH_AN_END: Final = (NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE, NetworkBoot.NEVER)


def secret_files(source: BootSource) -> dict[str, str]:
    """The files of its secrets by name: the profile's, and over them the server's own."""
    user_data = source.profile.spec.user_data
    if user_data is None or source.server is None or source.pool is None:
        return {}
    if source.pool.network_boot not in _WITH_AN_END:
        return {}
    return dict(sorted({**user_data.secrets, **source.server.spec.secrets}.items()))


def secret_texts(source: BootSource) -> dict[str, str]:
    """The encrypted secrets by name, as they are published; raise `Unbootable` where they would be given for ever."""
    found = secret_files(source)
    user_data = source.profile.spec.user_data
    if user_data is not None and user_data.secrets and not found:
        raise Unbootable(
            Code.SECRET_KEPT_OPEN,
            f"the user data names secrets, and {_boot(source)}",
            Code.SECRET_KEPT_OPEN.hint,
            source.profile_id,
            *("spec", "userData", "secrets"),
        )
    return {name: b64encode(sealed(source.files[path])).decode() for name, path in found.items()}


def _boot(source: BootSource) -> str:
    if source.maintenance is not None:
        return f"Maintenance/{source.maintenance.metadata.name} boots it, which is no installation"
    if source.pool is not None:
        return f"BootPolicy/{source.pool.name} boots it with networkBoot {source.pool.network_boot}"
    return "unknown machines boot it"


def secret_urls(source: BootSource) -> dict[str, str]:
    """Where the machine fetches each: from who gives what is made once, whatever mirror has the rest."""
    names = secret_files(source)
    if not names or source.server is None:
        return {}
    mac, spec = source.server.boot_macs[0], source.server.spec
    token = provisioned_token(source.server.uuid, spec.provision, source.image.metadata.name)
    return {name: f"{source.endpoint}/s/{token}/{mac}/{name}" for name in names}
