"""Templates: their results, their errors, and their bounds."""

from __future__ import annotations

import base64
import copy
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import jinja2.filters
import jinja2.tests
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gitboot.problems import Code
from gitboot.quoting import (
    BOOT_NIC_BOOTIF,
    BOOT_NIC_MAC,
    build_command_line,
    quote_grub_arguments,
    quote_ipxe_arguments,
)
from gitboot.resolve import templates
from gitboot.resolve.templates import (
    BOOT_NIC,
    BOOT_NIC_OF_USER_DATA,
    MAX_BYTES,
    MAX_STEPS,
    TemplateFault,
    decode_template,
    find_names,
    render_template,
)
from tests.helpers.cases import for_each
from tests.helpers.running_instance import read_peak_mib

CONTEXT: Mapping[str, Any] = {
    "server": {
        "name": "web01",
        "labels": {"site": "fra1", "node-role.kubernetes.io/web": "", "items": "a label"},
        "interfaces": [
            {"name": "eno1", "mac": "52-54-00-00-00-01", "boot": True, "addresses": ["10.0.0.1/24"]},
            {"name": "eno2", "mac": "52-54-00-00-00-02", "boot": False, "addresses": []},
        ],
    },
    "site": {"name": None},
    "vars": {"console": "ttyS1", "debug": True, "slots": "12", "users": "ann,bob", "motd": "a 'b' & \"c\""},
    "kernel_arguments": ["quiet", "console=ttyS1", "motd=a b"],
    "node_labels": {"b": "2", "a": "1"},
    "node_taints": [
        {"key": "gpu", "value": "yes", "effect": "NoSchedule"},
        {"key": "new", "effect": "NoExecute"},
    ],
}


def render(source: str, **context: object) -> str:
    return render_template(source, {**CONTEXT, **context})


def find_fault(source: str, **context: object) -> TemplateFault:
    with pytest.raises(TemplateFault) as caught:
        render(source, **context)
    return caught.value


@for_each(
    ("source", "text"),
    [
        ("plain, with } and { and %}", "plain, with } and { and %}"),
        ("a\r\nb\n", "a\r\nb\n"),
        ("console={{ vars.console }},115200\n", "console=ttyS1,115200\n"),
        ("{{ server.interfaces[0].mac }}", "52-54-00-00-00-01"),
        ("{{ server.labels['node-role.kubernetes.io/web'] }}|", "|"),
        ("{{ server.labels.items }}", "a label"),  # not the method: a key comes first
        ("{{ vars.debug }} {{ 'x=' ~ vars.debug }} {{ 1 > 2 }}", "true x=true false"),
        ("{{ 1 + 2 * 3 }} {{ 7 // 2 }} {{ 7 % 4 }} {{ 'a' + 'b' }} {{ ([1] + [2]) | join }}", "7 3 3 ab 12"),
        ("{% for i in server.interfaces %}{{ i.name }}{{ ',' if not loop.last }}{% endfor %}", "eno1,eno2"),
        ("{% for k, v in node_labels.items() %}{{ k }}{{ v }}{% endfor %}", "b2a1"),
        ("{% for n in range(3) if n != 1 %}{{ n }}{% else %}none{% endfor %}", "02"),
        ("{% if 'eno1' in server.interfaces | map(attribute='name') %}yes{% endif %}", "yes"),
        ("{% macro m(a, b=2) %}<{{ a }}{{ b }}>{% endmacro %}{{ m(1) }}{{ m('x', b=3) }}", "<12><x3>"),
        ("{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}x{% endcall %}", "[x]"),
        ("{% set x %}{{ vars.console }}{% endset %}{{ x | lower }}", "ttys1"),
        ("{% filter upper %}a{{ vars.console }}{% endfilter %}", "ATTYS1"),
        ("{% with a = 1 %}{{ a }}{% endwith %}{# gone #}{% raw %}{{ kept }}{% endraw %}", "1{{ kept }}"),
        ("{{ vars.users.split(',')[1:] | join }}{{ 'abc'[:2] }}", "bobab"),
        ("{{ vars.get('absent', 'x') }}{{ vars.console.startswith('tty') }}", "xtrue"),
        ("{{ vars.motd }}", "a 'b' & \"c\""),  # no HTML
    ],
)
def test_a_template_renders_to_the_expected_text(source: str, text: str) -> None:
    assert render(source) == text


@for_each(
    ("source", "text"),
    [
        ("BOOTIF={{ boot_nic.bootif }}", f"BOOTIF={BOOT_NIC_BOOTIF}"),
        ("BOOTIF={{ boot_nic['mac'] }}", f"BOOTIF={BOOT_NIC_MAC}"),
        ("{{ boot_nic.absent | default(boot_nic.mac) }}", BOOT_NIC_MAC),
        ("{% set nic = boot_nic %}{{ nic.mac if vars.debug }}", BOOT_NIC_MAC),
        ("{{ boot_nic.mac | ipxe }} {{ boot_nic.bootif | ipxe }}", "${netX/mac} 01-${netX/mac:hexhyp}"),
        ("{{ boot_nic.mac | grub }} {{ boot_nic.bootif | grub }}", '"$gitboot_mac" "$gitboot_bootif"'),
    ],
)
def test_finding_p12_a_template_writes_the_boot_nic(source: str, text: str) -> None:
    assert render(source, boot_nic=BOOT_NIC) == text


