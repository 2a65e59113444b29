"""An initial ramdisk that prints on the console what it was booted with, fetches its user data, and reports."""

from __future__ import annotations

import gzip
import subprocess
from pathlib import Path
from typing import Final

from tests.boots.architectures import Architecture
from tests.boots.debian import unpacked
from tests.boots.programs import program

# In the order in which one needs the other.
_MODULES: Final = (
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci_modern_dev",
    "drivers/virtio/virtio_pci",
    "net/core/failover",
    "drivers/net/net_failover",
    "drivers/net/virtio_net",
    "drivers/block/virtio_blk",
    "drivers/cdrom/cdrom",
    "fs/isofs/isofs",
)

# Every line that a test reads begins with BOOTED. User data is found as cloud-init and Ignition find it: by the
# argument that gitboot adds, or by UUID below boot.base, which is in the command line of a unified kernel image;
# boot.then is the last action of such an image: reboot, or first wait until gitboot has nothing more for firmware.
# boot.address is its address without DHCP; boot.reads is the label of a volume with its user data.
_INIT: Final = r"""#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
exec </dev/console >/dev/console 2>&1
firmware=bios; [ -d /sys/firmware/efi ] && firmware=uefi
echo "BOOTED by $firmware: $(cat /proc/cmdline)"
dmesg | grep -q "Secure boot enabled" && echo "BOOTED with Secure Boot"
for module in $(cat /modules); do insmod /lib/$module.ko; done

url=; address=; label=
for argument in $(cat /proc/cmdline); do
  case $argument in
    boot.reads=*) label=${argument#*=};;
    boot.address=*) address=${argument#*=};;
    ds=nocloud*s=*) url=${argument##*s=}user-data;;
    ignition.config.url=*) url=${argument#*=};;
    boot.base=*) base=${argument#*=}; url=$base/ignition/$(cat /sys/class/dmi/id/product_uuid);;
  esac
done

for interface in $(cd /sys/class/net; ls -d eth*); do
  ip link set $interface up
  case $address$url in
    [0-9]*) ip addr add $address dev $interface;;
    *\[*) tries=0
          while ! ip -6 addr show dev $interface scope global | grep inet6 | grep -qv tentative && [ $tries -lt 30 ]; do
            tries=$((tries + 1)); sleep 1
          done;;
    *) udhcpc -i $interface -n -q -t 5 -T 3 -s /bin/lease >/dev/null;;
  esac
  has=$(ip addr show dev $interface | awk '/inet.*global/{print $2}')
  echo "BOOTED with $(cat /sys/class/net/$interface/address): "$has
done

if [ -n "$label" ]; then
  mkdir /medium
  for disk in /dev/vd?; do
    dd if=$disk bs=1 skip=32808 count=32 2>/dev/null | grep -q "^$label *$" || continue
    mount -t iso9660 -o ro $disk /medium && echo "BOOTED with a medium: "$(cd /medium; echo *)
  done
fi
if [ -n "$url$label" ]; then
  if { [ -n "$label" ] && cp /medium/user-data /user-data; } || { [ -n "$url" ] && wget -q -O /user-data "$url"; }; then
    sed 's/^/BOOTED user data: /' /user-data
    secret=$(grep -o 'http://[^" ]*/s/[0-9a-f]*/[^" ]*' /user-data)
    [ -n "$secret" ] && wget -q -O /secret "$secret" && sed 's/^/BOOTED with its secret: /' /secret
    report=$(grep -o 'http://[^" ]*/provisioned/[0-9a-f]*' /user-data)
    [ -n "$report" ] && wget -q -O /dev/null "$report" && echo "BOOTED and reported"
    [ -n "$secret" ] && ! wget -q -O /dev/null "$secret" && echo "BOOTED without its secret from then on"
  else
    echo "BOOTED without user data: $label $url"
  fi
fi
echo "BOOTED to the end"
case " $(cat /proc/cmdline) " in
  *" boot.then=reboot "*) reboot -f;;
  *" boot.then=window "*)
    while wget -q -O /dev/null "${base}/httpboot/$(cat /sys/class/dmi/id/product_uuid).json"; do sleep 2; done
    sleep 10
    echo "BOOTED until its window ended"
    reboot -f;;
esac
poweroff -f
"""

_LEASE: Final = r"""#!/bin/busybox sh
[ "$1" = bound ] && ip addr add $ip/$mask dev $interface
"""

END_TEXT: Final = "BOOTED to the end"


def build(modules: Path, architecture: Architecture, made: Path) -> Path:
    """The ramdisk, with the modules of the kernel below ``modules``."""
    root = made.with_suffix(".tree")
    for name in ("bin", "dev", "lib", "proc", "sys"):
        (root / name).mkdir(parents=True)
    busybox = unpacked("busybox-static", architecture.debian) / "bin/busybox"
    (root / "bin/busybox").write_bytes(busybox.read_bytes())
    for module in _MODULES:
        name = Path(module).name
        (root / f"lib/{name}.ko").write_bytes((modules / f"kernel/{module}.ko").read_bytes())
    (root / "modules").write_text("\n".join(Path(module).name for module in _MODULES) + "\n")
    (root / "init").write_text(_INIT)
    (root / "bin/lease").write_text(_LEASE)
    for path in ("init", "bin/lease", "bin/busybox"):
        (root / path).chmod(0o755)
    names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
    archive = subprocess.run(
        [program("cpio"), "--create", "--format=newc", "--quiet"],
        cwd=root,
        input=names.encode(),
        stdout=subprocess.PIPE,
        check=True,
    ).stdout
    made.write_bytes(gzip.compress(archive, 1))
    return made
