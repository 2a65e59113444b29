"""Kickstart user data: check sections, commands and their options, but not included files.

Source: pykickstart's "Kickstart Documentation". gitboot does not use pykickstart itself, because pykickstart follows
`%include`. In the values of options, gitboot checks only numbers and fixed choices.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, NoReturn

from gitboot.model.scalars import Malformed, make_user_data_fault, quote_value
from gitboot.text import find_similar

# The arguments of each command. `1..2` is the permitted number of positional arguments, if the command accepts
# positional arguments. The option `--name` has no value, `--name=` requires a value, and `--name=?` has an optional
# value. `--name=#` requires a whole number, and `--name=a,b` requires one of these values. `!` marks a required option.
# None: a release of the installer accepts all arguments, for example because it ignores the command.
COMMANDS: Final[Mapping[str, str | None]] = {
    "auth": None,
    "authconfig": None,
    "authselect": None,
    "autopart": (
        "0..0 --backuppassphrase --cipher= --encrypted --escrowcert= --fstype= --hibernation --hw-passphrase= "
        "--luks-version= --noboot --nohome --nolvm --noswap --passphrase= --pbkdf= --pbkdf-iterations=# "
        "--pbkdf-memory=# --pbkdf-time=# --type="
    ),
    "autostep": None,
    "bootc": "0..0 --bootloader= --composefs --source-imgref=! --stateroot= --target-imgref=",
    "bootloader": (
        "0..0 --append= --boot-drive= --default= --disabled --driveorder= --extlinux --iscrypted --lba32 "
        "--leavebootorder --location=mbr,partition,none,boot --md5pass= --nombr --password= --sdboot --timeout=# "
        "--upgrade"
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
    "group": "0..0 --gid=# --name=!",
    "halt": "0..0 --eject --kexec",
    "harddrive": "0..0 --biospart= --dir=! --partition=",
    "hmc": "0..0",
    "ignoredisk": "0..0 --drives= --interactive --only-use=",
    "install": None,
    "interactive": "0..0",
    "iscsi": "0..0 --iface= --ipaddr=! --password= --port=# --reverse-password= --reverse-user= --target= --user=",
    "iscsiname": "1..1",
    "key": "--skip",
    "keyboard": "0..1 --switch= --vckeymap= --xlayouts=",
    "lang": "1..1 --addsupport=",
    "liveimg": "0..0 --checksum= --noverifyssl --proxy= --url=!",
    "logging": "0..0 --host= --level= --port=",
    "logvol": (
        "1..1 --backuppassphrase --bytes-per-inode= --cachemode= --cachepvs= --cachesize=# --chunksize=# --cipher= "
        "--encrypted --escrowcert= --fsoptions= --fsprofile= --fstype= --grow --hibernation --label= --luks-version= "
        "--maxsize=# --metadatasize=# --mkfsoptions= --name=! --noformat --passphrase= --pbkdf= "
        "--pbkdf-iterations=# --pbkdf-memory=# --pbkdf-time=# --percent=# --poolname= --profile= --recommended "
        "--resize --size=# --thin --thinpool --useexisting --vgname=!"
    ),
    "mediacheck": "0..0",
    "module": None,
    "monitor": None,
    "mount": "2..2 --mkfsoptions= --mountoptions= --reformat=?",
    "multipath": None,
    "network": (
        "0..0 --activate --bindto=mac --bondopts= --bondslaves= --bootproto=dhcp,bootp,static,query,ibft "
        "--bridgeopts= --bridgeslaves= --device= --dhcpclass= --essid= --ethtool= --gateway= --hostname= "
        "--interfacename= --ip= --ipv4-dns-search= --ipv4-ignore-auto-dns --ipv6= --ipv6-dns-search= "
        "--ipv6-ignore-auto-dns --ipv6gateway= --mtu= --nameserver= --netmask= --no-activate --nodefroute --nodns "
        "--noipv4 --noipv6 --notksdevice --onboot= --teamconfig= --teamslaves= --vlanid= --wepkey= --wpakey="
    ),
    "nfs": "0..0 --dir=! --opts= --server=!",
    "nvdimm": None,
    "ostreecontainer": "0..0 --no-signature-verification --remote= --stateroot= --transport= --url=!",
    "ostreesetup": "0..0 --nogpg --osname=! --ref=! --remote= --url=!",
    "part": (
        "1..1 --active --asprimary --backuppassphrase --bytes-per-inode= --cipher= --encrypted --end= "
        "--escrowcert= --fsoptions= --fsprofile= --fstype= --grow --hibernation --hw-passphrase= --label= "
        "--luks-version= --maxsize=# --mkfsoptions= --noformat --onbiosdisk= --ondisk= --ondrive= --onpart= "
        "--passphrase= --pbkdf= --pbkdf-iterations=# --pbkdf-memory=# --pbkdf-time=# --recommended --resize "
        "--size=# --start= --type= --usepart="
    ),
    "partition": (
        "1..1 --active --asprimary --backuppassphrase --bytes-per-inode= --cipher= --encrypted --end= "
        "--escrowcert= --fsoptions= --fsprofile= --fstype= --grow --hibernation --hw-passphrase= --label= "
        "--luks-version= --maxsize=# --mkfsoptions= --noformat --onbiosdisk= --ondisk= --ondrive= --onpart= "
        "--passphrase= --pbkdf= --pbkdf-iterations=# --pbkdf-memory=# --pbkdf-time=# --recommended --resize "
        "--size=# --start= --type= --usepart="
    ),
    "poweroff": "0..0 --eject --kexec",
    "raid": (
        "1.. --backuppassphrase --bytes-per-inode= --chunksize=# --cipher= --device=! --encrypted --escrowcert= "
        "--fsoptions= --fsprofile= --fstype= --label= --level= --luks-version= --mkfsoptions= --noformat "
        "--passphrase= --pbkdf= --pbkdf-iterations=# --pbkdf-memory=# --pbkdf-time=# --spares=# --useexisting"
    ),
    "rdp": "0..0 --password= --username=",
    "realm": (
        "2..2 --client-software= --computer-ou= --membership-software= --no-password --one-time-password= "
        "--server-software="
    ),
    "reboot": "0..0 --eject --kexec",
    "repo": (
        "0..0 --baseurl= --cost=# --excludepkgs= --ignoregroups= --includepkgs= --install --metalink= --mirrorlist= "
        "--name=! --noverifyssl --proxy= --sslcacert= --sslclientcert= --sslclientkey="
    ),
    "reqpart": "0..0 --add-boot",
    "rescue": "0..0 --nomount --romount",
    "rhsm": (
        "0..0 --activation-key=! --connect-to-insights --flatpak-registry-url= --organization=! --proxy= "
        "--rhsm-baseurl= --server-hostname="
    ),
    "rootpw": "0..1 --allow-ssh --iscrypted --lock --plaintext",
    "selinux": "0..0 --disabled --enforcing --permissive",
    "services": "0..0 --disabled= --enabled=",
    "shutdown": "0..0 --eject --kexec",
    "skipx": "0..0",
    "snapshot": "1..1 --name=! --when=!",
    "sshkey": "1..1 --username=!",
    "sshpw": "1.. --iscrypted --lock --plaintext --sshkey --username=!",
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
        "0..0 --gecos= --gid=# --groups= --homedir= --iscrypted --lock --name=! --password= --plaintext --shell= "
        "--uid=#"
    ),
    "vnc": None,
    "volgroup": "1.. --noformat --pesize=# --reserved-percent=# --reserved-space=# --useexisting",
    "xconfig": "0..0 --defaultdesktop= --depth= --driver= --resolution= --startxonboot --videoram=",
    "zerombr": "0..0",
    "zfcp": "0..0 --devnum=! --fcplun= --scsiid= --scsilun= --wwpn=",
    "zipl": "0..0 --force-secure-boot --no-secure-boot --secure-boot",
}


_SCRIPT: Final = "0..0 --erroronfail --interpreter= --log= --logfile="
_PACKAGES: Final = (
    "0..0 --default --excludedocs --excludeWeakdeps --exclude-weakdeps --ignorebroken --ignoremissing --inst-langs= "
    "--instLangs= --multilib --nobase --nocore --retries=# --timeout=#"
)
# The arguments of each section, in the same format as `COMMANDS`.
_SECTIONS: Final[dict[str, str | None]] = {
    "%addon": None,
    "%anaconda": None,
    "%certificate": "0..0 --dir= --filename=! --type=",
    "%onerror": _SCRIPT,
    "%packages": _PACKAGES,
    "%post": f"{_SCRIPT} --nochroot",
    "%pre": _SCRIPT,
    "%pre-install": _SCRIPT,
    "%traceback": _SCRIPT,
}
# The arguments that depend on each other. `a|b` requires one of the arguments, `a^b` permits only one of them, and
# `a>b|c` requires b or c with a. `*` is a positional argument above the minimum in `COMMANDS`.
_FORMAT_RULES: Final = "--mkfsoptions^--noformat --mkfsoptions^--fsprofile --pbkdf-iterations^--pbkdf-time"
_PARTITION_RULES: Final = f"{_FORMAT_RULES} --resize>--onpart|--usepart --resize>--size"
_MEMBER_RULES: Final = "*|--noformat|--useexisting *^--noformat *^--useexisting"
_ARGUMENT_RULES: Final[Mapping[str, str]] = {
    "%certificate": "--dir|--type",
    "%packages": "--default^--nocore",
    "autopart": "--hibernation^--noswap --pbkdf-iterations^--pbkdf-time",
    "bootloader": "--extlinux^--sdboot",
    "driverdisk": "*|--biospart|--source *^--biospart^--source",
    "eula": "--accept|--accepted|--agree|--agreed",
    "harddrive": "--dir>--biospart|--partition --biospart^--partition",
    "ignoredisk": "--drives|--interactive|--only-use --drives^--only-use",
    "keyboard": "*|--vckeymap|--xlayouts",
    "logging": "--port>--host",
    "logvol": (
        f"{_FORMAT_RULES} --hibernation|--noformat|--percent|--recommended|--size|--useexisting --percent^--size "
        "--resize>--size --resize>--noformat|--useexisting --thin^--thinpool --thin>--poolname "
        "--chunksize>--thinpool --metadatasize>--thinpool --cachesize>--cachepvs --cachepvs>--cachesize"
    ),
    "mount": "--mkfsoptions>--reformat",
    "network": "--bridgeopts>--bridgeslaves",
    "part": _PARTITION_RULES,
    "partition": _PARTITION_RULES,
    "raid": f"{_FORMAT_RULES} {_MEMBER_RULES} --level|--noformat|--useexisting",
    "repo": "--baseurl^--metalink^--mirrorlist",
    "rescue": "--nomount^--romount",
    "rootpw": "*|--lock",
    "services": "--disabled|--enabled",
    "timesource": "--ntp-disable|--ntp-pool|--ntp-server --ntp-disable^--ntp-pool^--ntp-server",
    "timezone": "*|--isUtc|--nontp|--ntpservers|--utc --nontp^--ntpservers",
    "url": "--metalink|--mirrorlist|--url --metalink^--mirrorlist^--url",
    "volgroup": _MEMBER_RULES,
    "zfcp": "--wwpn>--fcplun --fcplun>--wwpn",
}
_LAYOUT: Final = ("logvol", "part", "partition", "raid", "reqpart", "volgroup")
# For each command, the commands that cannot come before it.
_CONFLICTS: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(_LAYOUT, ("autopart", "mount")),
    "autopart": _LAYOUT,
    "mount": ("autopart", *_LAYOUT),
    "bootc": ("ostreecontainer", "ostreesetup"),
    "ostreecontainer": ("bootc", "ostreesetup"),
    "ostreesetup": ("bootc",),
    "realm": ("realm",),
}


def check_kickstart(text: str) -> None:
    """Raise `Malformed` if the installer would stop with an error in this Kickstart file."""
    lines = _number_lines(text)
    first_lines: dict[str, int] = {}  # of each command
    for number, line in lines:
        if (fault := _find_line_fault(line)) is not None:
            raise _make_fault(number, *fault)
        word = _find_first_word(line)
        if word in _SECTIONS:
            _check_section(word, number, lines)
        for other in _CONFLICTS.get(word, ()):
            if other in first_lines:
                raise _make_fault(
                    number,
                    f"{word} and the {other} of line {first_lines[other]} exclude each other",
                    "remove one of the two commands",
                )
        first_lines.setdefault(word, number)


def _number_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines as pykickstart splits them, with the number of the line that an editor shows."""
    number = 1
    for line in text.splitlines(keepends=True):
        yield number, line
        number += line.endswith("\n")


