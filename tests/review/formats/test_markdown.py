"""The comment on a pull request: its text is inactive, bounded and without secrets; and its problems."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import click
import pytest

from gitboot.cli.commands.diff import format_review_text
from gitboot.cli.commands.validate import format_github
from gitboot.fleet.revision import Message
from gitboot.problems import Code, Severity
from gitboot.resolve.server_decision import Boot
from gitboot.review.acknowledgements import format_ack_line
from gitboot.review.formats.json import as_json
from gitboot.review.formats.markdown import LIMIT, as_markdown, as_problems, format_code
from gitboot.review.rendered_diffs import hide_secrets
from tests.helpers.cases import for_each
from tests.helpers.evaluations import FLEET, SERVERS, USER_DATA, Files, review_files
from tests.helpers.fleets import decision, document, fleet, image, policy, profile, server

HOSTILE = "`</code></summary><script>alert(1)</script>@everyone ```\u202e**x** | [a](http://x)"


@for_each(
    ("text", "expected"),
    [
        ("plain", "`plain`"),
        ("", "` `"),
        ("a`b", "`` a`b ``"),
        ("```", "```` ``` ````"),
        ("a\nb\x1b[31m", r"`a\nb\u001b[31m`"),
        ("x" * 900, f"`{'x' * 299}…`"),
    ],
)
def test_a_code_span_ends_where_its_text_ends(text: str, expected: str) -> None:
    assert format_code(text) == expected


def test_a_table_cell_ends_where_its_text_ends() -> None:
    assert format_code("a|b", in_table=True) == r"`a\|b`"
    assert format_code(r"a\|b", in_table=True) == r"`a\\u007cb`"  # the backslash would escape that of "\|": GFM 6.1


def outside_code(markdown: str) -> str:
    """Return the text that is active Markdown, without fences and code spans (CommonMark 4.5 and 6.1)."""
    without_fences = re.sub(r"^(`{3,})[^\n]*\n.*?^\1$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    without_spans = re.sub(r"(?<!`)(`+)(?!`)(.*?)(?<!`)\1(?!`)", "", without_fences)
    return re.sub("<code>[^<]*</code>", "", without_spans)


def test_no_text_from_yaml_is_markdown_or_html() -> None:
    quoted = json.dumps(HOSTILE.replace("\u202e", ""))
    new = {
        "images/2.yaml": str(FLEET["images/2.yaml"]).replace("version: '2'", f"version: {quoted}"),
        "stream.yaml": document("ImageStream", "stable", "current: flatcar-2"),
        "userdata/web.j2": USER_DATA + "# ```\n# </details><b>@everyone\n",
        "servers/fra1-db01.yaml": server(
            "fra1-db01", "site: fra1, role: db", f"provision: 2, serial: {quoted}, kernelArguments: ['a=`@b</details>']"
        ),
    }
    shown = as_markdown(review_files(new))
    assert "everyone" in shown
    outside = outside_code(shown)
    assert "everyone" not in outside
    assert "script" not in outside
    assert "@" not in outside
    assert outside.count("<details>") == outside.count("</details>") == shown.count("<details><summary>")


def test_no_text_of_a_vendor_is_markdown_html_or_a_command() -> None:
    """The version, the kernel arguments, the URLs and the keys of an image may come from a vendor's server."""
    hostile = HOSTILE.replace("\u202e", "")
    quoted = json.dumps(hostile)
    url = "https://vendor.test/@everyone/**x**/![x](http://x)/::error::/%0A"
    text = image("flatcar-3", "userData: CloudInit").replace("version: '3'", f"version: {quoted}")
    text = text.replace("}, initrds", f", provenance: {{digest: signed, key: {quoted}, url: '{url}'}}}}, initrds")
    arguments = f"kernelArguments: ['a=`@everyone</details><script>', {json.dumps('b=' + hostile.replace(' ', ''))}]"
    rollout = "current: flatcar-1, rollout: {image: flatcar-3, percent: 100}"
    new = {
        "images/3.yaml": text.replace("userData: CloudInit", f"userData: CloudInit, {arguments}"),
        "stream.yaml": document(
            "ImageStream",
            "stable",
            f"{rollout}, follow: {{source: flatcar, channel: {quoted}, belowVersion: {quoted}}}",
        ),
    }
    review = review_files(new)
    shown = as_markdown(review)
    assert shown.count("everyone") >= 4
    outside = outside_code(shown)
    assert not re.search("everyone|script|@|http|error|\\*\\*x", outside)
    assert outside.count("<details>") == outside.count("</details>") == shown.count("<details><summary>")
    commands = format_github(as_problems(review)).splitlines()
    assert any("GB6004" in line and "everyone" in line for line in commands)
    assert all(re.match("::(?:warning|error|notice) ", line) for line in commands)


