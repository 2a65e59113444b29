"""Problems: codes, the problem value, and their order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

from msgspec import Struct, structs

from gitboot.text import printable


class Code(StrEnum):
    """A problem's code, with the text of ``gitboot explain CODE``."""

    headline: str  # what is wrong, in a few words
    why: str  # why gitboot refuses it
    fix: str  # what to do

    def __new__(cls, code: str, headline: str, why: str, fix: str) -> Code:
        member = str.__new__(cls, code)
        member._value_ = code
        member.headline, member.why, member.fix = headline, why, fix
        return member

    @property
    def hint(self) -> str:
        """What to do, as it stands behind a message."""
        return self.fix[0].lower() + self.fix[1:].removesuffix(".")

    def build_problem(self, message: str, path: str = ".") -> Problem:
        """Return a problem of a whole file, or of the whole fleet."""
        return Problem(path=path, line=1, column=1, code=self, message=message, hint=self.hint)

    # The YAML and its values: GB1…

    NOT_YAML = (
        "GB1001",
        "A file that is not YAML",
        "The YAML reader cannot make sense of it from this place on.",
        "Look at the indentation, at brackets and quotes that are left open, and at tabs: indent with spaces.",
    )
    NOT_UTF8 = (
        "GB1002",
        "A file that is not UTF-8",
        "Fleets are read as UTF-8, whatever the machine's locale.",
        "Save the file as UTF-8.",
    )
    CONTROL_CHARACTER = (
        "GB1003",
        "A control character",
        "YAML forbids NUL and most other control characters, and boot loaders stumble over them.",
        "Remove it; in quotes it can be written as an escape where it is really meant.",
    )
    FILE_TOO_LARGE = (
        "GB1004",
        "A file that is too large",
        "A fleet is written by people; larger files are something else.",
        "Split it into several files, or list it in .gitbootignore.",
    )
    DOCUMENT_TOO_LARGE = (
        "GB1005",
        "A document of more than 1 MiB",
        "A resource is written by people; a larger one is something else.",
        "Move large contents into template files.",
    )
    TOO_DEEP = (
        "GB1006",
        "Lists and mappings nested more than 64 deep",
        "No resource needs it, and unbounded depth can exhaust a reader.",
        "Look for brackets or dashes too many.",
    )
    ALIAS = (
        "GB1007",
        "An alias, *name",
        "What a document says should stand in it; chains of aliases can also grow without bounds.",
        "Write the value out, or use inherits, variables and templates.",
    )
    ANCHOR = (
        "GB1008",
        "An anchor, &name",
        "Anchors are for aliases, which are not used here.",
        "Remove it; quote the value where it really begins with &.",
    )
    TAG = (
        "GB1009",
        "A tag, !name",
        "The schema says what type a value has, not the document.",
        "Remove it; quote the value where it really begins with !.",
    )
    MERGE_KEY = (
        "GB1010",
        "A merge key, <<",
        "What a document says should stand in it.",
        "Write the fields out, or let one policy inherit from another.",
    )
    DUPLICATE_KEY = (
        "GB1011",
        "A key that stands twice in one mapping",
        "Readers disagree on which of the two counts.",
        "Remove one of the two.",
    )
    INVALID_KEY = (
        "GB1012",
        "A key that is empty, a list or a mapping",
        "Fields have names.",
        "Look at the colons and at the indentation.",
    )
    ROOT_NOT_MAPPING = (
        "GB1013",
        "A document that is not a mapping",
        "A resource is a mapping with apiVersion, kind, metadata and spec.",
        "Correct it, or list the file in .gitbootignore if it is something else.",
    )
    DIRECTIVE = (
        "GB1014",
        "A YAML directive",
        "%YAML and %TAG change how the rest is read.",
        "Remove the line.",
    )
    TOO_MANY_PROBLEMS = (
        "GB1015",
        "More problems than are shown",
        "The rest of the file's problems mostly follow from the ones that are shown.",
        "Fix those first.",
    )
    API_VERSION = (
        "GB1020",
        "An apiVersion that this gitboot does not know",
        "A document says by apiVersion which version of the format it is written in.",
        "Write apiVersion: gitboot.dev/v1alpha1.",
    )
    KIND = (
        "GB1021",
        "A kind that this gitboot does not know",
        "A misspelt kind would otherwise be a resource that silently has no effect.",
        "Use one of Fleet, Server, BootImage, ImageStream, BootProfile, BootPolicy, Maintenance; list other YAML "
        "files in .gitbootignore.",
    )
    UNKNOWN_FIELD = (
        "GB1022",
        "A field that the kind does not have",
        "A misspelt field would otherwise be a setting that silently has no effect.",
        "Correct its spelling or its indentation; `gitboot explain KIND` lists the fields.",
    )
    MISSING_FIELD = (
        "GB1023",
        "A required field that is absent or empty",
        "The resource means nothing definite without it. An empty value and null count as absent.",
        "Add the field; `gitboot explain KIND` describes it.",
    )
    SHAPE = (
        "GB1024",
        "A mapping, a list or a single value where another of them belongs",
        "The field is of another shape.",
        "Look at the indentation and at missing or stray dashes.",
    )
    NAME = (
        "GB1025",
        "Not a valid name",
        "Names stand in URLs, file names and DNS, so they follow Kubernetes' rule for objects (DNS-1123 subdomain).",
        "Use lower-case letters, digits, '-' and '.', with a letter or digit at both ends, at most 253 characters.",
    )
    LABEL = (
        "GB1026",
        "Not a valid label",
        "Labels follow Kubernetes' syntax, so that what selects here can select there.",
        "Use at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends; a key may have a DNS "
        "prefix and a slash before it.",
    )
    INTEGER = (
        "GB1030",
        "Not a whole number",
        "YAML readers disagree on 010, 0x10 and 1_000; gitboot takes none of them.",
        "Write 0, or digits that do not begin with 0.",
    )
    BOOLEAN = (
        "GB1031",
        "Not true or false",
        "YAML readers disagree on yes, no, on and off; gitboot takes none of them.",
        "Write true or false.",
    )
    CHOICE = (
        "GB1032",
        "Not one of the words that this field takes",
        "The field is a choice; case matters.",
        "Use one of the words that the message lists.",
    )
    MAC = (
        "GB1033",
        "Not a MAC address of an interface",
        "Entries are found by MAC address.",
        "Write six pairs of hexadecimal digits: 52:54:00:12:34:56. Group addresses and zeros are no interface's.",
    )
    UUID = (
        "GB1034",
        "Not a system UUID, or not that of a ledger",
        "The SMBIOS system UUID is the key of all that is recorded of a server; a ledger's says which instance it is.",
        "Write what `dmidecode -s system-uuid` or the BMC shows; set one in firmware where it is all zeros or all F. "
        "A ledger's stands in `gitboot status`.",
    )
    ADDRESS = (
        "GB1035",
        "Not an IP address or network",
        "Addresses say which machine asks, where no MAC is known.",
        "Write 10.12.0.13, 10.12.0.13/24 or fd00:12::13/64; a network has no host bits set.",
    )
    DIGEST = (
        "GB1036",
        "Not a sha256",
        "An image is immutable; the sha256 of each of its files says which bytes are meant.",
        "Copy the 64 lower-case hexadecimal digits that `sha256sum` prints.",
    )
    URL = (
        "GB1037",
        "Not a URL that gitboot can publish",
        "It is written into boot scripts: plain ASCII without spaces, quotes or credentials.",
        "Use assets:PATH, http(s)://HOST/PATH or oci://HOST/NAME@sha256:DIGEST; percent-encode anything else. A BMC's "
        "address is https://HOST, or ipmi://HOST where it has no Redfish.",
    )
    INSTANT = (
        "GB1038",
        "Not an instant with an offset",
        "A time without an offset means another instant in each time zone.",
        "Write 2026-11-20T22:00:00Z or 2026-11-20T23:00:00+01:00.",
    )
    COUNT = (
        "GB1039",
        "Not a number or percentage in range",
        "The field counts servers, or a share of them.",
        "Write a whole number, or where it is allowed a percentage such as 25%.",
    )
    SELECTOR = (
        "GB1040",
        "A selector that does not say whom it means",
        "An empty selector means everything in one tool and nothing in the next.",
        "Write All, None, matchLabels and matchExpressions, or servers.",
    )
    FILE_PATH = (
        "GB1041",
        "Not a path of a file in the fleet",
        "Templates and certificates are read from the same commit, below the fleet's root.",
        "Write the path relative to the fleet's root, with '/' and without '.' or '..'.",
    )
    EMPTY = (
        "GB1042",
        "Text is missing",
        "The field needs some text, and has none.",
        "Write it, or leave the field out where it is optional.",
    )
    ARGUMENT = (
        "GB1043",
        "Not one kernel argument",
        "Each item of the list is one argument on one line.",
        "Write one item an argument: name, name=value, or -name to remove one.",
    )
    COMBINATION = (
        "GB1044",
        "Fields that do not go together",
        "Together they contradict each other, or mean nothing.",
        "Do what the message says.",
    )
    WINDOW = (
        "GB1045",
        "A window that ends before it opens",
        "Windows are half-open, [start, end): at its end instant a window is over.",
        "Let end lie after start.",
    )
    VARIABLE = (
        "GB1046",
        "Not a variable's name",
        "Templates read variables as vars.NAME.",
        "Use letters, digits and '_', with no digit first.",
    )
    OCI_TAG = (
        "GB1047",
        "A tag of a registry's image where a digest is needed",
        "A tag may be another image tomorrow, and an image has several files; a decision names each by its digest.",
        "Write what `gitboot artifacts resolve oci://HOST/NAME:TAG` prints.",
    )

    # References and resolution, GB2…

    NO_FLEET = (
        "GB2001",
        "No Fleet document",
        "Exactly one document of kind Fleet says under which URL machines fetch their files.",
        "Add fleet.yaml; `gitboot init DIR` shows one.",
    )
    DUPLICATE_NAME = (
        "GB2002",
        "Two documents with one name",
        "Names are unique per kind; two would make it chance which one counts.",
        "Rename or remove one of the two.",
    )
    DUPLICATE_IDENTITY = (
        "GB2003",
        "Two servers share an identity",
        "A UUID, MAC address, serial, IP address or BMC system belongs to one machine; shared, one machine could get "
        "the other's boot.",
        "Correct the one that is wrong; remove the document of a machine that is gone.",
    )
    UNKNOWN_REFERENCE = (
        "GB2004",
        "A name or file that does not exist",
        "What is referred to must be in the same commit.",
        "Correct the spelling, or add what is missing.",
    )
    CYCLE = (
        "GB2005",
        "Policies that inherit from each other",
        "A policy cannot be its own ancestor.",
        "Remove one of the inherits.",
    )
    NOT_INHERITED = (
        "GB2006",
        "A policy that neither has nor inherits a required field",
        "Its profile and networkBoot must come from the policy itself or from one of its ancestors.",
        "Add the field here, or inherit from a policy that has it.",
    )
    NO_POLICY = (
        "GB2010",
        "A server that no policy selects",
        "Nothing says what it boots (rule R3).",
        "Select it, name a policy in the server, park it, or set requirePolicy: false in the Fleet.",
    )
    POLICY_TIE = (
        "GB2011",
        "Two policies of one priority select one server",
        "It would be chance which one wins (rule R3).",
        "Raise the priority of one, let one inherit from the other, or narrow a selector.",
    )
    MAINTENANCE_TIE = (
        "GB2012",
        "Two maintenances of one priority overlap on one server",
        "It would be chance which one wins while both are active (rule R2). An overlap counts until it is over.",
        "Raise the priority of one, or move its window.",
    )
    SKEW = (
        "GB2013",
        "A server's image is older than its stream allows",
        "The stream's skew.minimumVersion looks at what each server really boots, pins and holds included.",
        "Move the server to a newer image, or lower minimumVersion.",
    )
    OVERRIDE_MODE = (
        "GB2014",
        "Override Continuous with a direct boot",
        "A uki or iso that the BMC boots directly has no entry that could end it: the machine would install for ever.",
        "Use override: Once, or boot a loader.",
    )
    UNKNOWN_WRITES_DISK = (
        "GB2015",
        "Unknown servers would boot an image that writes disks",
        "Any machine that is plugged in would be wiped.",
        "Use an image with writesDisk: false, or unknownServers: LocalDisk.",
    )
    OVERDUE = (
        "GB2016",
        "A pin or hold is past its deadline",
        "Its until lies in the past. Nothing changes by itself; a person should look.",
        "Remove the pin or hold, or give it a new deadline.",
    )
    NOT_YET = (
        "GB2017",
        "Something that this version of gitboot does not do yet",
        "The format has it, and this version cannot carry it out; ignoring it would be a wrong answer.",
        "Leave it out, or use a version of gitboot that has it.",
    )
    EVERY_BOOT = (
        "GB2018",
        "An installation at every boot that nobody asked for",
        "With networkBoot Always, which is a maintenance's default, each reboot would install the machine again.",
        "Use networkBoot: Once, an image with writesDisk: false, or say reinstall: EveryBoot where that is meant.",
    )
    ENDLESS = (
        "GB2019",
        "A maintenance that writes disks and has no end",
        "While it stands in Git, whatever boots is written; a forgotten document would do so in years.",
        "Give its window an end.",
    )
    NO_IPV6_CLIENTS = (
        "GB2020",
        "Machines that boot by IPv6 do not count as machines",
        "All of provisioning.clients is IPv4, and a base URL has an address of IPv6: what is made once would "
        "be given to nobody who asks there.",
        "Add the machines' networks of IPv6 to provisioning.clients.",
    )
    UUID_NEEDED = (
        "GB2021",
        "A server whose UUID is not known, and has to be",
        "What is recorded of a machine goes by its UUID; without one it could be taken for another, and installed.",
        "Write its uuid, as `dmidecode -s system-uuid` or its BMC says it; until then Parked, or what writes no disk.",
    )
    ONE_SITE = (
        "GB2022",
        "A server of no site, or of several, where each site has its own instance",
        "Nobody would act for a server of no site; and whose a server of several sites is, would hang on their order.",
        "Let exactly one site select each server; or name no ledgers in the sites, for one instance that acts for all.",
    )
    NO_SUCH_SITE = (
        "GB2023",
        "An instance for a site that the Fleet does not have",
        "Nothing is accepted for a name that was misspelt. An instance that has accepted a commit stands back instead.",
        "Name one of the Fleet's sites in `gitboot run --site`, or add it to the Fleet.",
    )
    PLACEHOLDER_IDENTITY = (
        "GB2024",
        "An identity that many machines have",
        "Firmware shows it if nobody has set a UUID, serial number or MAC address. Another machine that shows it could "
        "get the boot of this one. gitboot does not look for a machine by this value.",
        "Set a value of its own in the machine's firmware and write that, or leave the field out.",
    )
    NO_ENDPOINT = (
        "GB2025",
        "A one-time boot, and no endpoint that could serve it",
        "Only gitboot's endpoint records a fetch before it answers. OUTPUT behind nginx, a mirror, a bucket or TFTP "
        "cannot, so they serve the disk in place of a boot that writes a disk once. Their access logs are read later.",
        "Write spec.endpoint, the URL of `gitboot run --listen` or `gitboot serve`; or write "
        "spec.serving.oneTimeBoots: Copies, and every client can fetch the boot from a copy until its log is read.",
    )
    LATE_END = (
        "GB2026",
        "A maintenance that a copy of the boot files cannot end on time",
        "A file has no clock, so a boot script in OUTPUT or in a copy asks the endpoint first. Without an endpoint, a "
        "maintenance stays in a copy until the next copy, and for ever if gitboot is dead. A loader that cannot ask "
        "gets what the policies alone boot.",
        "Write spec.endpoint with an http URL, serving.ipxeHttps: true if every iPXE has https, or serving.lateEnds: "
        "Accept. Without an endpoint, the program of `gitboot verify-mirror --write-program` ends windows at a mirror.",
    )
    EXPIRED_AUTHORITY = (
        "GB2027",
        "A certificate authority for BMCs that has expired",
        "To verify the certificate of a BMC, gitboot uses the file that spec.bmc.tls.ca names. If every certificate in "
        "the file has expired, gitboot rejects the certificate of the BMC and does not set its boot.",
        "Write the new certificate of the authority into the file.",
    )
    KUBELET_LABEL = (
        "GB2028",
        "A node label that kubelet rejects",
        "In the namespaces kubernetes.io and k8s.io, kubelet accepts labels of kubelet.kubernetes.io and "
        "node.kubernetes.io, and a few others such as topology.kubernetes.io/zone. With any other label in "
        "--node-labels kubelet does not start.",
        "Write a label of a domain of your own, or let a controller set the label once the node is registered.",
    )
    PLACEHOLDER_DIGEST = (
        "GB2029",
        "A digest that stands in for another",
        "No file has this digest, so whoever verifies the file rejects it. `gitboot init` writes such digests.",
        "Write what `sha256sum` prints for each file.",
    )
    TEMPLATE_SYNTAX = (
        "GB2101",
        "A template that cannot be read",
        "Its Jinja2 syntax is wrong.",
        "Correct the line that the message names. Write text that is not meant for Jinja2 between {% raw %} and "
        "{% endraw %}.",
    )
    TEMPLATE_FAILED = (
        "GB2102",
        "A template that cannot be rendered for a server",
        "It reads something that is not there, or does what the sandbox does not allow.",
        "Define what it reads, or give a default: {{ vars.NAME | default('…') }}.",
    )
    TEMPLATE_BOUNDS = (
        "GB2103",
        "A template without bounds",
        "Its output or its loops exceed what a boot file can need.",
        "Make it smaller: at most 1 MiB of output and 100,000 loop steps.",
    )

    # Secrets and safety, GB3…

    UNQUOTABLE = (
        "GB3001",
        "A value that a boot loader or the kernel cannot carry",
        "Some values cannot be quoted for iPXE, GRUB or the kernel's command line; unquoted they would end the "
        "command and begin another.",
        "Put the value into user data, or choose another.",
    )
    SECRET = (
        "GB3002",
        "Something that looks like a secret",
        "Published files can be read by whoever reaches them, and Git keeps every value for ever.",
        "Remove it, change it where it was valid, and let the machine fetch its secret (docs/secrets.md); where it is "
        "none, or nobody's, say so in its line: gitboot:allow-secret REASON.",
    )

    NOT_SEALED = (
        "GB3011",
        "A secret's file that no endpoint could open",
        "The machine would be refused its secret in the middle of its installation; and what is not encrypted is "
        "known to everybody who reads the repository.",
        "Encrypt it with `gitboot secret encrypt`, or with age to a key that begins with age1; where it stood in clear "
        "in Git, change the secret, too.",
    )
    SECRET_KEPT_OPEN = (
        "GB3012",
        "A secret for a boot that has no end",
        "A secret is given from when its installation is offered until that is done; to a machine that boots from the "
        "network again and again, or in a maintenance's window, it would be given at any time.",
        "Use networkBoot Once or OnImageChange, or let the machine fetch its secret from a secret store.",
    )

    ALLOWED_SECRET = (
        "GB3020",
        "Something that looks like a secret, and that its author lets pass",
        "A line says gitboot:allow-secret and why; reviewers see that it is published.",
        "Look whether the reason holds: published files can be read by whoever reaches them.",
    )

    # Images and artifacts, GB4…

    NO_ARTIFACT = (
        "GB4001",
        "The image has nothing to boot by this method",
        "For the server's architecture the image lacks the file that the profile's method needs.",
        "Add the file to the image, or change the profile's method.",
    )
    FIRMWARE = (
        "GB4002",
        "The server's firmware cannot boot by this method",
        "UefiHttp and unified kernel images need UEFI.",
        "Give servers with BIOS a profile with method Pxe and an image with a kernel.",
    )
    NO_WAY_IN = (
        "GB4003",
        "Arguments or user data that cannot reach the system",
        "Firmware passes nothing to a uki, iso or virtual medium that it boots directly.",
        "Build them into the image, boot through a loader, give Ignition user data to an image with configFrom: "
        "SystemUUID, or boot one with configFrom: Medium by VirtualMedia.",
    )
    USER_DATA_FORMAT = (
        "GB4004",
        "User data of a format that the image does not understand",
        "The first boot would ignore it, or stop.",
        "Change the profile's userData.format, or the image.",
    )
    USER_DATA_DOCUMENT = (
        "GB4005",
        "Rendered user data that breaks the rules of its format",
        "The first boot would stop at the document, or ignore it.",
        "Correct the template. The message names the fault and, if it is known, the line of the rendered text.",
    )
    NOT_VOUCHED_FOR = (
        "GB4006",
        "A file of an image that no listed key has signed",
        "Its digest says which bytes are meant; a signature says whose they are.",
        "Name the vendor's signature under `signature` or `checksums`, and give its key by --image-keys.",
    )

    NOT_MIRRORED = (
        "GB4007",
        "A file in a registry that is not mirrored",
        "Firmware, iPXE and GRUB fetch by HTTP or TFTP; none of them speaks to an OCI registry.",
        "Add `mirror` to the Fleet's outputs, and fetch the files into the published tree with "
        "`gitboot artifacts download`.",
    )
    TALOS_DOCUMENT = (
        "GB4008",
        "Rendered user data that Talos would not take",
        "A machine that boots with it stays in maintenance mode, or stops.",
        "Commit what `talosctl gen config` writes, with version and machine.type.",
    )
    AUTOYAST_DOCUMENT = (
        "GB4009",
        "Rendered user data that is no AutoYaST profile",
        "The installer would stop at it, and ask.",
        "Correct the template: well-formed XML, with YaST's profile as its root and no entities of its own.",
    )
    COMBUSTION_SCRIPT = (
        "GB4010",
        "Rendered user data that Combustion would not run",
        "The first boot ends in an emergency shell.",
        "Begin the script with #!/bin/bash.",
    )
    BESIDE_USER_DATA = (
        "GB4011",
        "A vendor-data or network-config that cloud-init would not take",
        "NoCloud's systems ignore it, and boot without it.",
        "Correct the template, or leave it out; only CloudInit and Autoinstall have such files.",
    )

    NO_FIRST_BOOT = (
        "GB4012",
        "Ignition user data without an argument for the first boot",
        "Ignition runs only if the kernel has an argument such as ignition.firstboot. Without the argument, the system "
        "starts and ignores its user data.",
        "Add the argument to the image's kernelArguments: ignition.firstboot and ignition.platform.id=metal for Fedora "
        "CoreOS and openSUSE MicroOS, flatcar.first_boot=1 for Flatcar.",
    )

    # The source, GB5…

    SUBMODULE = (
        "GB5001",
        "A submodule in the fleet",
        "Its content is not part of the commit.",
        "Copy the files in, or list the folder in .gitbootignore.",
    )
    SYMLINK = (
        "GB5002",
        "A symbolic link in the fleet",
        "Where it leads is not part of the commit.",
        "Replace it by the file, or list it in .gitbootignore.",
    )
    LFS_POINTER = (
        "GB5003",
        "A Git LFS pointer instead of a file",
        "The content is not part of the commit.",
        "Commit the file itself: fleets are text.",
    )
    FILE_NAME = (
        "GB5004",
        "A file name that is not UTF-8",
        "It cannot be shown or referred to.",
        "Rename the file.",
    )
    UNBOUNDED = (
        "GB5005",
        "A commit of more files than any fleet has",
        "A few bytes of Git can hold folders in folders without end, which nothing could read to the end.",
        "Look at what was committed: at most 1,500,000 files and folders, in paths of at most 4,096 characters.",
    )
    MALFORMED = (
        "GB5006",
        "A folder that Git itself cannot read",
        "Its tree object is damaged, or was not written by Git: a name that stands there twice, has a slash, or is "
        ".git, is something else in a checkout than here.",
        "Commit the folder anew from a clone in which `git fsck` finds nothing.",
    )
    IGNORE_PATTERN = (
        "GB5007",
        "A line of .gitbootignore that is no pattern",
        "Git would pass over it in silence, and files that it was to leave out would be read.",
        "Write patterns as in .gitignore: a character class is closed and in order, no line ends in a backslash.",
    )
    MERGE_CONFLICT = (
        "GB5008",
        "Two branches that do not merge",
        "Both changed the same lines, so there is no merge result to look at.",
        "Merge or rebase by hand, and compare again.",
    )
    LIMITS = (
        "GB5009",
        "A commit that takes more time or memory to evaluate than it may",
        "It would stop gitboot from working on anything else; the last accepted commit goes on.",
        "Look for huge files and templates in it; where it is sound, allow it more: commit-seconds and commit-memory, "
        "options of commands and settings of `gitboot run`.",
    )
    UNTRUSTED = (
        "GB5020",
        "A commit that no trusted key has signed",
        "This instance accepts only what is signed by the keys in its own settings; the last accepted commit goes on.",
        "See `git log --show-signature`; then sign it anew, or list the key where the instance runs.",
    )

    # What a review finds, GB6…

    HELD = (
        "GB6001",
        "A guard holds the commit",
        "It changes more than one commit may, or something that always wants a second look.",
        "Look at what `gitboot diff` shows; then split the commit, or acknowledge it by the line that is printed.",
    )
    DANGEROUS = (
        "GB6002",
        "A change that can hurt",
        "Disks may be written, machines lose their boot, or many get other kernel arguments.",
        "Look at the group of servers in `gitboot diff` that the message names.",
    )
    UNHEEDED = (
        "GB6003",
        "An acknowledgement that counts for nothing",
        "It is malformed, names no guard, or was made for other changes than these.",
        "Copy the line that `gitboot diff` prints now into the last commit's message.",
    )