def _make_fault(number: int, message: str, hint: str) -> Malformed:
    return make_user_data_fault(f"line {number} of the rendered kickstart: {message}", hint, number)


def _find_first_word(line: str) -> str:
    return line.split(maxsplit=1)[0] if line.strip() else ""


_NO_FILE: Final = ("the name of the file to include is missing", "write the file name or the URL on the same line")
_UNCLOSED_QUOTE: Final = (
    "a quote is not closed, or the line ends with a backslash",
    "close the quote, or enclose the character in the other kind of quotes",
)


def _check_section(name: str, first_line: int, lines: Iterator[tuple[int, str]]) -> None:
    """Check the lines up to the end of a section, and consume these lines. Raises `Malformed`."""
    has_appended = has_body = False
    for number, line in lines:
        word = _find_first_word(line)
        if word.startswith("%ksappend"):
            if (fault := _find_line_fault(line)) is not None:
                raise _make_fault(number, *fault)
            has_appended = True  # the included file may end the section
        elif word in ("%end", "%include") or word in _SECTIONS:
            words = _split_line(line, comments=False)
            if words is None:
                raise _make_fault(number, *_UNCLOSED_QUOTE)
            if word == "%end":
                if name == "%certificate" and not has_body:
                    raise _make_fault(
                        first_line, "the %certificate section is empty", "write the certificate before the %end line"
                    )
                return
            if word == "%include":
                if not any(words[1:2]):
                    raise _make_fault(number, *_NO_FILE)
                has_body = True
            else:
                raise _make_fault(
                    number,
                    f"{word} begins inside the {name} section that starts on line {first_line}",
                    f"close {name} with %end before this line",
                )
        elif name == "%packages" and (fault := _find_package_fault(line)) is not None:
            raise _make_fault(number, *fault)
        else:
            has_body = has_body or bool(line.strip())
    if not has_appended:
        raise _make_fault(
            first_line, f"the {name} section is not closed", "close the section with %end on a separate line"
        )


