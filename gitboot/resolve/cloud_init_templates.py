"""Jinja templates in cloud-init user data: find the text that does not depend on expressions.

Source: cloudinit/templater.py. User data rarely contains such templates, so `cloud_init` imports this module on demand.
"""

from __future__ import annotations

from typing import Any, Final

from jinja2 import Environment, nodes, pass_context
from jinja2.exceptions import TemplateError, TemplateSyntaxError
from jinja2.runtime import Context

from gitboot.model.scalars import make_user_data_fault


@pass_context
def _return_value(_: Context, value: object) -> object:
    return value


class _CloudInitJinja(Environment):
    """A Jinja2 environment that only parses templates.

    The optimizer is off, because computing a constant expression can take arbitrarily long.
    """

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, extensions=["jinja2.ext.do"], optimized=False, finalize=_return_value)


_CLOUD_INIT_JINJA: Final = _CloudInitJinja()


def parse_template(source: str, name: str, first_line: int) -> str | None:
    """Return the text before the first expression in a Jinja part, or None if the part begins with an expression.

    ``name`` is the name of the part in error messages. ``first_line`` is the number of the line in the user data where
    the part starts, or 0 if the number is unknown.
    """
    try:
        tree = _CLOUD_INIT_JINJA.parse(source)
        _CLOUD_INIT_JINJA.compile(source, raw=True)  # this raises an error for an unknown filter or test
    except (TemplateError, RecursionError, ValueError) as error:
        line = error.lineno if isinstance(error, TemplateSyntaxError) else 1
        raise make_user_data_fault(
            f"cloud-init cannot read the Jinja template in {name}, so it ignores the template: {error}",
            "correct the Jinja template, and put it between `{% raw %}` and `{% endraw %}`",
            first_line and first_line + line,
        ) from None
    kinds: Any = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends)
    if (other := tree.find(kinds)) is not None:
        raise make_user_data_fault(
            f"the Jinja template in {name} uses another template, but cloud-init does not support this",
            "copy the text of the other template into this template",
            first_line and first_line + other.lineno,
        )
    start = ""
    for statement in tree.body:
        if not isinstance(statement, nodes.Output):
            return start if start.strip() else None
        for expression in statement.nodes:
            if not isinstance(expression, nodes.TemplateData):
                return start if start.strip() else None
            start += expression.data
    return start if "{" in source else source