@for_each(
    "expression",
    [
        "boot_nic.mac | replace(':', '-')",
        "boot_nic.mac | upper",
        "'01-' ~ boot_nic.mac",
        "'01-' + boot_nic.mac",
        "boot_nic.mac == 'x'",
        "boot_nic.mac in ['x']",
        "[boot_nic.mac] | join",
        "boot_nic.mac | tojson",
        "boot_nic | tojson",
        "boot_nic.mac | list",
        "boot_nic.values() | map('upper') | join",
    ],
)
def test_finding_p12_a_template_cannot_compute_with_the_boot_nic(expression: str) -> None:
    fault = find_fault(f"{{{{ {expression} }}}}", boot_nic=BOOT_NIC)
    assert fault.code is Code.TEMPLATE_FAILED
    assert fault.message.startswith("the boot loader fills in boot_nic.")


@for_each("expression", ["boot_nic.mac", "boot_nic.mac | ipxe", "boot_nic.bootif | grub", "boot_nic.bootif | data_url"])
def test_finding_p12_user_data_cannot_have_the_boot_nic(expression: str) -> None:
    fault = find_fault(f"a\n{{{{ {expression} }}}}", boot_nic=BOOT_NIC_OF_USER_DATA)
    name = expression.partition(" ")[0]
    reason = f"user data is the same for every NIC, so it cannot contain {name}"
    assert (fault.line, fault.message) == (2, f"{reason}; write {{{{ {name} }}}} in a kernel argument")


@for_each("source", ["{{ boot_nic.mac[0] }}", "{{ boot_nic.mac.lower() }}", "{{ boot_nic.macc }}", "{{ boot_nic }}"])
def test_finding_p12_the_boot_nic_has_no_parts(source: str) -> None:
    assert find_fault(source, boot_nic=BOOT_NIC).code is Code.TEMPLATE_FAILED


FILTERS = {
    "b64encode": ("{{ 'aä' | b64encode }}", "YcOk"),
    "count": ("{{ vars | count }}", "5"),
    "d": ("{{ vars.absent | d('x') }}", "x"),
    "data_url": ("{{ 'a b' | data_url }}", "data:;base64,YSBi"),
    "default": ("{{ vars.console | default('x') }} {{ site.name | default('y') }}", "ttyS1 y"),
    "dictsort": ("{{ node_labels | dictsort | tojson }}", '[["a", "1"], ["b", "2"]]'),
    "first": ("{{ (server.interfaces | first).name }}", "eno1"),
    "grub": ("{{ vars.motd | grub }}", "'a '\\''b'\\'' & \"c\"'"),
    "indent": ("{{ 'a\n\nb' | indent(2) }}|{{ 'a\nb' | indent(1, true) }}", "a\n\n  b| a\n b"),
    "int": ("{{ vars.slots | int + 1 }} {{ '-3' | int }}", "13 -3"),
    "ipxe": ("{{ kernel_arguments | ipxe }}", 'quiet console=ttyS1 motd="a b"'),
    "items": ("{{ node_labels | items | tojson }}", '[["b", "2"], ["a", "1"]]'),
    "join": ("{{ [1, 'a', true] | join('-') }}", "1-a-true"),
    "kernel": ("{{ 'a=b c' | kernel }} {{ kernel_arguments | kernel }}", 'a="b c" quiet console=ttyS1 motd="a b"'),
    "kubelet_labels": ("--node-labels={{ node_labels | kubelet_labels }}", "--node-labels=a=1,b=2"),
    "kubelet_taints": ("{{ node_taints | kubelet_taints }}", "gpu=yes:NoSchedule,new=:NoExecute"),
    "last": ("{{ (server.interfaces | last).name }}", "eno2"),
    "length": ("{{ 'abc' | length }}{{ [] | length }}", "30"),
    "list": ("{{ node_labels | list | join }}", "ba"),
    "lower": ("{{ 'ABC' | lower }}", "abc"),
    "map": ("{{ server.interfaces | map(attribute='mac') | map('replace', '-', ':') | first }}", "52:54:00:00:00:01"),
    "reject": ("{{ [1, 2, 3] | reject('gt', 1) | join }}", "1"),
    "rejectattr": ("{{ server.interfaces | rejectattr('boot') | map(attribute='name') | join }}", "eno2"),
    "replace": ("{{ vars.console | replace('t', 'x') }}", "xxyS1"),
    "select": ("{{ [1, 2, 3] | select('in', [2, 3]) | join }}", "23"),
    "selectattr": ("{{ (server.interfaces | selectattr('name', 'eq', 'eno2') | first).mac }}", "52-54-00-00-00-02"),
    "sort": ("{{ ['b', 'A', 'c'] | sort(reverse=true) | join }}", "cbA"),
    "string": ("{{ (true | string) == 'true' }}", "true"),
    "tojson": ("{{ {'b': ['<', true, none], 'a': 1} | tojson }}", '{"a": 1, "b": ["<", true, null]}'),
    "trim": ("{{ ' a ' | trim }}", "a"),
    "unique": ("{{ ['b', 'a', 'b'] | unique | join }}", "ba"),
    "upper": ("{{ 'abc' | upper }}", "ABC"),
}  # fmt: skip