@for_each("text", ["a\x1b]0;owned\x07", "a\x9b31m", "a\u202eb", "a\n::error::owned", "a\r"])
def test_no_format_contains_a_control_character_of_a_vendor(text: str) -> None:
    claim = f", provenance: {{digest: signed, key: {json.dumps(text)}}}}}, initrds"
    given = image("new-3").replace("version: '3'", f"version: {json.dumps(text)}").replace("}, initrds", claim)
    review = review_files({"images/3.yaml": given})
    assert review.provenance.images
    for shown in (
        as_markdown(review),
        as_json(review),
        format_review_text(review, ""),
        format_github(as_problems(review)),
    ):
        assert all(line.isprintable() and not line.startswith("::error::") for line in click.unstyle(shown).split("\n"))


def test_no_problem_is_markdown_or_html() -> None:
    shown = as_markdown(review_files({"oops.yaml": f"apiVersion: {json.dumps(HOSTILE)}\nkind: '<b>@you'\n"}))
    assert "GB10" in shown
    assert "@" not in outside_code(shown)
    assert "<b>" not in outside_code(shown)


def test_no_ignored_acknowledgement_is_markdown_or_html() -> None:
    line = f"Gitboot-Ack: {'0' * 64} <script>@everyone![x](http://x)"
    new = {"servers/fra1-db01.yaml": server("fra1-db01", "site: fra1, role: db", "provision: 2")}
    shown = as_markdown(review_files(new, messages=(Message("c" * 40, line),)))
    assert shown.count("@everyone") == 2
    assert not re.search("@|script|http", outside_code(shown))


def test_the_path_of_a_file_mentions_no_account() -> None:
    path = "userdata/@owner/team.j2"
    old = {**FLEET, path: USER_DATA}
    spec = f"stream: stable, userData: {{format: CloudInit, template: '{path}'}}"
    old = {**old, "profiles/web.yaml": document("BootProfile", "web", f"method: Pxe, {spec}")}
    shown = as_markdown(review_files({path: USER_DATA + "# more\n"}, old))
    assert "<summary><code>userdata/@owner/team.j2 changes 18 servers" in shown
    assert "@" not in outside_code(shown)


def test_changed_outputs_reveal_no_secret_in_the_boot_of_unknown_machines() -> None:
    def publishing(outputs: str) -> Files:
        return {"fleet.yaml": fleet(f"baseURL: 'http://boot.test', unknownServers: {{profile: repair}}, {outputs}")}

    secret = {"profiles/repair.yaml": profile("repair", "memtest-7", "kernelArguments: ['luks.password=hunter2']")}
    shown = as_markdown(
        review_files(publishing("outputs: [ipxe, grub]"), {**FLEET, **secret, **publishing("outputs: [ipxe]")})
    )
    assert "luks.password=HIDDEN" in shown
    assert "hunter2" not in shown


def changed_arguments(old: list[str], new: list[str]) -> list[str]:
    """Return the changed lines of the iPXE script in a comment, without those that only name the image."""

    def make_profile(arguments: list[str]) -> Files:
        spec = f"role: web, stream: stable, kernelArguments: {json.dumps(arguments)}"
        return {"profiles/web.yaml": document("BootProfile", "web", f"method: Pxe, {spec.partition(', ')[2]}")}

    shown = as_markdown(review_files(make_profile(new), {**FLEET, **make_profile(old)}))
    return [line for line in shown.splitlines() if re.match("[-+]kernel ", line)]


MANY_ARGUMENTS = [f"option{number}=value{number}" for number in range(50)]