@lru_cache(maxsize=4096)  # cached, because servers share most lines
def _split_line(line: str, *, comments: bool) -> tuple[str, ...] | None:
    """Split a line into words as a shell does. Return None if a quotation mark is not closed."""
    try:
        return tuple(shlex.split(line, comments=comments))
    except ValueError:
        return None


def _find_package_fault(line: str) -> tuple[str, str] | None:
    """Return a message and a hint for a faulty line in %packages, or None if the line is correct."""
    package = line.partition("#")[0].strip()
    if package == "-":
        return "no package name follows the dash", "write the name of the excluded package after the dash"
    options = set(package.split()[1:]) if package.startswith("@") else set()
    if {"--nodefaults", "--optional"} <= options:
        return "--nodefaults and --optional exclude each other", "remove one of the two options"
    return None


@lru_cache(maxsize=4096)  # servers share most lines
def _find_line_fault(line: str) -> tuple[str, str] | None:
    """Return a message and a hint for a faulty line outside of sections, or None if the line is correct."""
    stripped = line.strip()
    if not stripped or stripped.startswith("#"):
        return None
    if stripped.startswith("%ksappend"):
        return None if " " in stripped else _NO_FILE
    words = _split_line(line, comments=True)
    if words is None:
        return _UNCLOSED_QUOTE
    name = words[0]
    if name == "%include":
        return None if any(words[1:2]) else _NO_FILE
    if name == "%end":
        return "%end does not close a section", "remove %end, or begin a section before it"
    known = _SECTIONS if name.startswith("%") else COMMANDS
    if name not in known:
        kind = "section" if name.startswith("%") else "command"
        meant = find_similar(name, known)
        hint = f"did you mean {meant}?" if meant is not None else "correct the template"
        return f"{quote_value(name)} is not a kickstart {kind}", hint
    if (options := known[name]) is None:
        return None
    message = _find_option_fault(name, options, words[1:])
    return None if message is None else (f"{name} is invalid ({message})", "correct the options")