def test_every_filter_has_its_example() -> None:
    assert set(FILTERS) == set(templates.FILTERS)


@for_each("name", FILTERS)
def test_a_filter_returns_the_expected_value(name: str) -> None:
    source, text = FILTERS[name]
    assert render(source) == text


@for_each("name", sorted(set(jinja2.filters.FILTERS) - set(templates.FILTERS)))
def test_other_filters_of_jinja2_are_not_available(name: str) -> None:
    for source in (f"{{{{ 'a' | {name} }}}}", f"{{{{ ['a'] | map('{name}') }}}}"):
        fault = find_fault(source)
        assert (fault.code, fault.line) == (Code.TEMPLATE_FAILED, 1)
        assert f"there is no filter {name}" in fault.message


@for_each("name", sorted(set(jinja2.tests.TESTS) - set(templates.TESTS)))
def test_other_tests_of_jinja2_are_not_available(name: str) -> None:
    fault = find_fault(f"{{{{ ['a'] | select('{name}') }}}}" if not name.isidentifier() else f"{{{{ 1 is {name} }}}}")
    assert fault.code is Code.TEMPLATE_FAILED
    assert name in fault.message


@for_each(
    ("source", "message"),
    [
        ("{{ consol }}", "consol is not defined: did you mean vars.console?"),
        ("{{ servr.name }}", "servr is not defined: did you mean server?"),
        ("{{ vars.consle }}", "vars.consle is not defined: did you mean vars.console?"),
        ("{{ vars['consle'] }}", "vars.consle is not defined: did you mean vars.console?"),
        ("{% if vars.absent %}{% endif %}", "vars.absent is not defined"),
        ("{{ vars.absent == 'x' }}", "vars.absent is not defined"),
        ("{{ vars.absent ~ 'x' }}", "vars.absent is not defined"),
        ("{{ vars.absent | upper }}", "vars.absent is not defined"),
        ("{{ vars.absent.more }}", "vars.absent is not defined"),
        ("{{ vars.absent() }}", "vars.absent is not defined"),
        ("{{ [vars.absent] | tojson }}", "vars.absent is not defined"),
        ("{% for x in vars.absent %}{% endfor %}", "vars.absent is not defined"),
        (
            "{{ server.labels['node-role.kubernetes.io/wbe'] }}",
            "did you mean server.labels['node-role.kubernetes.io/web']?",
        ),
        (
            "{{ server.interfaces[0].macs }}",
            "server.interfaces[0].macs is not defined: did you mean server.interfaces[0].mac?",
        ),
        ("{{ server.interfaces[2].mac }}", "server.interfaces[2] is not defined"),
        ("{{ server.interfaces | map(attribute='ma') | join }}", "server.interfaces[0].ma is not defined"),
        ("{{ {'ab': 1}.abc }}", "a mapping has no abc"),
        ("{{ vars.console.replace('a', 'b') }}", "a string has no replace: use the filter, | replace"),
        ("{{ [] | first }}", "the list is empty, so it has no first element"),
        ("{{ vars | defualt }}", "there is no filter defualt: did you mean default?"),
        ("{{ vars is defned }}", "there is no test defned: did you mean defined?"),
        ("{{ site.name }}", "null cannot be part of text"),
        ("{{ server.interfaces }}", "a list cannot be part of text"),
        ("{{ 'a' ~ vars }}", "a mapping cannot be part of text"),
        ("{{ vars.get }}", "a function cannot be part of text"),
        ("{% macro m() %}{% endmacro %}{{ m }}", "a macro cannot be part of text"),
        ("{% for x in [1] %}{{ loop }}{% endfor %}", "a loop cannot be part of text"),
        ("{% for x in vars.users %}{% endfor %}", "a string has no elements"),
        ("{{ 'abc'[0] }}", "a string has no 0"),
        ("{{ '1' + 2 }}", "+ does not accept a string and a number"),
        ("{{ true + true }}", "+ does not accept a boolean and a boolean"),
        ("{{ 2 ** 3 }}", "** does not accept a number and a number"),
        ("{{ 'x' | int }}", "'x' is not a whole number"),
        ("{{ vars.console() }}", "a string cannot be called"),
        ("{{ vars[[1]] }}", "a list cannot be used as a key for a mapping"),
        ("{{ vars.console[kernel_arguments] }}", "a list cannot be used as a key for a string"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ [1, 'a'] | sort }}", "'<' not supported"),
        ("{{ '\\ud800' }}", "half of a surrogate pair"),
        ("{% include 'a' %}", "include is not supported, because a template cannot use other templates"),
        ("{% import 'a' as a %}", "import is not supported"),
        ("{% from 'a' import b %}", "import is not supported"),
        ("{% extends 'a' %}", "extends is not supported"),
        ("{% block a %}{% endblock %}", "block is not supported"),
        ("{% autoescape true %}{% endautoescape %}", "autoescape is not supported"),
        ("{% for a in [[]] recursive %}{% endfor %}", "a recursive for is not supported"),
        ("{{ [1] | tojson(indent=4000000000) }}", "unexpected keyword argument 'indent'"),
        ("{{ [1] | tojson(4000000000) }}", "this filter, test or method takes 1 positional argument"),
        ("{{ 'a' | b64encode(1) }}", "this filter, test or method takes 1 positional argument"),
        ("{{ 'a' | ipxe(1) }}", "this filter, test or method takes 2 positional arguments"),
        ("{{ [1] | sort(1, 2, 3, 4, 5) }}", "this filter, test or method takes from 2 to 5 positional arguments"),
        ("{{ 1 is in }}", "this filter, test or method missing 1 required positional argument: 'seq'"),
    ],
)
def test_a_template_fails_with_the_reason(source: str, message: str) -> None:
    fault = find_fault(source)
    assert fault.code is Code.TEMPLATE_FAILED
    assert message in fault.message