@for_each(
    ("old", "new", "shown"),
    [
        ([*MANY_ARGUMENTS, "nosmt"], [*MANY_ARGUMENTS, "quiet"], ("nosmt", "quiet")),
        (["one", *MANY_ARGUMENTS, "nosmt"], ["two", *MANY_ARGUMENTS, "quiet"], ("one … nosmt", "two … quiet")),
        ([*MANY_ARGUMENTS, "nosmt"], MANY_ARGUMENTS, ("nosmt", "option49=value49 || goto failed")),
        (["a=" + "x" * 900 + "1"], ["a=" + "x" * 900 + "2"], (f" a=xx … {'x' * 20}1", f" a=xx … {'x' * 20}2")),
        ([*MANY_ARGUMENTS, *"abc"], [f"new{each}" for each in MANY_ARGUMENTS], ("option0=value0", "newoption0=value0")),
    ],
)
def test_a_long_line_of_a_diff_shows_the_words_that_differ(old: list[str], new: list[str], shown: list[str]) -> None:
    lines = changed_arguments(old, new)
    assert len(lines) == 2
    for line, words in zip(lines, shown, strict=True):
        assert "…" in line and all(word in line for word in words.split(" … ")), line
        assert line.startswith(("-kernel ", "+kernel ")) and len(line) <= 650


def words_of(length: int, letters: str) -> list[str]:
    return [f"a{number}={letter * (length - 3)}" for number, letter in enumerate(letters)]


@for_each(
    ("old", "new", "end"),
    [
        (words_of(221, "pqr"), words_of(221, "stu"), " (1 more changed word)"),
        (words_of(100, "abcdefg"), words_of(100, "hijklmn"), " (2 more changed words)"),
        (["old"], words_of(100, "hijklmn"), " (2 more changed words)"),
    ],
)
def test_a_long_line_states_how_many_changed_words_it_does_not_show(old: list[str], new: list[str], end: str) -> None:
    equal = [f"o{number}" for number in range(100)]
    line = changed_arguments([*equal, *old], [*equal, *new])[-1]
    assert line.endswith(end)
    assert "o5 " not in line  # an unchanged word must not take the place of a changed word


def test_a_long_word_states_how_many_changed_characters_it_does_not_show() -> None:
    _, line = changed_arguments(["old"], ["b=" + "y" * 900])
    assert f" b={'y' * 196}… (704 more characters)" in line
    (line,) = (each for each in changed_arguments(["a=1"], ["a=1" + "x" * 900]) if each.startswith("+"))
    assert "more characters)" in line


@for_each(("letter", "is_whole"), [("x", True), ("\N{HIRAGANA LETTER A}", False)])
def test_a_group_with_many_long_changed_lines_leaves_room_for_other_groups(letter: str, is_whole: bool) -> None:
    def write(argument: str) -> Files:
        lines = "".join(f"# {number} {f'{letter * 9} ' * 58}{argument}\n" for number in range(30))
        return {f"userdata/{name}.j2": f"{USER_DATA}# {name}\n{lines}" for name in ("web", "db")}

    user_data = "kernelArguments: [quiet], userData: {format: CloudInit, template: userdata/db.j2}"
    old = {**FLEET, "profiles/db.yaml": profile("db", "flatcar-1", user_data), **write("nosmt")}
    shown = as_markdown(review_files(write("debug"), old))
    assert len(shown.encode()) <= LIMIT
    assert "of changes not shown" not in shown
    groups = re.findall("<details>.*?</details>", shown, re.DOTALL)
    assert len(groups) == 2
    for group in groups:
        assert re.search(r"^- `userdata/(?:web|db)\.j2`", group, re.MULTILINE)
        changed = re.findall("^[-+]# [0-9].*$", group, re.MULTILINE)
        assert len(group.encode()) < 15_000
        assert changed and all(line.endswith((" nosmt", " debug")) for line in changed)
        (lines,) = re.findall("^```diff\n(.*?)^… and [0-9]+ more lines$", group, re.MULTILINE | re.DOTALL)
        assert (lines.count("\n") == 60) is is_whole


def make_servers(count: int, spec: str) -> Files:
    return {
        f"servers/w{number}.yaml": server(f"w{number}", f"role: web, site: s{number % 300}", spec.format(number=number))
        for number in range(count)
    }