def _find_option_fault(name: str, options: str, words: Iterable[str]) -> str | None:
    """Return the fault in the arguments of a command or a section, or None if they are correct."""
    try:
        values, others = _make_parser(options).parse_known_args(words)
    except _OptionFault as fault:
        return str(fault)
    unknown = next((word for word in others if word.startswith("-") and word.strip("-")), None)
    if unknown is not None:
        return f"there is no option {unknown.partition('=')[0]}"
    counts = re.match(r"([0-9]+)\.\.([0-9]*)", options)
    minimum, maximum = counts.groups() if counts is not None else ("0", "")
    if maximum and len(others) > int(maximum):
        return f"{quote_value(others[int(maximum)])} is an extra argument"
    if len(others) < int(minimum):
        return "an argument is missing"
    given = {f"--{option.replace('_', '-')}": value for option, value in vars(values).items()}
    return _find_broken_rule(name, given | {"*": others[int(minimum) :]})


def _find_broken_rule(command: str, given: Mapping[str, object]) -> str | None:
    """Return the message about a rule in `_ARGUMENT_RULES` that the arguments break, or None."""
    for rule in _ARGUMENT_RULES.get(command, "").split():
        condition, _, arguments = rule.rpartition(">")
        names = re.split(r"[|^]", arguments)
        used = [name for name in names if given[name] or (condition and given[name] is not None)]
        if "^" in rule:
            if len(used) > 1:
                return f"{used[0]} and {used[1]} exclude each other".replace("*", "an argument")
        elif not used and (not condition or given[condition]):
            return f"{condition or command} needs {' or '.join(names)}".replace("*", "an argument")
    return None


class _OptionFault(Exception):
    """Raised if an option of a command or a section is wrong."""


class _OptionParser(argparse.ArgumentParser):
    """An option parser that, like pykickstart's parser, accepts unambiguous abbreviations."""

    def error(self, message: str) -> NoReturn:
        raise _OptionFault(message)


@lru_cache(maxsize=256)  # more than the number of commands
def _make_parser(options: str) -> _OptionParser:
    parser = _OptionParser(add_help=False)
    for option in options.split():
        if ".." in option:
            continue
        name, _, form = option.rstrip("!").partition("=")
        required = option.endswith("!")
        if "=" not in option:
            parser.add_argument(name, action="store_true", default=None, required=required)
        elif form == "?":
            parser.add_argument(name, nargs="?", const=True, required=required)
        else:
            choices = form.split(",") if form not in ("", "#") else None
            parser.add_argument(name, type=int if form == "#" else str, choices=choices, required=required)
    return parser