@for_each(
    "expression",
    [
        "''.__class__", "''['__class__']", "[].__class__", "none.__class__", "vars.__class__", "vars['__class__']",
        "vars.console._x", "vars.pop", "vars.update", "vars.clear", "vars.copy", "[1].append", "kernel_arguments.sort",
        "'a'.format", "'a'.format_map", "'a'.encode", "'a'.center", "'a'.zfill", "'a'.join", "'a'.translate",
        "(1).real", "(1).bit_length", "(1.5).hex", "true.real", "range(3).start", "(1, 2).count",
        "range.__call__", "secret.__globals__", "vars.get.__self__", "vars.get.func", "vars.get.args",
        "m._func", "m.name", "m.__globals__", "loop._iterator", "loop.cycle", "loop.__init__", "loop.depth",
        "self.__class__", "self._TemplateReference__context", "context", "environment", "cycler", "joiner", "dict",
        "namespace", "lipsum", "open", "config", "_", "__builtins__", "super",
    ],
)  # fmt: skip
def test_no_python_object_is_accessible(expression: str) -> None:
    source = (
        f"{{% macro m() %}}{{% endmacro %}}{{% for i in [1] %}}{{{{ loop.index }}}} {{{{ {expression} is defined }}}}"
    )
    assert render(source + "{% endfor %}") == "1 false"


@for_each(
    "source",
    [
        "{{ self }}", "{{ lipsum() }}", "{{ dict() }}", "{{ open('/etc/passwd') }}", "{{ ''.__class__() }}",
        "{{ vars.pop('console') }}", "{{ [1].append(2) }}", "{{ '{0.__class__}'.format(1) }}", "{{ caller() }}",
        "{% set vars.x = 1 %}", "{{ vars.absent.__init__ }}", "{{ [1] | map(attribute='__class__') | join }}",
        "{{ [1] | map('attr', 'real') | join }}", "{{ ['a'] | map(attribute='upper') | join }}",
        "{{ [1] | map('-spent', -1) | join }}",
    ],
)  # fmt: skip
def test_no_expression_escapes_the_sandbox(source: str) -> None:
    assert find_fault(source).code is Code.TEMPLATE_FAILED


@for_each("source", ["{{ x", "{% if %}", "{% do 1 %}", "{% debug %}", "{{ '\\x' }}", "{% endif %}", "{{ 1 2 }}"])
def test_a_syntax_error_has_its_own_code(source: str) -> None:
    fault = find_fault("first\n" + source)
    assert (fault.code, fault.line) == (Code.TEMPLATE_SYNTAX, 2)


@for_each(
    ("source", "line"),
    [
        ("a\n{% if true %}\n{{ vars.absent }}\n{% endif %}", 3),
        ("a\n\n{{ 'x' ~\n 'y' ~\n vars.absent }}", 3),
        ("{% macro m() %}\n{{ vars.absent }}{% endmacro %}\n\n{{ m() }}", 2),
        ("{% for a in [1, 2] %}\n{{ secret('a') }}{% endfor %}", 2),
        ("\n{{ 'a b' | ipxe }}", 2),
        ("\n\n{% include 'a' %}", 3),
        ("\n\n{{ 1 | nothing }}", 3),
    ],
)
def test_a_fault_has_its_line(source: str, line: int) -> None:
    assert find_fault(source).line == line


def test_the_error_for_secret_explains_what_to_do_instead() -> None:
    fault = find_fault("{{ secret('token') }}")
    assert fault.code is Code.SECRET
    assert "list the secret's file in `userData.secrets`" in fault.message


@pytest.mark.parametrize("loader", ["ipxe", "grub", "kernel"])
def test_text_that_a_loader_cannot_carry_has_its_own_fault(loader: str) -> None:
    for source in ("{{ 'a\nb' | LOADER }}", "{{ ['a=\"b c'] | LOADER }}"):
        assert find_fault(source.replace("LOADER", loader)).code is Code.UNQUOTABLE