def test_the_comment_of_a_large_change_is_cut_and_states_what_it_omits() -> None:
    old = {**FLEET, **make_servers(200, "provision: 1")}
    shown = as_markdown(review_files(make_servers(200, "provision: 2, kernelArguments: ['note={number}']"), old))
    assert 50_000 < len(shown.encode()) <= LIMIT
    assert re.search(r"^and [\d,]+ more groups: see the command below$", shown, re.MULTILINE)
    assert re.search(r"^and [\d,]+ more server groups$", shown, re.MULTILINE)
    assert "Gitboot-Ack: " in shown
    assert shown.count("<details>") == shown.count("</details>")


def test_the_comment_of_a_commit_with_many_problems_is_cut() -> None:
    bad = {f"bad/{number:04}{'é' * 60}.yaml": "kind: [\n" for number in range(2000)}
    shown = as_markdown(review_files(bad))
    assert len(shown.encode()) <= LIMIT
    assert re.search(r"^and [\d,]+ more problems$", shown, re.MULTILINE)


# Secrets

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nc2VjcmV0\nbW9yZQ==\n-----END OPENSSH PRIVATE KEY-----"
FORMATS = (as_json, as_markdown, lambda review: "\n".join(map(str, as_problems(review))))


@pytest.mark.parametrize(
    ("what", "user_data"),
    [
        ("a password", "#cloud-config\npassword: c2VjcmV0\n"),
        ("the second of two", "#cloud-config\npassword: bW9yZQ==\nusers: [a]\npassword: c2VjcmV0\n"),
        ("in the line below its name", "#cloud-config\npassword:\n  c2VjcmV0\n"),
        ("in a list", "#cloud-config\nchpasswd:\n  list: |\n    root:c2VjcmV0\n    core:bW9yZQ==\n"),
        ("in an embedded file", "#cloud-config\nwrite_files:\n- content: |\n    password: c2VjcmV0\n"),
    ],
)
def test_no_format_shows_text_that_looks_like_a_secret(what: str, user_data: str) -> None:
    for new, old in (({"userdata/web.j2": user_data}, FLEET), ({}, {**FLEET, "userdata/web.j2": user_data})):
        review = review_files(new, old)
        for write in FORMATS:
            assert "c2VjcmV0" not in write(review)
            assert "bW9yZQ" not in write(review)
    assert "HIDDEN: looks like a password" in as_markdown(review_files({"userdata/web.j2": user_data}))


def test_variables_and_arguments_of_documents_are_named_and_not_shown() -> None:
    spec = "provision: 1, vars: {key: c2VjcmV0}, kernelArguments: ['my.token=c2VjcmV0']"
    review = review_files({"servers/fra1-db01.yaml": server("fra1-db01", "site: fra1, role: db", spec)})
    for write in FORMATS:
        assert "c2VjcmV0" not in write(review)
    assert "`spec.kernelArguments; spec.vars.key`" in as_markdown(review)
    assert "my.token=HIDDEN" in as_markdown(review)


@pytest.mark.parametrize(
    ("what", "text", "format"),
    [
        ("as it is", f"text\n{KEY}\nreboot\n", "Kickstart"),
        ("without an end", "text\n-----BEGIN PRIVATE KEY-----\nc2VjcmV0\nbW9yZQ==\n", "Kickstart"),
        (
            "in a text of an Ignition document",
            json.dumps({"ignition": {"version": "3.4.0"}, "x": f"a\n{KEY}\nb\n", "y": "z"}),
            "Ignition/3.4",
        ),
    ],
)
def test_a_private_key_is_hidden_from_its_first_line_to_its_last(what: str, text: str, format: str) -> None:
    made = _boot(text, format)
    shown = "".join(hide_secrets(made).user_data.files.values())  # type: ignore[union-attr]
    assert "HIDDEN: looks like a private key" in shown
    assert "c2VjcmV0" not in shown
    assert "bW9yZQ" not in shown
    assert "reboot" in shown or "reboot" not in text
    assert '"y": "z"' in shown or format == "Kickstart"


