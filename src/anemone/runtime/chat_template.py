"""Hugging Face chat templates: Jinja that comes with a model, so it runs in a sandbox.

Templates rely on what transformers gives them: trimmed blocks, break and continue, ``raise_exception``,
``strftime_now``, a ``tojson`` that does not escape HTML, and ``{% generation %}`` marks around the assistant's words.
"""

import json
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from anemone.errors import RequestError


def render(template: str, **variables: Any) -> str:
    """The rendered text. Raises RequestError when the template is broken or refuses what it is given."""
    try:
        return _compiled(template).render(**variables)
    except Exception as error:  # a template is the model's own program and may fail in any way
        raise RequestError(f"The model's chat template does not accept this conversation: {error}.") from error


@lru_cache(maxsize=8)
def _compiled(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _Generation]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment.from_string(template)


class _Generation(Extension):
    """``{% generation %}`` ... ``{% endgeneration %}``: marks for training, without effect on the text."""

    tags = {"generation"}  # noqa: RUF012 - the name and type that jinja2 reads

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