def test_quoting_filters_accept_a_list_of_kernel_arguments() -> None:
    arguments = CONTEXT["kernel_arguments"]
    text = render("{{ kernel_arguments | ipxe }}\n{{ kernel_arguments | grub }}\n{{ kernel_arguments | kernel }}")
    assert text.split("\n") == [
        quote_ipxe_arguments(arguments),
        quote_grub_arguments(arguments),
        build_command_line(arguments),
    ]


# Files


@for_each(
    ("file", "code", "line"),
    [
        (b"{{ x", Code.TEMPLATE_SYNTAX, 1),
        (b"\n{{ absent }}", Code.TEMPLATE_FAILED, 2),
        (b"a\nb\xff", Code.TEMPLATE_SYNTAX, 2),
    ],
)
def test_a_fault_in_a_file_has_its_line_each_time(file: bytes, code: Code, line: int) -> None:
    for _ in range(2):  # the second time from what is remembered
        with pytest.raises(TemplateFault) as caught:
            render_template(decode_template(file), CONTEXT)
        assert (caught.value.code, caught.value.line) == (code, line)


def test_a_file_is_rendered_without_its_byte_order_mark_and_with_its_last_newline() -> None:
    for file, expected in ((b"#!ipxe\n# {{ server.name }}\n", "#!ipxe\n# web01\n"), (b"#!ipxe\n", "#!ipxe\n")):
        assert render_template(decode_template(b"\xef\xbb\xbf" + file), CONTEXT) == expected


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (b"no markup", set()),
        (
            b"{{ server.name }}{% if vars.a %}{{ kernel_arguments | ipxe }}{% endif %}",
            {"server", "vars", "kernel_arguments"},
        ),
        (b"{% set a = urls.base %}{{ a }}{% for i in range(3) %}{{ i ~ loop.index }}{% endfor %}", {"urls"}),
        (b"{% macro m(x) %}{{ x ~ site }}{% endmacro %}{{ m(1) }}{{ secret('a') }}", {"site"}),
    ],
)
def test_the_names_of_a_template_are_those_that_it_reads_from_its_context(source: bytes, names: set[str]) -> None:
    assert find_names(decode_template(source)) == names


def test_names_of_an_invalid_template_are_a_fault() -> None:
    with pytest.raises(TemplateFault) as caught:
        find_names("\n{{ x")
    assert (caught.value.line, caught.value.code) == (2, Code.TEMPLATE_SYNTAX)


# Bounds

TEXT = "{% set x = '0123456789abcdef' %}" + "{% set x = x ~ x %}" * 16  # 1 MiB
LIST = "{% set l = [1, 2] %}" + "{% set l = l + l %}" * 14
EACH = "{% for a in range(100000) %}"
END = "{% endfor %}"


def make_doubling_template(start: str, step: str, times: int = 60) -> str:
    return f"{{% set x = {start} %}}" + f"{{% set x = {step} %}}" * times