def _boot(text: str, format: str) -> Boot:
    """A boot with such user data; as a template that is refused for what leaks it would not be."""
    family = format.partition("/")[0]
    harmless = '{"ignition": {"version": "3.4.0"}}' if family == "Ignition" else "text\n"
    documents = [str(each) for path, each in FLEET.items() if path.endswith(".yaml") and "web.yaml" not in path]
    documents = [each for each in documents if "name: flatcar-1" not in each]
    found = decision(
        "fra1-web01",
        *documents,
        image("flatcar-1", f"userData: {format}"),
        profile("web", "flatcar-1", f"userData: {{format: {format}, template: t}}"),
        str(FLEET["policies/web.yaml"]),
        files={"t": harmless},
    )
    assert found.policy is not None
    boot = found.policy.boot
    assert boot is not None
    assert boot.user_data is not None
    (name,) = boot.user_data.files
    return replace(boot, user_data=replace(boot.user_data, files={name: text}))


BUMP = {"stream.yaml": document("ImageStream", "stable", "current: flatcar-2")}
RAISED = {"servers/fra1-db01.yaml": server("fra1-db01", "site: fra1, role: db", "provision: 2")}


def test_a_limit_is_reported_at_its_cause_with_the_line_to_copy() -> None:
    review = review_files({**BUMP, **RAISED})
    assert review.verdict is not None
    found = {problem.message.partition(":")[0]: problem for problem in as_problems(review) if problem.code == Code.HELD}
    reinstalls, updates = found["maxReinstalls"], found["maxUpdatePercent"]
    assert (reinstalls.path, reinstalls.line, reinstalls.severity) == ("servers/fra1-db01.yaml", 4, Severity.ERROR)
    assert (updates.path, updates.line, updates.column) == ("servers/fra1-db01.yaml", 4, 143)
    assert reinstalls.hint.endswith(format_ack_line(review.verdict.digest, *review.verdict.holding_guards))
    assert updates.hint == "check the change. The line for maxReinstalls also acknowledges this limit"


def test_an_acknowledged_limit_is_a_warning() -> None:
    lines = "\n".join(review_files(BUMP).ack_lines)
    review = review_files(BUMP, messages=(Message("c", lines, "Ada <ada@example.net>"),))
    found = [problem for problem in as_problems(review) if problem.code == Code.HELD]
    assert found
    assert {(problem.severity, problem.hint) for problem in found} == {(Severity.WARNING, "")}
    assert all(", acknowledged by Ada <ada@example.net>, in c" in problem.message for problem in found)


def test_a_danger_is_a_warning_that_names_its_group() -> None:
    (danger,) = (problem for problem in as_problems(review_files(RAISED)) if problem.code == Code.DANGEROUS)
    assert danger.severity is Severity.WARNING
    assert danger.message == "Server/fra1-db01 changes 1 server (fra1-db01): reinstall"


def test_a_change_for_unknown_servers_is_reported_at_the_fleet() -> None:
    new = {"fleet.yaml": fleet("baseURL: 'http://boot.test', unknownServers: {profile: repair}")}
    (held,) = as_problems(review_files(new))
    assert (held.code, held.path, held.line) == (Code.HELD, "fleet.yaml", 4)


def test_deleted_servers_are_reported_at_the_fleet_too() -> None:
    found = as_problems(review_files(dict.fromkeys(SERVERS)))
    assert {problem.path for problem in found} == {"fleet.yaml"}


def test_an_acknowledgement_that_does_not_count_is_a_warning() -> None:
    line = f"Gitboot-Ack: {'0' * 64} maxReinstalls"
    (found,) = (
        problem
        for problem in as_problems(review_files(RAISED, messages=(Message("c" * 40, line),)))
        if problem.code == Code.UNHEEDED
    )
    assert "the line acknowledges other changes" in found.message
    assert f"{line!r} in {'c' * 12}" in found.message


def test_warnings_of_the_commit_come_last_and_problems_of_an_invalid_commit_come_alone() -> None:
    never = {"policies/none.yaml": policy("other", "None")}
    tie = {"policies/none.yaml": policy("tie", "All")}
    assert as_problems(review_files(never)) == ()
    invalid = review_files({**tie, **RAISED}, FLEET)
    assert as_problems(invalid) == invalid.head.problems
    assert invalid.head.problems[0].code == Code.POLICY_TIE
