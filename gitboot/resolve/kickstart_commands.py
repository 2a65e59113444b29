"""Kickstart commands: the names that pykickstart knows, with their options.

The releases are RHEL 6 to 11 and Fedora 16 to 46. A test compares the table with pykickstart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# The arguments of each command. `1..2` is the number of arguments that are not options. It may be missing.
# `--name` has no value, `--name=` needs one, `--name=?` may have one. `!` marks an option that the command needs.
# None: a release of the installer accepts all arguments, for example because it ignores the command.
COMMANDS: Final[Mapping[str, str | None]] = {
    "auth": None,
    "authconfig": None,
    "authselect": None,
    "autopart": (
        "0..0 --backuppassphrase --cipher= --encrypted --escrowcert= --fstype= --hibernation --hw-passphrase= "
        "--luks-version= --noboot --nohome --nolvm --noswap --passphrase= --pbkdf= --pbkdf-iterations= "
        "--pbkdf-memory= --pbkdf-time= --type="
    ),
    "autostep": None,
    "bootc": "0..0 --bootloader= --composefs --source-imgref=! --stateroot= --target-imgref=",
    "bootloader": (
        "0..0 --append= --boot-drive= --default= --disabled --driveorder= --extlinux --iscrypted --lba32 "
        "--leavebootorder --location= --md5pass= --nombr --password= --sdboot --timeout= --upgrade"
    ),
    "btrfs": None,
    "cdrom": "0..0",
    "clearpart": "0..0 --all --cdl --disklabel= --drives= --initlabel --linux --list= --none",
    "cmdline": "0..0 --non-interactive",
    "device": None,
    "deviceprobe": None,
    "dmraid": None,
    "driverdisk": "0..1 --biospart= --source= --type=",
    "eula": "0..0 --accept --accepted --agree --agreed",
    "fcoe": "0..0 --autovlan --dcb --nic=!",
    "firewall": (
        "0..0 --disable --disabled --enable --enabled --ftp --http --port= --remove-service= --service= --smtp "
        "--ssh --telnet= --trust= --use-system-defaults"
    ),
    "firstboot": "0..0 --disable --disabled --enable --enabled --reconfig",
    "graphical": "0..0 --non-interactive",
    "group": "0..0 --gid= --name=!",
    "halt": "0..0 --eject --kexec",
    "harddrive": "0..0 --biospart= --dir=! --partition=",
    "hmc": "0..0",
    "ignoredisk": "0..0 --drives= --interactive --only-use=",
    "install": None,
    "interactive": "0..0",
    "iscsi": "0..0 --iface= --ipaddr=! --password= --port= --reverse-password= --reverse-user= --target= --user=",
    "iscsiname": "1..1",
    "key": "--skip",
    "keyboard": "0..1 --switch= --vckeymap= --xlayouts=",
    "lang": "1..1 --addsupport=",
    "liveimg": "0..0 --checksum= --noverifyssl --proxy= --url=!",
    "logging": "0..0 --host= --level= --port=",
    "logvol": (
        "1..1 --backuppassphrase --bytes-per-inode= --cachemode= --cachepvs= --cachesize= --chunksize= --cipher= "
        "--encrypted --escrowcert= --fsoptions= --fsprofile= --fstype= --grow --hibernation --label= --luks- "
        "version= --maxsize= --metadatasize= --mkfsoptions= --name=! --noformat --passphrase= --pbkdf= "
        "--pbkdf-iterations= --pbkdf-memory= --pbkdf-time= --percent= --poolname= --profile= --recommended "
        "--resize --size= --thin --thinpool --useexisting --vgname=!"
    ),
    "mediacheck": "0..0",
    "module": None,
    "monitor": None,
    "mount": "1..2 --mkfsoptions= --mountoptions= --reformat=?",
    "multipath": None,
    "network": (
        "0..0 --activate --bindto= --bondopts= --bondslaves= --bootproto= --bridgeopts= --bridgeslaves= --device= "
        "--dhcpclass= --essid= --ethtool= --gateway= --hostname= --interfacename= --ip= --ipv4-dns-search= "
        "--ipv4-ignore-auto-dns --ipv6= --ipv6-dns-search= --ipv6-ignore-auto-dns --ipv6gateway= --mtu= "
        "--nameserver= --netmask= --no-activate --nodefroute --nodns --noipv4 --noipv6 --notksdevice "
        "--onboot= --teamconfig= --teamslaves= --vlanid= --wepkey= --wpakey="
    ),
    "nfs": "0..0 --dir=! --opts= --server=!",
    "nvdimm": None,
    "ostreecontainer": "0..0 --no-signature-verification --remote= --stateroot= --transport= --url=!",
    "ostreesetup": "0..0 --nogpg --osname=! --ref=! --remote= --url=!",
    "part": (
        "1..1 --active --asprimary --backuppassphrase --bytes-per-inode= --cipher= --encrypted --end= "
        "--escrowcert= --fsoptions= --fsprofile= --fstype= --grow --hibernation --hw-passphrase= --label= "
        "--luks-version= --maxsize= --mkfsoptions= --noformat --onbiosdisk= --ondisk= --ondrive= --onpart= "
        "--passphrase= --pbkdf= --pbkdf-iterations= --pbkdf-memory= --pbkdf-time= --recommended --resize "
        "--size= --start= --type= --usepart="
    ),
    "partition": (
        "1..1 --active --asprimary --backuppassphrase --bytes-per-inode= --cipher= --encrypted --end= "
        "--escrowcert= --fsoptions= --fsprofile= --fstype= --grow --hibernation --hw-passphrase= --label= "
        "--luks-version= --maxsize= --mkfsoptions= --noformat --onbiosdisk= --ondisk= --ondrive= --onpart= "
        "--passphrase= --pbkdf= --pbkdf-iterations= --pbkdf-memory= --pbkdf-time= --recommended --resize "
        "--size= --start= --type= --usepart="
    ),
    "poweroff": "0..0 --eject --kexec",
    "raid": (
        "1.. --backuppassphrase --bytes-per-inode= --chunksize= --cipher= --device=! --encrypted --escrowcert= "
        "--fsoptions= --fsprofile= --fstype= --label= --level= --luks-version= --mkfsoptions= --noformat "
        "--passphrase= --pbkdf= --pbkdf-iterations= --pbkdf-memory= --pbkdf-time= --spares= --useexisting"
    ),
    "rdp": "0..0 --password= --username=",
    "realm": None,
    "reboot": "0..0 --eject --kexec",
    "repo": (
        "0..0 --baseurl= --cost= --excludepkgs= --ignoregroups= --includepkgs= --install --metalink= --mirrorlist= "
        "--name=! --noverifyssl --proxy= --sslcacert= --sslclientcert= --sslclientkey="
    ),
    "reqpart": "0..0 --add-boot",
    "rescue": "0..0 --nomount --romount",
    "rhsm": (
        "0..0 --activation-key=! --connect-to-insights --flatpak-registry-url= --organization=! --proxy= --rhsm- "
        "baseurl= --server-hostname="
    ),
    "rootpw": "0..1 --allow-ssh --iscrypted --lock --plaintext",
    "selinux": "0..0 --disabled --enforcing --permissive",
    "services": "0..0 --disabled= --enabled=",
    "shutdown": "0..0 --eject --kexec",
    "skipx": "0..0",
    "snapshot": "--name=! --when=!",
    "sshkey": "1..1 --username=!",
    "sshpw": "--iscrypted --lock --plaintext --sshkey --username=!",
    "stratisfs": "1..1 --grow --maxsize= --name=! --poolname=! --size= --useexisting",
    "stratispool": "1.. --encrypted --overprovisioning --passphrase= --useexisting",
    "syspurpose": "0..0 --addon= --role= --sla= --usage=",
    "text": "0..0 --non-interactive",
    "timesource": "0..0 --ntp-disable --ntp-pool= --ntp-server= --nts",
    "timezone": "0..1 --isUtc --nontp --ntpservers= --utc",
    "unsupported_hardware": "0..0",
    "updates": "0..1",
    "upgrade": None,
    "url": ("--metalink= --mirrorlist= --noverifyssl --proxy= --sslcacert= --sslclientcert= --sslclientkey= --url="),
    "user": (
        "0..0 --gecos= --gid= --groups= --homedir= --iscrypted --lock --name=! --password= --plaintext --shell= --uid="
    ),
    "vnc": None,
    "volgroup": "1.. --noformat --pesize= --reserved-percent= --reserved-space= --useexisting",
    "xconfig": "0..0 --defaultdesktop= --depth= --driver= --resolution= --startxonboot --videoram=",
    "zerombr": "0..0",
    "zfcp": "0..0 --devnum=! --fcplun= --scsiid= --scsilun= --wwpn=",
    "zipl": "0..0 --force-secure-boot --no-secure-boot --secure-boot",
}