UNBOUNDED = {
    "text joined to itself": make_doubling_template("'a'", "x ~ x"),
    "text added to itself": make_doubling_template("'a'", "x + x"),
    "list added to itself": make_doubling_template("[1]", "x + x"),
    "lists of lists": make_doubling_template("[1]", "[x, x]", 45) + "{{ x | tojson }}",
    "tuples of tuples as a key": make_doubling_template("(1,)", "(x, x)", 45) + "{{ {x: 1} | length }}",
    "a tuple as a key": make_doubling_template("(1,)", "(x, x)", 14) + EACH + "{% set y = {x: 1} %}" + END,
    "a tuple looked up": make_doubling_template("(1,)", "(x, x)", 14) + EACH + "{{ x in {} }}" + END,
    "a macro's tuples": "{% macro f(n) %}{% if n %}{{ f(n - 1, varargs, varargs) }}{% else %}{% set y = {varargs: 1} %}"
    "{% endif %}{% endmacro %}{{ f(45) }}",
    "mappings of mappings": make_doubling_template("{}", "{'a': x, 'b': x}", 45) + "{{ x | tojson }}",
    "lists compared": make_doubling_template("[1]", "[x, x]", 17) + "{% set y = x[:] %}" + EACH + "{{ x == y }}" + END,
    "depth": make_doubling_template("[]", "[x]", 900) + "{{ x | tojson }}",
    "loops": EACH * 3 + END * 3,
    "loops of 300": "{% for a in range(300) %}" * 3 + END * 3,
    "a loop that skips": "{% for b in range(9999) %}{% for a in range(9999) if false %}" + END * 2,
    "a loop that skips at length": "{% for a in range(99999) if " + "'' ~ " * 2500 + "'' %}" + END,
    "a loop over much text": EACH + "y" * 500_000 + END,
    "a loop over many expressions": EACH + "{% if a %}{% endif %}" * 1500 + END,
    "a loop into a variable": "{% set x %}" + EACH + "y" * 999 + END + "{% endset %}",
    "a long range": "{% for a in range(999999999999) %}{% endfor %}",
    "the longest range": "{{ range(9223372036854775807) | list }}",
    "macros that call twice": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(45) }}",
    "a macro that calls itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a macro of much text": "{% macro f() %}" + "y" * 99_999 + "{% endmacro %}" + EACH + "{% set x = f() %}" + END,
    "a macro's defaults": "{% macro f(a=" + "1 ~ " * 2000 + "1) %}{% endmacro %}" + EACH + "{% set x = f() %}" + END,
    "a macro's arguments": "{% macro f() %}{{ varargs | length }}{% endmacro %}" + LIST + EACH + "{{ f(*l) }}" + END,
    "search in text": TEXT + EACH + "{{ 'zz' in x }}" + END,
    "search in a constant": EACH + "{{ 'zz' in '" + "a" * 999_999 + "' }}" + END,
    "search in a list": LIST + EACH + "{{ 7 in l }}" + END,
    "search in a range": "{% set r = range(99999) %}" + EACH + "{{ 0.5 in r }}" + END,
    "select in a list": LIST + "{{ l | select('in', l) | length }}",
    "slices of text": TEXT + EACH + "{% set y = x[1:] %}" + END,
    "slices of a list": LIST + EACH + "{% set y = l[::-1] %}" + END,
    "a filter": TEXT + EACH + "{% set y = x | upper %}" + END,
    "a filter of lists": LIST + EACH + "{% set y = l | unique %}" + END,
    "a filter of each": "{{ range(99999) | map('string') | map('upper') | map('lower') | map('trim') | length }}",
    "a method": TEXT + EACH + "{% set y = x.split('0') %}" + END,
    "a method's argument": TEXT + EACH + "{{ 'a'.strip(x) }}" + END,
    "replace": TEXT + "{{ x | replace('0', x) | length }}",
    "replace of nothing": TEXT + "{{ x | replace('', x) | length }}",
    "join": TEXT + "{{ range(99999) | join(x) | length }}",
    "indent": "{{ 'a\nb' | indent(99999999999) }}",
    "indent of many lines": make_doubling_template("'\na'", "x ~ x", 18) + "{{ x | indent(99999) | length }}",
    "indent of the first line": "{{ 'a' | indent(99999999999, true) }}",
    "tojson": TEXT + EACH + "{% set y = x | tojson %}" + END,
    "quoting": TEXT + EACH + "{% set y = x | grub %}" + END,
    "sum": "{{ 9223372036854775807 + 1 }}",
    "product": "{{ " + "99999999 * " * 40 + "1 }}",
    "negative product": "{{ -99999999 * 99999999 * 99999999 }}",
    "infinity": "{{ 1e999 }}",
    "float product": "{{ 1e18 * 1e18 }}",
    "a long number": "{{ " + "9" * 5000 + " }}",
    "a long hexadecimal number": "{{ 0x" + "f" * 5000 + " }}",
    "output": TEXT + "{{ x }}{{ x }}",
    "output of long text": TEXT + EACH + "{{ x }}" + END,
    "output of a loop": "{% for a in range(99999) %}0123456789{{ a }}{% endfor %}",
    "parentheses": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "brackets": "{{ " + "[" * 3000 + "]" * 3000 + " }}",
    "not not": "{{ " + "not " * 3000 + "1 }}",
    "minus minus": "{{ " + "-" * 3000 + "1 }}",
    "60 levels": "{{ " + "1 and " * 60 + "1 }}",
    "and and": "{{ " + "1 and " * 3000 + "1 }}",
    "plus plus": "{{ " + "1 + " * 3000 + "1 }}",
    "if else if else": "{{ " + "1 if 1 else " * 3000 + "1 }}",
    "filter after filter": "{{ 'a'" + " | upper" * 3000 + " }}",
    "dot after dot": "{{ vars" + ".a" * 3000 + " }}",
    "call after call": "{{ vars" + "()" * 3000 + " }}",
    "if in if": "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "for in for": "{% for a in [1] %}" * 25 + END * 25,
    "macro in macro": "{% macro a() %}" * 300 + "{% endmacro %}" * 300,
    "elif after elif": "{% if 0 %}" + "{% elif 0 %}" * 9999 + "{% endif %}",
    "many expressions": "{{ 1 }}" * 100_000,
    "many texts": "{{ 1 }}x" * 100_000,
    "a long template": "{{ 1 }}" + "a" * MAX_BYTES,
    "a long text": "a" * (MAX_BYTES + 1),
    "a long text of long characters": "ä" * (MAX_BYTES // 2 + 1),
}
EXPENSIVE_SYNTAX = {
    "braces": "{" * 999_999,
    "blocks": "{% " * 333_333,
    "comments": "{#" * 500_000,
    "a comment": "{#" + "a" * 999_999,
    "raw": "{% raw %}" + "{{" * 400_000,
    "a string": "{{ '" + "a" * 999_999,
    "a name": "{{ " + "a" * 999_999 + " }}",
    "a key": TEXT + "{{ vars[x] }}",
    "a filter's name": "{{ 1 | " + "a" * 999_999 + " }}",
}