class Severity(StrEnum):
    ERROR = "error"  # the commit is refused
    WARNING = "warning"  # the commit is accepted; a person should look


class Problem(Struct, frozen=True, kw_only=True, order=True):
    """One thing that is wrong with a commit: where, what, and how it is fixed."""

    path: str  # of the file in the repository, "/" between folders
    line: int  # 1-based
    column: int  # 1-based, in characters
    code: str  # "GB1004": stable, explained by `gitboot explain GB1004`
    message: str  # what was found and what was expected, without a full stop
    hint: str = ""  # what to do about it
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return printable(f"{self.path}:{self.line}:{self.column}: {self.code}: {self.message}{hint}")


MAX_SHOWN: Final = 100  # of a file
MAX_KEPT: Final = MAX_SHOWN + 1  # whose place says from where on they are not shown


def select_first(problems: Iterable[Problem], more: Mapping[str, int] | None = None) -> tuple[Problem, ...]:
    """The first hundred errors and the first hundred warnings of each file, sorted, and a count of the rest.

    ``more`` counts errors of a file that lie behind those in ``problems``.
    """
    more = more or {}
    groups: defaultdict[tuple[str, Severity], list[Problem]] = defaultdict(list)
    for problem in problems:
        groups[problem.path, problem.severity].append(problem)
    shown: list[Problem] = []
    for (path, severity), group in groups.items():
        group.sort()
        shown += group[:MAX_SHOWN]
        count = len(group[MAX_SHOWN:]) + (more.get(path, 0) if severity is Severity.ERROR else 0)
        if count > 0:
            are = "problem from here on is" if count == 1 else "problems from here on are"
            message, code = f"{count:,} more {are} not shown", Code.TOO_MANY_PROBLEMS
            shown.append(structs.replace(group[:MAX_KEPT][-1], code=code, message=message, hint=code.hint))
    return tuple(sorted(shown))


