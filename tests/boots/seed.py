"""A real cloud-init reads its user data: Debian's package, unpacked and run as a module in its own folder.

python seed.py NoCloud

Ec2 URL FOLDER

It writes the result of its datasource as JSON, and applies nothing: that is a later stage.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def read(name: str, url: str, folder: str) -> dict[str, Any]:
    """Return what the datasource has read."""
    from cloudinit import distros, helpers
    from cloudinit.sources import DataSourceEc2, DataSourceNoCloud

    paths = helpers.Paths({"cloud_dir": folder, "run_dir": folder})
    distro = distros.fetch("debian")("debian", {}, paths)
    if name == "NoCloud":
        said: dict[str, Any] = {"seedfrom": url, "fs_label": None}
        source = DataSourceNoCloud.DataSourceNoCloudNet({"datasource": {"NoCloud": said}}, distro, paths)
    else:
        said = {"metadata_urls": [url], "strict_id": False, "max_wait": 20, "timeout": 10}
        source = DataSourceEc2.DataSourceEc2({"datasource": {"Ec2": said}}, distro, paths)
    before = time.monotonic()
    found = source._get_data()
    return {
        "found": found,
        "seconds": time.monotonic() - before,
        "metadata": source.metadata,
        "user_data": _text(source.userdata_raw),
        "vendor_data": _text(source.vendordata_raw),
    }


def _text(raw: Any) -> Any:
    return raw.decode() if isinstance(raw, bytes) else raw


if __name__ == "__main__":
    sys.stdout.write(json.dumps(read(*sys.argv[1:])))
