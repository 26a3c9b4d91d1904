"""Chat templates: the Jinja templates that checkpoints carry, in a sandbox."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks the assistant's text for training; here it is only text."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render_chat(
    template: str,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    special_tokens: Mapping[str, str] | None = None,
    **variables: Any,
) -> str:
    """The prompt of a conversation.

    Args:
        template: Jinja source.
        messages: each with ``role`` and ``content``.
        add_generation_prompt: open the assistant's turn at the end.
        special_tokens: ``bos_token``, ``eos_token`` ... as text.
        variables: whatever else the template reads (``tools``, ``enable_thinking`` ...).

    Raises:
        ValueError: no messages, a message without role or content, or one the template refuses.

    Examples:
        >>> template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
        >>> render_chat(template, [{"role": "user", "content": "Hi"}])
        '<user>Hi'
    """
    if not messages:
        raise ValueError("a chat needs at least one message, got none")
    for index, message in enumerate(messages):
        missing = [key for key in ("role", "content") if key not in message]
        if missing and "tool_calls" not in message:
            raise ValueError(
                f"message {index} of a chat needs 'role' and 'content', got {sorted(message)}"
            )
    try:
        compiled = _environment().from_string(template)
        return compiled.render(
            messages=[dict(message) for message in messages],
            add_generation_prompt=add_generation_prompt,
            **{"tools": None, "documents": None, **(special_tokens or {}), **variables},
        )
    except jinja2.TemplateError as error:
        raise ValueError(f"the chat template refuses these messages: {error}") from None


def _environment() -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _now(pattern: str) -> str:
    return datetime.datetime.now().strftime(pattern)