# In a process of its own: what has no end there ends it, and not the tests.
RENDER_ALL = """
import json, resource, sys, time
from gitboot.resolve.templates import TemplateFault, render_template
resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
resource.setrlimit(resource.RLIMIT_CPU, (600, 600))
for name, source in json.load(sys.stdin).items():
    started = time.process_time()
    try:
        render_template(source, {"vars": {}})
        end = ["rendered", ""]
    except TemplateFault as fault:
        end = [fault.code.name, fault.message]
    print(json.dumps([name, [*end, time.process_time() - started]]), flush=True)
"""


def test_no_expression_grows_without_bounds() -> None:
    run = subprocess.run(
        [sys.executable, "-c", RENDER_ALL],
        input=json.dumps(UNBOUNDED | EXPENSIVE_SYNTAX),
        capture_output=True,
        text=True,
        check=False,
    )
    ends = dict(map(json.loads, run.stdout.splitlines()))
    assert not (UNBOUNDED | EXPENSIVE_SYNTAX).keys() - ends, run.stderr
    by_code = {name: (code, message) for name, (code, message, _) in ends.items()}
    assert {name: by_code[name] for name in UNBOUNDED if by_code[name][0] != "TEMPLATE_BOUNDS"} == {}
    assert {name: by_code[name] for name in EXPENSIVE_SYNTAX if by_code[name][0] == "rendered"} == {}
    # The bounds do not depend on Python's stack or the memory, which differ between machines.
    assert {name: message for name, (_, message) in by_code.items() if "a value is too large" in message} == {}
    # Each takes less than a second of a processor that is neither slow nor shared.
    assert {name: seconds for name, (_, _, seconds) in ends.items() if seconds > 20} == {}


@for_each(
    ("name", "message"),
    [
        ("loops", "the template's loops take more than 100,000 steps"),
        ("text joined to itself", "the template needs more computation than the limit allows"),
        ("depth", "the template's lists are nested too deeply"),
        ("a macro that calls itself", "the template's macros call each other too deeply"),
        ("and and", "the template is nested too deeply"),
        ("parentheses", "the template is too long or nested too deeply"),
        ("sum", "a number is too large"),
        ("output of a loop", "the rendered text is larger than 1,048,576 bytes"),
        ("a long text", "the template is larger than 1,048,576 bytes"),
    ],
)
def test_the_exceeded_bound_is_named(name: str, message: str) -> None:
    assert message in find_fault(UNBOUNDED[name]).message


def test_a_template_within_the_bounds_is_rendered() -> None:
    assert render("a" * MAX_BYTES) == "a" * MAX_BYTES
    assert render("{{ x }}", x="a" * MAX_BYTES) == "a" * MAX_BYTES
    assert render(f"{{% for a in range({MAX_STEPS}) %}}x{{% endfor %}}") == "x" * MAX_STEPS
    one_more = f"{{% for a in range({MAX_STEPS}) %}}{{% endfor %}}{{% for a in [1] %}}{{% endfor %}}"
    assert find_fault(one_more).code is Code.TEMPLATE_BOUNDS
    assert render("{{ 9223372036854775807 }}") == "9223372036854775807"
    assert render("{{ " + "(" * 25 + "1" + ")" * 25 + " }}") == "1"
    assert render("{% for a in [1] %}" * 15 + "x" + END * 15) == "x"
    assert render("{{ vars.console }}\n" * 1500) == "ttyS1\n" * 1500
    assert render("{% macro f(n) %}{{ f(n - 1) if n }}x{% endmacro %}{{ f(40) }}") == "x" * 41


# Promises

WORDS = [
    "{{", "}}", "{%", "%}", "{#", "#}", " ", "\n", "vars", ".console", "server", "x", "'a'", '"b"', "1", "-", "~", "|",
    " upper", " join", " map('upper')", " tojson", " default('c')", "(", ")", "[", "]", ",", " in ", " if ", " else ",
    " not ", "==", "for x in server.interfaces", "endfor", "set x = ", "macro x()", "endmacro", "range(3)", "x()",
    "endif", "loop.index", "**", "*", "+", "/", "%", ":", ".", "_", "__class__", "is defined", "none", "true", "{", "}",
]  # fmt: skip
EXPRESSIONS = st.recursive(
    st.sampled_from(
        ["vars.console", "1", "'a'", "server.interfaces", "vars.absent", "true", "range(3)", "node_labels", "[]"]
    ),
    lambda inner: st.one_of(
        st.builds(
            "({} {} {})".format,
            inner,
            st.sampled_from(["+", "-", "*", "/", "//", "%", "**", "~", "==", "<", "in", "and", "or"]),
            inner,
        ),
        st.builds("({} | {})".format, inner, st.sampled_from(sorted(FILTERS))),
        st.builds("({} | {}({}))".format, inner, st.sampled_from(sorted(FILTERS)), inner),
        st.builds("({} is {})".format, inner, st.sampled_from(["defined", "none", "string", "mapping"])),
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("{}[{}]".format, inner, inner),
        st.builds("({} if {})".format, inner, inner),
        st.builds("{}({})".format, inner, inner),
    ),
    max_leaves=6,
)
SOURCES = st.one_of(
    st.lists(st.sampled_from(WORDS), max_size=30).map("".join),
    st.lists(EXPRESSIONS, max_size=3).map(lambda found: "".join(f"{{{{ {each} }}}}\n" for each in found)),
    st.builds("{{% for x in {} %}}{{{{ x ~ {} }}}}{{% endfor %}}".format, EXPRESSIONS, EXPRESSIONS),
)


