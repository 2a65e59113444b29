"""Problems in commits: their codes, their type, and their order."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum

from msgspec import Struct

from gitboot.text import printable


class Code(StrEnum):
    """The code of a problem, with the text that ``gitboot explain CODE`` prints."""

    headline: str  # the problem in a few words
    why: str  # the reason why gitboot reports the problem
    fix: str  # the action that fixes the problem

    def __new__(cls, code: str, headline: str, why: str, fix: str) -> Code:
        member = str.__new__(cls, code)
        member._value_ = code
        member.headline, member.why, member.fix = headline, why, fix
        return member

    @property
    def hint(self) -> str:
        """The fix, in the form of a hint that follows a message."""
        return self.fix[0].lower() + self.fix[1:].removesuffix(".")

    def build_problem(self, message: str, path: str = ".") -> Problem:
        """Return a problem that concerns a whole file or the whole fleet."""
        return Problem(path=path, line=1, column=1, code=self, message=message, hint=self.hint)

    # GB1…: YAML and its values

    NOT_YAML = (
        "GB1001",
        "The file is not valid YAML",
        "The YAML parser cannot read the document beyond this point.",
        "Correct the indentation, close all brackets and quotes, and replace tabs with spaces.",
    )
    NOT_UTF8 = (
        "GB1002",
        "The file is not UTF-8",
        "All files in a fleet must be UTF-8, so that every machine reads the same text.",
        "Save the file as UTF-8.",
    )
    CONTROL_CHARACTER = (
        "GB1003",
        "The file contains a control character",
        "YAML forbids most control characters. In a comment, a line break other than LF and CRLF would hide fields.",
        "Remove the character. If the value needs the character, write it as an escape sequence in double quotes.",
    )
    FILE_TOO_LARGE = (
        "GB1004",
        "The file is too large",
        "A large file could use up gitboot's memory, so gitboot limits the size of each file.",
        "Split the file into smaller files. If the file is not part of the fleet, list it in .gitbootignore.",
    )
    DOCUMENT_TOO_LARGE = (
        "GB1005",
        "The document is larger than 1 MiB",
        "A large document could use up gitboot's memory, so gitboot limits the size of each document.",
        "Move long text to template files.",
    )
    TOO_DEEP = (
        "GB1006",
        "Lists and mappings are nested more than 64 levels deep",
        "Documents need only a few levels of nesting, and very deep nesting could overload the YAML parser.",
        "Remove the extra brackets or dashes.",
    )
    ALIAS = (
        "GB1007",
        "The document uses an alias (*name)",
        "A reviewer must see each value where it is used. Chains of aliases can also exhaust a parser's memory.",
        "Repeat the value, or use `inherits`, variables or templates.",
    )
    ANCHOR = (
        "GB1008",
        "The document defines an anchor (&name)",
        "Anchors are useful only for aliases, which gitboot rejects.",
        "Remove the anchor. If the value is text that begins with &, put the text in quotes.",
    )
    TAG = (
        "GB1009",
        "The document uses a tag (!name)",
        "The schema defines the type of each value, so a document cannot set a type with a tag.",
        "Remove the tag. If the value is text that begins with !, put the text in quotes.",
    )
    MERGE_KEY = (
        "GB1010",
        "The document uses a merge key (<<)",
        "Reviewers must be able to see all fields in the document itself, so gitboot rejects merge keys.",
        "Repeat the fields, or let one policy inherit from another.",
    )
    DUPLICATE_KEY = (
        "GB1011",
        "The same key appears twice in a mapping",
        "YAML parsers disagree on which value of a repeated key to use.",
        "Remove one of the two keys.",
    )
    INVALID_KEY = (
        "GB1012",
        "A mapping key is empty, or is itself a list or a mapping",
        "A key is a field name, so it must be text.",
        "Correct the colons and the indentation. If a value begins with {{, put the value in quotes.",
    )
    ROOT_NOT_MAPPING = (
        "GB1013",
        "The document is not a mapping",
        "Each document must be a mapping with the keys `apiVersion`, `kind`, `metadata` and `spec`.",
        "Begin the document with `apiVersion:`. If the file is not part of the fleet, list it in .gitbootignore.",
    )
    DIRECTIVE = (
        "GB1014",
        "The document contains a YAML directive",
        "The directives %YAML and %TAG change how a parser reads the document, so gitboot rejects them.",
        "Remove the line that begins with '%'.",
    )
    TOO_MANY_PROBLEMS = (
        "GB1015",
        "The file has more problems than gitboot shows",
        "For each file, gitboot shows at most 100 errors and 100 warnings. The rest often have the same cause.",
        "Fix the listed problems, and validate again.",
    )
    API_VERSION = (
        "GB1020",
        "The apiVersion is not supported",
        "The field `apiVersion` specifies the document format. This version of gitboot supports only one format.",
        "Write `apiVersion: gitboot.dev/v1alpha1`.",
    )
    KIND = (
        "GB1021",
        "The kind does not exist",
        "If gitboot ignored unknown kinds, a document with a misspelled kind would silently have no effect.",
        "Use Fleet, Server, BootImage, ImageStream, ImageSource, BootProfile, BootPolicy or Maintenance. If the file "
        "is not part of the fleet, list it in .gitbootignore.",
    )
    UNKNOWN_FIELD = (
        "GB1022",
        "This kind of document does not have this field",
        "If gitboot ignored unknown fields, a misspelled setting would silently have no effect.",
        "Correct the spelling or the indentation. Run `gitboot explain KIND` to list the fields.",
    )
    MISSING_FIELD = (
        "GB1023",
        "A required field is missing or empty",
        "The document is incomplete without the field. An empty value or null counts as missing.",
        "Add the field. Run `gitboot explain KIND` for its description.",
    )
    SHAPE = (
        "GB1024",
        "The value has the wrong type",
        "Each field expects a mapping, a list or a single value. The message names the expected type.",
        "Correct the indentation, or the dashes of list items.",
    )
    NAME = (
        "GB1025",
        "The name is not valid",
        "Names appear in URLs, file names and DNS, so they follow the Kubernetes rule for names (DNS-1123 subdomain).",
        "Use at most 253 (Server: 241) lower-case letters, digits, '-' and '.', with a letter or digit at both ends.",
    )
    LABEL = (
        "GB1026",
        "The label is not valid",
        "Labels follow the Kubernetes syntax, so that you can use the same labels in both systems.",
        "Use at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends. A key may begin with "
        "a DNS prefix and a slash.",
    )
    INTEGER = (
        "GB1030",
        "The value is not a whole number",
        "YAML parsers interpret numbers such as 010, 0x10 and 1_000 differently, so gitboot rejects these forms.",
        "Use only digits, without a leading 0.",
    )
    BOOLEAN = (
        "GB1031",
        "The value is not true or false",
        "YAML parsers disagree about the meaning of `yes`, `no`, `on` and `off`, so gitboot rejects these words.",
        "Write `true` or `false`.",
    )
    CHOICE = (
        "GB1032",
        "The field does not allow this value",
        "The field allows only certain values, which are case-sensitive.",
        "Use one of the values that the message lists.",
    )
    MAC = (
        "GB1033",
        "The value is not a valid interface MAC address",
        "A boot loader finds its script by an interface's MAC address. An interface cannot have a multicast address "
        "or an all-zero address.",
        "Write the interface's address as six pairs of hexadecimal digits, for example 52:54:00:12:34:56. For an "
        "InfiniBand interface, write the six-byte MAC address that iPXE shows as ${net0/mac}.",
    )
    UUID = (
        "GB1034",
        "The value is not a system UUID or a ledger UUID",
        "A system UUID (SMBIOS) identifies a server's record, and a ledger UUID identifies an instance. A system UUID "
        "that is all zeros or all Fs means that the firmware has no UUID.",
        "Copy a system UUID from `dmidecode -s system-uuid` or the BMC. If the firmware has no UUID, set a UUID "
        "in the firmware. Copy a ledger UUID from `gitboot status`.",
    )
    ADDRESS = (
        "GB1035",
        "The value is not an IP address or a network",
        "An IP address identifies a machine if a request has no MAC address. A network describes a group of clients, "
        "such as the machines whose fetches count as evidence.",
        "Write an address as 10.12.0.13, 10.12.0.13/24 or fd00:12::13/64, and a network as 10.12.0.0/24.",
    )
    DIGEST = (
        "GB1036",
        "The value is not a SHA-256 digest",
        "A digest identifies the exact content of a file or a certificate.",
        "Copy the 64 lower-case hexadecimal digits that `sha256sum` prints for the file.",
    )
    URL = (
        "GB1037",
        "The URL is not valid",
        "Boot scripts contain URLs, so a URL must be plain ASCII without spaces, quotes or credentials.",
        "Use assets:PATH, http(s)://HOST/PATH or oci://HOST/NAME@sha256:DIGEST, and percent-encode special characters. "
        "Use https://HOST/NAME.tar.gz#PATH for a file in an archive. "
        "For a BMC, use https://HOST, or ipmi://HOST if the BMC does not support Redfish.",
    )
    INSTANT = (
        "GB1038",
        "The time is not valid, or has no UTC offset",
        "Without a UTC offset, a time means a different instant in each time zone.",
        "Write the time with its UTC offset, for example 2026-11-20T22:00:00Z or 2026-11-20T23:00:00+01:00.",
    )
    COUNT = (
        "GB1039",
        "The number or percentage is out of range",
        "The message states the range that the field allows.",
        "Write a value in this range.",
    )
    SELECTOR = (
        "GB1040",
        "The selector is incomplete or ambiguous",
        "An empty selector means all servers in some tools and no servers in others, so gitboot rejects it.",
        "Use `All`, `None` or `servers`, or use `matchLabels`, `matchExpressions` or both.",
    )
    FILE_PATH = (
        "GB1041",
        "The path is not valid",
        "Templates, certificates and secrets must be files in the same commit, below the fleet's root.",
        "Write the path relative to the fleet's root, with '/' and without '.' or '..'.",
    )
    EMPTY = (
        "GB1042",
        "The value is empty",
        "The field must have a value.",
        "Add a value, or remove the field if it is optional.",
    )
    ARGUMENT = (
        "GB1043",
        "The item is not a single kernel argument",
        "Each list item must be one argument on one line.",
        "Write one argument in each item: name, name=value, or -name to remove an argument.",
    )
    COMBINATION = (
        "GB1044",
        "The fields cannot be combined",
        "The fields contradict each other, or have no effect in combination.",
        "Change or remove one of the fields that the message names.",
    )
    WINDOW = (
        "GB1045",
        "The window ends before it starts",
        "A window includes its start and excludes its end, so its end must be after its start.",
        "Set `end` to a time after `start`.",
    )
    VARIABLE = (
        "GB1046",
        "The variable name is not valid",
        "Templates read a variable as `vars.NAME`, so its name must be a valid Jinja2 identifier.",
        "Use only letters, digits and '_', and begin the name with a letter or '_'.",
    )
    OCI_TAG = (
        "GB1047",
        "The URL has a tag instead of a digest",
        "A tag can later point to a different image, so a document identifies each file by its digest.",
        "Copy the output of `gitboot artifacts resolve oci://HOST/NAME:TAG`.",
    )
    DURATION = (
        "GB1048",
        "The value is not a duration",
        "A duration is one or more numbers with a unit: w, d, h, m or s.",
        "Write 3d, 12h or 1d12h.",
    )
    SOURCE_TEMPLATE = (
        "GB1049",
        "A template in the image source is not valid",
        "URL and name templates use placeholders such as {version}. Each field allows only some placeholders.",
        "Use one of the placeholders that the message lists.",
    )
    SOURCE_KEY = (
        "GB1050",
        "The value is not a key fingerprint",
        "A fingerprint identifies one OpenPGP key. A shorter key ID can belong to several keys.",
        "Write the 40 or 64 hexadecimal digits that `gpg --show-keys FILE` prints.",
    )

    # GB2…: references and resolution

    NO_FLEET = (
        "GB2001",
        "The repository has no Fleet",
        "The Fleet contains settings for all servers, such as their base URL. A repository needs exactly one Fleet.",
        "Add a Fleet in fleet.yaml. Run `gitboot init DIR` for an example.",
    )
    DUPLICATE_NAME = (
        "GB2002",
        "Two documents or sites have the same name",
        "Documents of the same kind, and sites, must have different names. Otherwise, a name could refer to either.",
        "Rename or remove one of the two.",
    )
    DUPLICATE_IDENTITY = (
        "GB2003",
        "Two servers have the same identity",
        "A UUID, MAC address, serial number, IP address or BMC system belongs to one machine. If two servers share an "
        "identity, a machine could boot as the wrong one. Only interfaces of the same server may share an IP address.",
        "Correct the duplicate value, or remove the document of a machine that no longer exists.",
    )
    UNKNOWN_REFERENCE = (
        "GB2004",
        "The document or file does not exist",
        "A document can refer only to documents and files in the same commit.",
        "Correct the spelling, or add the missing document or file.",
    )
    CYCLE = (
        "GB2005",
        "A policy inherits from itself",
        "The policy inherits from itself, directly or through other policies, so gitboot cannot determine its fields.",
        "Remove `inherits` from one of the policies.",
    )
    NOT_INHERITED = (
        "GB2006",
        "The policy does not set or inherit a required field",
        "A policy must set `profile` and `networkBoot`, or inherit them from another policy.",
        "Set the field, or inherit from a policy that sets the field.",
    )
    NO_POLICY = (
        "GB2010",
        "No policy selects the server",
        "Without a policy, the server has nothing to boot from the network (rule R3).",
        "Select the server in a policy, set `policy` or `lifecycle: Parked` in the Server, or set "
        "`requirePolicy: false` in the Fleet.",
    )
    POLICY_TIE = (
        "GB2011",
        "Several policies with the same priority select the server",
        "The policy with the highest priority wins (rule R3). gitboot cannot choose between equal priorities.",
        "Raise the priority of one policy, make one inherit from the other, or narrow a selector.",
    )
    MAINTENANCE_TIE = (
        "GB2012",
        "Two maintenances with the same priority overlap",
        "The active maintenance with the highest priority wins (rule R2). If two maintenances have the same priority, "
        "gitboot cannot choose between them. This problem disappears when the overlap ends.",
        "Raise the priority of one maintenance, or move one of the windows.",
    )
    SKEW = (
        "GB2013",
        "The image is older than the stream allows",
        "The stream sets skew.minimumVersion for all its servers, including servers with a pin or a hold.",
        "Select a newer image for the server, or lower `skew.minimumVersion`.",
    )
    OVERRIDE_MODE = (
        "GB2014",
        "A direct boot uses `override: Continuous`",
        "A uki or iso that the BMC boots directly has no boot script that could end the override. The machine would "
        "be installed again and again.",
        "Set `override: Once`, or boot through a boot loader.",
    )
    UNKNOWN_WRITES_DISK = (
        "GB2015",
        "Unknown machines would boot an image that writes to disk",
        "Every machine that you connect to the network would lose its data.",
        "Use an image with `writesDisk: false`, or set `unknownServers: LocalDisk`.",
    )
    OVERDUE = (
        "GB2016",
        "A pin or hold has passed its deadline",
        "The deadline only reminds you to check the pin or hold. It does not change what the server boots.",
        "Remove the pin or hold, or set a new deadline.",
    )
    NOT_YET = (
        "GB2017",
        "This version of gitboot does not support the setting",
        "This version cannot apply the setting. Without the setting, the servers would boot differently.",
        "Remove the setting, or use a version of gitboot that supports it.",
    )
    EVERY_BOOT = (
        "GB2018",
        "Each boot would reinstall the server",
        "With `networkBoot: Always` (the default for a maintenance), the machine boots the installer at each restart.",
        "Use `networkBoot: Once`, or an image with `writesDisk: false`. To reinstall at each boot, set "
        "`reinstall: EveryBoot`.",
    )
    ENDLESS = (
        "GB2019",
        "A maintenance that writes to disk has no end time",
        "Without an end time, a maintenance stays active while its document exists, and could erase disks years later.",
        "Set `end` in the maintenance's window.",
    )
    NO_IPV6_CLIENTS = (
        "GB2020",
        "Machines fetch over IPv6, but provisioning.clients has no IPv6 networks",
        "A URL for machines contains an IPv6 address, but all networks in provisioning.clients are IPv4. An endpoint "
        "would withhold one-time boots from machines that fetch over IPv6.",
        "Add the machines' IPv6 networks to provisioning.clients.",
    )
    UUID_NEEDED = (
        "GB2021",
        "The server needs a UUID",
        "The UUID identifies a server's record. Without a UUID, gitboot could install another machine by mistake.",
        "Add the uuid that `dmidecode -s system-uuid` or the BMC shows. Until you have the UUID, set lifecycle: "
        "Parked, or boot an image that does not write to disk.",
    )
    ONE_SITE = (
        "GB2022",
        "The server does not belong to exactly one site",
        "If a site names a ledger, each site has its own instance. Each server must belong to exactly one instance.",
        "Select the server in exactly one site. If one instance serves all sites, remove `ledger` from the sites.",
    )
    NO_SUCH_SITE = (
        "GB2023",
        "This instance's site is not in the Fleet",
        "The site name may be misspelled, so a new instance rejects the commit. An instance that has already accepted "
        "a commit becomes a standby instead.",
        "Correct the name in `gitboot run --site`, or add the site to the Fleet.",
    )
    PLACEHOLDER_IDENTITY = (
        "GB2024",
        "The UUID, serial number or MAC address is not unique",
        "Firmware reports this value if the UUID, serial number or MAC address is not set. Another machine with the "
        "same value could get this server's boot, so gitboot does not identify machines by this value.",
        "Set a unique value in the machine's firmware and in this field, or remove the field.",
    )
    NO_ENDPOINT = (
        "GB2025",
        "One-time boots need an endpoint, but the Fleet does not set one",
        "Only an endpoint records a fetch before it serves a boot. Mirrors, buckets, TFTP servers and nginx "
        "cannot do this, so they serve a local-disk boot instead of a one-time install boot.",
        "Set spec.endpoint to the URL of `gitboot run --listen` or `gitboot serve`. If you accept that every client "
        "can fetch the boot until gitboot reads the access logs, set spec.serving.oneTimeBoots: Copies.",
    )
    LATE_END = (
        "GB2026",
        "A copy of the boot files cannot end the maintenance on time",
        "A boot script in a copy checks with the endpoint whether the maintenance has ended. A loader that cannot do "
        "this ignores the maintenance. Without an endpoint, the maintenance ends only when gitboot updates the copy.",
        "Set spec.endpoint to an http URL, or to an https URL with `serving.ipxeHttps: true` if every iPXE supports "
        "https. To accept late ends, set `serving.lateEnds: Accept`. On a mirror, run the program that `gitboot "
        "verify-mirror --write-program` writes.",
    )
    EXPIRED_AUTHORITY = (
        "GB2027",
        "The certificate authority for BMCs has expired or is malformed",
        "The file in spec.bmc.tls.ca lets gitboot verify the BMC's certificate. If a certificate in the file is "
        "malformed, or if every certificate in the file has expired, gitboot does not set the server's boot.",
        "Add the authority's new certificate to the file, and remove malformed certificates.",
    )
    KUBELET_LABEL = (
        "GB2028",
        "The kubelet rejects the node label",
        "Under kubernetes.io and k8s.io, the kubelet accepts only labels in kubelet.kubernetes.io and "
        "node.kubernetes.io, and a few others such as topology.kubernetes.io/zone. If --node-labels contains any other "
        "label there, the kubelet does not start.",
        "Use a label in your own domain, or let a controller set the label after the node registers.",
    )
    PLACEHOLDER_DIGEST = (
        "GB2029",
        "The digest is a placeholder",
        "The real file has a different digest, so a client that verifies the file rejects it. The command `gitboot "
        "init` writes such placeholders.",
        "Replace each placeholder with the digest that `sha256sum` prints for the file.",
    )
    SELECTS_NO_SERVER = (
        "GB2030",
        "The selector matches no server",
        "A policy, maintenance, site, hold or rollout without servers has no effect. A label may be misspelled.",
        "Correct the label in the selector, or add the label to the servers.",
    )
    SECURE_BOOT = (
        "GB2031",
        "The server cannot boot as planned with Secure Boot",
        "With secureBoot: true, the server's firmware starts only programs with a trusted signature.",
        "Configure DHCP to offer Shim, and boot an image with a signed kernel or uki (docs/how-to/secure-boot.md).",
    )
    LOADER_SIGNATURE = (
        "GB2032",
        "The program that boots the image ignores loaderSignature",
        "Only iPXE verifies loaderSignature, and only in gitboot's boot script. GRUB, PXELINUX, firmware and "
        "scripts from templates boot the files without this check.",
        "Boot the image with iPXE (`loader: iPXE`), or remove `loaderSignature` from the image.",
    )
    TEMPLATE_SYNTAX = (
        "GB2101",
        "The template has a syntax error",
        "The template is not valid Jinja2.",
        "Correct the line that the message names. Put text that is not for Jinja2 between {% raw %} and {% endraw %}.",
    )
    TEMPLATE_FAILED = (
        "GB2102",
        "The template cannot be rendered for a server",
        "The template reads a value that does not exist, or does something that templates do not allow.",
        "Correct the template. Define the value, or use a default, for example {{ vars.NAME | default('…') }}.",
    )
    TEMPLATE_BOUNDS = (
        "GB2103",
        "The template exceeds a limit",
        "A boot file needs far less output and far fewer loop steps than the limits allow.",
        "Reduce the template's output to at most 1 MiB, and its loops to at most 100,000 steps in total.",
    )

    # GB3…: secrets and safety

    UNQUOTABLE = (
        "GB3001",
        "A boot loader or the kernel cannot read the value",
        "A value that cannot be quoted safely for iPXE, GRUB or the kernel command line could run as a command.",
        "Move the value to user data, or use another value.",
    )
    SECRET = (
        "GB3002",
        "The value looks like a secret",
        "Every client that can reach the published files can read the value, and the value stays in Git history.",
        "Remove the secret, and let the machine fetch it (docs/how-to/secrets.md). If the secret was in use, replace "
        "it. If the value is not a secret, add the comment 'gitboot:allow-secret REASON' to its line.",
    )
    RESERVED_ARGUMENT = (
        "GB3003",
        "The kernel argument is reserved for boot loaders",
        "The kernel loads the file that `initrd=` specifies, so a wrong name breaks the boot. Boot loaders set "
        "`BOOT_IMAGE=` themselves.",
        "Remove the argument. List initrds in the BootImage instead.",
    )
    LOST_ARGUMENT = (
        "GB3004",
        "The item does not remove any kernel arguments",
        "An item such as '-c' removes earlier arguments named 'c', but no earlier argument has this name. If the item "
        "is meant for the init process, the machine would boot without the item.",
        "Write '--' before arguments for the init process, or remove the item.",
    )

    NOT_SEALED = (
        "GB3011",
        "The secret file is not encrypted correctly",
        "Endpoints cannot decrypt the file, so the installation would fail. If the file is not encrypted, everyone "
        "who can read the repository can read the secret.",
        "Encrypt the file with `gitboot secret encrypt`, or use age with a public key that begins with age1. If the "
        "unencrypted secret was in Git, change the secret too.",
    )
    SECRET_KEPT_OPEN = (
        "GB3012",
        "The boot that uses the secret is not a one-time boot",
        "An endpoint serves a secret only during an installation. If a boot never completes, its secret stays exposed.",
        "Set `networkBoot` to Once or OnImageChange, or let the machine fetch the secret from a secret store.",
    )

    ALLOWED_SECRET = (
        "GB3020",
        "The value looks like a secret, but a comment allows it",
        "A `gitboot:allow-secret` comment on this line allows gitboot to publish the value. The message quotes the "
        "reason from the comment.",
        "Check that the reason is valid. Every client that can reach the published files can read the value.",
    )

    # GB4…: images and artifacts

    NO_ARTIFACT = (
        "GB4001",
        "The image lacks a file that the boot method needs",
        "The image has no file for the server's architecture that the profile's method can boot.",
        "Add the file to the image, or change the profile's method.",
    )
    FIRMWARE = (
        "GB4002",
        "The server's firmware does not support the boot method",
        "UefiHttp and unified kernel images need UEFI, but the server has BIOS firmware.",
        "For BIOS servers, use a profile with `method: Pxe` and an image with a kernel.",
    )
    NO_WAY_IN = (
        "GB4003",
        "Kernel arguments or user data cannot reach the system",
        "If firmware boots a uki, iso or virtual medium directly, the system gets no kernel arguments or user data.",
        "Build the settings into the image, or boot through a boot loader. For user data, you can also use Ignition "
        "with `configFrom: SystemUUID`, or `method: VirtualMedia` with `configFrom: Medium`.",
    )
    USER_DATA_FORMAT = (
        "GB4004",
        "The image does not support the user data format",
        "The first boot would fail, or the system would ignore the user data.",
        "Change userData.format in the profile, or use another image.",
    )
    USER_DATA_DOCUMENT = (
        "GB4005",
        "The rendered user data does not match its format",
        "The first boot would fail, or the system would ignore the document.",
        "Correct the template. The message describes the error and, if known, its line in the rendered text.",
    )
    NOT_VOUCHED_FOR = (
        "GB4006",
        "An image file is not signed by a trusted key",
        "A file's digest identifies its content. A signature shows who published the file.",
        "Add the vendor's signature under `signature` or `checksums`. If gitboot does not ship the vendor's key, add "
        "the key to the --image-keys directory.",
    )

    NOT_MIRRORED = (
        "GB4007",
        "Machines cannot fetch files from registries or archives",
        "Firmware, iPXE and GRUB fetch whole files over HTTP or TFTP, not from OCI registries or archives.",
        "Add `mirror` to the Fleet's outputs, and download the files with `gitboot artifacts download`.",
    )
    TALOS_DOCUMENT = (
        "GB4008",
        "The rendered user data is not a Talos configuration",
        "A machine that boots with this user data stays in maintenance mode, or stops.",
        "Commit the output of `talosctl gen config`, including the fields `version` and `machine.type`.",
    )
    AUTOYAST_DOCUMENT = (
        "GB4009",
        "The rendered user data is not an AutoYaST profile",
        "The installer would stop and wait for input.",
        "Correct the template. The rendered text must be well-formed XML, have an AutoYaST profile as its root, and "
        "contain no entity declarations.",
    )
    COMBUSTION_SCRIPT = (
        "GB4010",
        "The rendered user data is not a Combustion script",
        "The first boot would end in an emergency shell.",
        "Begin the script with `#!/bin/bash`.",
    )
    BESIDE_USER_DATA = (
        "GB4011",
        "The vendor-data or network-config is not valid for cloud-init",
        "A system with cloud-init would ignore the file and boot without it.",
        "Correct the template, or remove it. Only the formats CloudInit and Autoinstall use such files.",
    )

    NO_FIRST_BOOT = (
        "GB4012",
        "No kernel argument starts Ignition",
        "Ignition runs only if the kernel has an argument such as `ignition.firstboot`.",
        "Add `flatcar.first_boot=1` (Flatcar) or `ignition.firstboot` and `ignition.platform.id=metal` (Fedora CoreOS "
        "and openSUSE MicroOS) to the image's kernelArguments.",
    )

    FALSE_PROVENANCE = (
        "GB4013",
        "A file's stated provenance is wrong",
        "The image claims that a vendor signed the file, and reviewers rely on this claim.",
        "Write the key that `gitboot artifacts signatures` shows, or set provenance.digest to published or firstSeen.",
    )

    # GB5…: the source

    SUBMODULE = (
        "GB5001",
        "The fleet contains a submodule",
        "A submodule's files are not part of the commit.",
        "Copy the files into the repository, or list the folder in .gitbootignore.",
    )
    SYMLINK = (
        "GB5002",
        "The fleet contains a symbolic link",
        "A symbolic link can point outside the commit, so gitboot rejects it.",
        "Replace the link with the file, or list the link in .gitbootignore.",
    )
    LFS_POINTER = (
        "GB5003",
        "The file is a Git LFS pointer",
        "The commit contains only a pointer, not the file's content.",
        "Commit the file itself, without Git LFS.",
    )
    FILE_NAME = (
        "GB5004",
        "The file name is not UTF-8",
        "Documents and messages must be valid UTF-8, so they cannot refer to a file with this name.",
        "Rename the file.",
    )
    UNBOUNDED = (
        "GB5005",
        "The commit has too many files",
        "A few small Git objects can describe millions of files, so gitboot limits the number of files in a commit.",
        "Remove the extra files. Commit at most 1,500,000 files and folders, in paths of at most 4,096 characters.",
    )
    MALFORMED = (
        "GB5006",
        "Git cannot read a folder in the commit",
        "The folder's tree object is damaged, or was not written by Git. If a name appears twice, contains a slash, or "
        "is .git, a checkout differs from the commit.",
        "Commit the folder again from a clone in which `git fsck` reports no errors.",
    )
    IGNORE_PATTERN = (
        "GB5007",
        "A line in .gitbootignore is not a valid pattern",
        "Git would silently ignore the line, and gitboot would read the files that the line should exclude.",
        "Write the pattern as in .gitignore, with closed character classes, ascending ranges, and no \\ at the end.",
    )
    MERGE_CONFLICT = (
        "GB5008",
        "The branches have a merge conflict",
        "Both branches changed the same lines, so there is no merge result to compare.",
        "Merge or rebase the branches by hand, and compare again.",
    )
    LIMITS = (
        "GB5009",
        "Evaluating the commit exceeds a limit",
        "A commit that needs too much time or memory would block all other commits. The last accepted commit stays in "
        "effect.",
        "Remove very large files and templates from the commit. If the commit is correct, raise commit-seconds or "
        "commit-memory with a command option or in the `gitboot run` configuration.",
    )
    UNTRUSTED = (
        "GB5020",
        "The commit is not signed by a trusted key",
        "This instance accepts only commits or tags that are signed with a key from its own settings. The last "
        "accepted commit stays in effect.",
        "Check `git log --show-signature`. Then sign the commit again, or add its key to the instance's settings.",
    )

    # GB6…: findings of a review

    HELD = (
        "GB6001",
        "A guard is holding the commit",
        "The commit changes more than the guard allows, or makes a change that always needs an acknowledgement.",
        "Check the `gitboot diff` output. Then split the commit, or add the acknowledgement line from that output.",
    )
    DANGEROUS = (
        "GB6002",
        "The change is dangerous",
        "Machines may write to their disks or have nothing to boot, or many machines get different kernel arguments.",
        "Run `gitboot diff`, and check the group of servers that the message names.",
    )
    UNHEEDED = (
        "GB6003",
        "The acknowledgement is not valid",
        "The acknowledgement line is malformed, does not name a guard, or refers to different changes.",
        "Copy the line from the `gitboot diff` output into the last commit's message.",
    )
    UNVERIFIED_PROVENANCE = (
        "GB6004",
        "An image's provenance is not verified",
        "The document of a new image states where its digests come from. This is only a claim until gitboot has "
        "verified it with a trusted key.",
        "Run `gitboot artifacts signatures -o json=FILE`, and pass FILE to `gitboot diff --verified`.",
    )


class Severity(StrEnum):
    ERROR = "error"  # gitboot rejects the commit
    WARNING = "warning"  # gitboot accepts the commit, but a person should look at the warning


class Problem(Struct, frozen=True, kw_only=True, order=True):
    """A problem in a commit: its location, a message, and a hint."""

    path: str  # path of the file in the repository, with "/" as the separator
    line: int  # number of the line, from 1
    column: int  # column in characters, from 1
    code: str  # a code such as "GB1004", which `gitboot explain GB1004` explains; codes are never reused
    message: str  # the value that gitboot found and the value that it expected, without a full stop
    hint: str = ""  # the action that fixes the problem
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        hint = f" ({self.hint})" if self.hint else ""
        return printable(f"{self.path}:{self.line}:{self.column}: {self.code}: {self.message}{hint}")


class DatedProblem(Struct, frozen=True, kw_only=True):
    """A problem that exists from ``since`` until just before ``until``.

    The commit determines this interval. The clock determines whether the problem exists now.
    """

    problem: Problem
    since: datetime | None  # None: from the beginning
    until: datetime | None  # None: until the commit changes

    def exists_at(self, at: datetime) -> bool:
        return (self.since is None or self.since <= at) and (self.until is None or at < self.until)


def find_problems_at(dated_problems: Iterable[DatedProblem], at: datetime) -> tuple[Problem, ...]:
    """Return the problems that exist at an instant, in sorted order."""
    return tuple(sorted(each.problem for each in dated_problems if each.exists_at(at)))


def find_next_change(dated_problems: Iterable[DatedProblem], at: datetime) -> datetime | None:
    """Return the first instant after ``at`` at which a problem begins or ends, or None."""
    bounds = (bound for each in dated_problems for bound in (each.since, each.until) if bound is not None)
    return min((bound for bound in bounds if bound > at), default=None)