class DatedProblem(Struct, frozen=True, kw_only=True):
    """A problem that holds in [since, until). The same commit has it at any time; only the commands apply the clock."""

    problem: Problem
    since: datetime | None  # None: it has always held
    until: datetime | None  # None: it holds until the commit changes

    def holds(self, at: datetime) -> bool:
        return (self.since is None or self.since <= at) and (self.until is None or at < self.until)


def find_problems_at(dated_problems: Iterable[DatedProblem], at: datetime) -> tuple[Problem, ...]:
    """Return the problems that hold at an instant, sorted."""
    return tuple(sorted(each.problem for each in dated_problems if each.holds(at)))


def find_next_change(dated_problems: Iterable[DatedProblem], at: datetime) -> datetime | None:
    """Return the first instant after ``at`` at which a problem begins or ends; None: there is no such instant."""
    bounds = (bound for each in dated_problems for bound in (each.since, each.until) if bound is not None)
    return min((bound for bound in bounds if bound > at), default=None)


def select_longest(dated_problems: Iterable[DatedProblem]) -> tuple[DatedProblem, ...]:
    """Return the hundred errors and the hundred warnings of each file that hold longest, sorted by place.

    If any problem of a file holds at some instant, one of those that are returned does. One more problem counts the
    rest. It holds until the first of the rest is over.
    """
    groups: defaultdict[tuple[str, Severity], list[DatedProblem]] = defaultdict(list)
    for each in dated_problems:
        groups[each.problem.path, each.problem.severity].append(each)
    found: list[DatedProblem] = []
    for group in groups.values():
        group.sort(key=lambda each: each.problem)
        group.sort(key=lambda each: each.since or _FIRST)
        group.sort(key=lambda each: each.until or _LAST, reverse=True)
        found += group[:MAX_SHOWN]
        if rest := group[MAX_SHOWN:]:
            message = f"up to {len(rest):,} more problems that depend on the time are not shown"
            code = Code.TOO_MANY_PROBLEMS
            found.append(
                structs.replace(
                    rest[0], problem=structs.replace(rest[0].problem, code=code, message=message, hint=code.hint)
                )
            )
    return tuple(sorted(found, key=lambda each: each.problem))


_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_RANK = {severity: rank for rank, severity in enumerate(Severity)}  # as they are defined: the worst first


def sort_by_severity(problems: Iterable[Problem]) -> list[Problem]:
    """Errors before warnings, each by place."""
    return sorted(problems, key=lambda problem: (_RANK[problem.severity], problem))


def format_with_hint(problem: Problem) -> str:
    """What is wrong, and what to do about it."""
    return printable(f"{problem.message} ({problem.hint})" if problem.hint else problem.message)