@given(source=SOURCES)
@example(source="{{ vars[[]] }}")
@example(source="{{ [1] | map('default', []) | unique }}")
@example(source="{{ node_labels | kubelet_taints }}")
@example(source="{{ 1 | replace(2) }}")
@example(source="{{ 1e308 * 10 }}")
def test_a_template_always_gives_the_same_text_or_the_same_fault(source: str) -> None:
    given = copy.deepcopy(CONTEXT)
    first, second = _end(source, given), _end(source, given)
    assert first == second
    assert " at 0x" not in first
    assert given == CONTEXT


def _end(source: str, context: Mapping[str, object]) -> str:
    try:
        return render_template(source, context)
    except TemplateFault as fault:
        return f"{fault.code} {fault.line} {fault.message}"


@given(text=st.text(st.characters(exclude_categories=["Cs"]).filter(lambda c: c != "{")))
def test_text_without_markup_is_returned_unchanged(text: str) -> None:
    assert render(text) == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=4),
    max_leaves=10,
)


@given(value=JSON)
def test_tojson_prints_the_value_in_sorted_order(value: object) -> None:
    assert render("{{ x | tojson }}", x=value) == json.dumps(value, sort_keys=True)


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_data_url_encodes_the_text(text: str) -> None:
    prefix, _, data = render("{{ x | data_url }}", x=text).partition(",")
    assert prefix == "data:;base64"
    assert base64.b64decode(data, validate=True).decode() == text


def test_the_hash_seed_changes_nothing() -> None:
    source = "".join(text for text, _ in FILTERS.values()) + "{{ consol }}"
    code = (
        "import json, sys; from gitboot.resolve.templates import *\n"
        "source, context = json.load(sys.stdin)\n"
        "print(repr(render_template(source[:-12], context)))\n"
        "try: render_template(source, context)\n"
        "except TemplateFault as fault: print(fault)\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            input=json.dumps([source, CONTEXT]),
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1
    assert "did you mean vars.console?" in outputs.pop()


@for_each(
    ("case", "source", "context", "expected"),
    [
        (
            "a macro that is defined again in a loop",
            "{% for a in [1, 2] %}{% macro m() %}x{% endmacro %}{{ m() }}{% endfor %}",
            {},
            "xx",
        ),
        (
            "a macro that calls back in a loop",
            "{% macro m() %}{{ caller() }}{% endmacro %}{% for a in [1, 2] %}{% call m() %}y{% endcall %}{% endfor %}",
            {},
            "yy",
        ),
        ("a number as a number", "{{ 3 | int }}", {}, "3"),
        ("not a value", "{{ f == 1 }}", {"f": object()}, Code.TEMPLATE_FAILED),
        ("a number that Python does not read", "{{ " + "1" * 5000 + " }}", {}, Code.TEMPLATE_BOUNDS),
        ("more blocks than Python nests", "{% for a in [1] %}" * 22 + "{% endfor %}" * 22, {}, Code.TEMPLATE_BOUNDS),
    ],
)
def test_an_unusual_template_renders_or_fails_as_expected(
    case: str, source: str, context: dict[str, object], expected: str | Code
) -> None:
    if not isinstance(expected, Code):
        assert render_template(source, context) == expected, case
        return
    with pytest.raises(TemplateFault) as raised:
        render_template(source, context)
    assert raised.value.code is expected, case


def test_a_slice_of_a_number_is_a_fault_in_the_words_of_a_template() -> None:
    # No warning of Python's compiler goes to stderr, which has the events of an instance.
    with pytest.raises(TemplateFault, match="'int' object is not subscriptable"):
        render_template("{{ 1[1:] }}", {})


@for_each("name", sorted(FILTERS))
def test_t4_no_filter_has_an_argument_that_lets_it_grow(name: str) -> None:
    # 0.1.0 indented by four thousand million columns if a template requested it.
    arguments = ("4000000000", "indent=4000000000", "width=4000000000", "'x', 4000000000", "4000000000, true", "'', -9")
    values = ("[1]", "'a\\nb'", "{'a': 1}", "[[1], [2]]", "7")
    Path("/proc/self/clear_refs").write_text("5")  # the most that was ever used is what is used now: proc(5)
    before = read_peak_mib(os.getpid())
    for value in values:
        for argument in arguments:
            with suppress(TemplateFault):
                assert len(render(f"{{{{ {value}|{name}({argument}) }}}}")) < 1000
    assert read_peak_mib(os.getpid()) - before < 32
