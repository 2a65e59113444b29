#!/bin/sh
# cobbler.sh VENV SERVERS: what `cobbler sync` costs for so many systems, in seconds of processor and clock, on one line.
#
# Cobbler is read from where pip has put it, in a mount namespace of its own: nothing of this machine's is touched.
set -eu
packages=$(echo "$1"/lib/python3*/site-packages)
exec unshare --mount sh -eu -s "$packages" "$1/bin/python" "$2" <<'INSIDE'
mkdir -p /etc/cobbler /var/lib/cobbler /usr/share/cobbler /var/log/cobbler /var/www /srv
for folder in /var/lib/cobbler /var/log/cobbler /var/www /srv; do mount -t tmpfs none $folder; done
mount --bind "$1/etc/cobbler" /etc/cobbler
mount --bind "$1/usr/share/cobbler" /usr/share/cobbler
cp -r "$1/var/lib/cobbler/." /var/lib/cobbler/
mkdir -p /srv/boot /srv/tftpboot /srv/www/cobbler /var/www/cobbler /var/lib/cobbler/loaders /var/lib/cobbler/config
for kind in distros profiles systems images repos mgmtclasses packages files menus; do
    mkdir -p /var/lib/cobbler/collections/$kind
done
echo kernel > /srv/boot/vmlinuz
echo initrd > /srv/boot/initrd.img
exec "$2" -W ignore -c '
import logging, resource, sys, time
from cobbler.api import CobblerAPI
logging.disable(logging.CRITICAL)
def spent():
    found = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in found)
api = CobblerAPI(is_cobblerd=True)
distro = api.new_distro()
distro.name, distro.kernel, distro.initrd, distro.arch = "d", "/srv/boot/vmlinuz", "/srv/boot/initrd.img", "x86_64"
api.add_distro(distro)
profile = api.new_profile()
profile.name, profile.distro = "p", "d"
api.add_profile(profile)
for number in range(int(sys.argv[1])):
    system = api.new_system()
    system.name, system.profile, system.netboot_enabled = f"s{number:06}", "p", True
    mac = ":".join(f"{byte:02x}" for byte in (0x5254000000 + number).to_bytes(5, "big"))
    system.interfaces = {"default": {"mac_address": f"{mac}:01"}}
    api.systems().add(system, save=False, with_triggers=False)
began, cpu = time.perf_counter(), spent()
api.sync()
print(spent() - cpu, time.perf_counter() - began)
' "$3"
INSIDE
