"""What a kickstart installer would stop at is rejected, and what it takes is accepted: compared with pykickstart."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from gitboot.model.scalars import Malformed
from gitboot.resolve.kickstart import COMMANDS, check_kickstart
from tests.helpers.cases import for_each

ACCEPTED = (
    "",
    "# a comment\n\nlang en_US.UTF-8\nkeyboard --xlayouts='us'\ntimezone Europe/Berlin --utc\n",
    "  text\n",
    "lang en_US # don't\n",
    "%packages\n%include /tmp/packages\n@core\n-dracut # large\n%end # packages\n",
    "%packages --ignoremissing --excludeWeakdeps --inst-langs=de --timeout=3\n@^minimal\n# c\n\n%end\n",
    "%packages\n%nothing\n%end\n",
    "%post --interpreter=/usr/bin/python3 --log=/var/log/post.log --erroronfail --nochroot\nprint('%s')\n%end\n",
    "%post --nochro\n%end\n",
    "%pre --log /tmp/a\r\n  echo %post\r\n  %end\r\n",
    "%post\n#%end\n%endless\n%include http://192.0.2.1/b\necho $(date +%end)\n%end\n",
    "%pre-install\n%end\n%onerror\n%end\n%traceback\n%end\n",
    "%addon com_redhat_kdump --enable --reserve-mb=auto\n%end\n",
    "%anaconda\npwpolicy root --minlen=8\n%end\n",
    "%include /tmp/part-include\n%include http://192.0.2.1/a\n",
    "%ksappend http://192.0.2.1/a\n",
    "part / --fstype=ext4 --size 1024 --grow\nraid / --device=0 --level=1 a b\n",
    "rootpw --iscrypted $6$a$b\nuser --name a --groups=b,c\nreboot --eject\n",
    "realm join --client-software=sssd example.net\nauthselect select sssd\n",
    "bootloader --append='a b' --location=mbr\nzerombr\nclearpart --al\n",
    "%post --log=\n%end\n",
    "text\n%post\n%end foo\n",
    "lang en_US\\\n",
    "rootpw --lock\nkeyboard ''\ntimezone --utc\nvolgroup a --useexisting\nraid / --device=0 --noformat\n",
    "harddrive --dir=/ --partition=\n",
    "repo --name=a\nrepo --name=b --baseurl= --mirrorlist=c\nurl --url= --mirrorlist=c\n",
    "part / --resize --usepart=sda1 --size=3\nreqpart\n",
    "logvol swap --recommended --name=a --vgname=b\nlogvol / --name=a --vgname=b --percent=3 --size=0\n",
    "mount /dev/a none --mkfsoptions=a --reformat\n",
    "mount /dev/sda1 /\nautopart\n",
    "autopart\nautopart --nohome\nnetwork --bootproto=ibft --bridgeopts=a=b --bridgeslaves=c\n",
    "timesource --ntp-pool=a --nts\ntimesource --ntp-server=b\nbootloader --location=none --timeout=-1\n",
)
REJECTED = (
    "%psot\n%end\n",
    "lnag en_US\n",
    "LANG en_US\n",
    "-x\n",
    '""\n',
    "{}\n",
    "%post\n",
    "%packages\nvim\n",
    "%end\n",
    "%post\n%end\n%end\n",
    "%post\n%pre\n%end\n%end\n",
    "%packages\n%post\n%end\n",
    "%packages\n%packages\n%end\n",
    "%post\n%addon a\n%end\n",
    "%include\n",
    "%post\n%include\n%end\n",
    "%include ''\n",
    "%post\n%end 'x\n",
    "%post\n%end # don't\n",
    "lang 'en_US\n",
    "lang en_US\\",
    "lang en_US \\\n  --addsupport=de\n",
    "%post --interpretre=/bin/sh\n%end\n",
    "%post --interpreter\n%end\n",
    "%post --erroronfail=1\n%end\n",
    "%post now\n%end\n",
    "%pre --nochroot\n%end\n",
    "%packages --ignoredeps\n%end\n",
    "%packages --timeout=a\n%end\n",
    "%packages --default --nocore\n%end\n",
    "%packages\n-\n%end\n",
    "%packages\n@a --optional --nodefaults\n%end\n",
    "part / --size=1 --fstpye=ext4\n",
    "part / --size\n",
    "part --size=1\n",
    "lang en_US de_DE\n",
    "cdrom now\n",
    "zerombr yes\n",
    "firewall --ssh=1\n",
    "user --groups=a\n",
    "repo --baseurl=http://192.0.2.1/\n",
    "%postscript\n%end\n",
    "rootpw\n",
    "rootpw --iscrypted\n",
    "sshpw --username=a --lock\n",
    "keyboard --xlayouts=\n",
    "harddrive --dir=/\n",
    "url --url=\n",
    "repo --name=a --baseurl=b --metalink=c\n",
    "volgroup a\n",
    "volgroup a b --useexisting\n",
    "raid / --device=0 a b\n",
    "mount /boot\n",
    "mount /dev/a / --mkfsoptions=a\n",
    "realm\n",
    "realm join\n",
    "realm join a\nrealm join a\n",
    "part / --size=20G\n",
    "part / --resize --onpart=sda1\n",
    "part / --mkfsoptions=a --fsprofile=b\n",
    "logvol / --name=a --vgname=b --grow\n",
    "logvol / --name=a --vgname=b --size=1 --thin\n",
    "network --bootproto=dhcpp\n",
    "timesource --ntp-server=a --ntp-disable\n",
    "snapshot --name=a --when=post-install\n",
    "zfcp --devnum=1 --wwpn=2\n",
    "autopart\npart / --size=1\n",
    "logvol / --name=a --vgname=b --size=1\n%pre\n%end\nautopart\n",
    "reqpart\nautopart\n",
    "raid / --device=0 --level=1 a b\nmount /dev/a /b\n",
    "bootc --source-imgref=a\nostreecontainer --url=b\n",
)


def is_accepted(text: str) -> bool:
    try:
        check_kickstart(text)
    except Malformed:
        return False
    return True


def _judge(documents: tuple[str, ...]) -> tuple[dict[str, str | None], dict[str, list[str]]]:
    if find_spec("pykickstart") is None and not os.environ.get("CI"):
        pytest.skip("needs pykickstart: make")
    command = [sys.executable, str(Path(__file__).with_name("kickstart_verdicts.py"))]
    done = subprocess.run(command, input=json.dumps(documents), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    verdicts, options = json.loads(done.stdout)
    return dict(zip(documents, verdicts, strict=True)), options


def test_finding_p10_a_kickstart_is_accepted_if_its_installer_takes_it() -> None:
    assert [text for text in ACCEPTED if not is_accepted(text)] == []
    assert [text for text in REJECTED if is_accepted(text)] == []


def test_finding_p10_pykickstart_agrees() -> None:
    verdicts, options = _judge((*ACCEPTED, *REJECTED))
    assert {text: error for text, error in verdicts.items() if (error is None) != (text in ACCEPTED)} == {}
    ours = {name: re.findall(r"--[A-Za-z0-9-]+", arguments or "") for name, arguments in COMMANDS.items()}
    assert {name for name in options if name not in ours} == {"method"}  # of pykickstart itself
    assert {
        name: theirs for name, theirs in options.items() if COMMANDS.get(name) and set(theirs) - set(ours[name])
    } == {}


@for_each(
    ("text", "line", "message", "hint"),
    [
        (
            "text\n%psot\n%end\n",
            2,
            'line 2 of the rendered kickstart: "%psot" is not a kickstart section',
            "did you mean %post?",
        ),
        ("text\n\nlnag en_US\n", 3, '"lnag" is not a kickstart command', "did you mean lang?"),
        ("text\n%post\n%pre\n%end\n", 3, "%pre begins inside the %post section that starts on line 2", "close %post"),
        ("text\n%post\na\n", 2, "is not closed", "%end"),
        ("rootpw\n", 1, "rootpw is invalid .rootpw needs an argument or --lock.$", "correct the options"),
        ("text\npart / --size=1\n\nautopart\n", 4, "autopart and the part of line 2 exclude each other", "remove one"),
        ("text\npart / --sieze=1\n", 2, "part is invalid .there is no option --sieze.$", "correct the options"),
    ],
)
def test_finding_p10_a_fault_of_a_kickstart_has_its_line(text: str, line: int, message: str, hint: str) -> None:
    with pytest.raises(Malformed, match=message) as error:
        check_kickstart(text)
    assert error.value.at == (line,)
    assert hint in error.value.hint
