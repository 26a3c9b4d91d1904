"""Policies: which templates a search may use.

A policy is a function from a partition block and a number of groups K to templates. Four ship;
others register under a name, in code or through the entry-point group ``weavejax.policies``.
"""

from __future__ import annotations

import difflib
import re
import traceback
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points
from typing import Any

from weavejax.plan import Template
from weavejax.planner.partition import PartitionBlock, distinct_templates, legal_templates
from weavejax.planner.report import PolicyError

Policy = Callable[[PartitionBlock, int], Iterable[Template]]
"""(partition block, groups K) to templates whose stages are a multiple of K; none for a K the
policy does not use."""

ENTRY_POINT_GROUP = "weavejax.policies"
_POLICIES: dict[str, Policy] = {}
_NAME = re.compile(r"\w[\w.+#-]*")
_FILES = (".json", ".py")


def register_policy(name: str) -> Callable[[Policy], Policy]:
    """Decorator that makes a policy known by name.

    Raises:
        TypeError: no name, or what is registered cannot be called.
        ValueError: no usable name, or it is taken by another policy.

    Examples:
        >>> @register_policy("halves")
        ... def halves(block, groups):
        ...     middle = block.num_operators // 2
        ...     return [Template(layers=block.layers, cuts=(middle,))] if groups == 2 else []
        >>> policy_named("halves") is halves
        True
    """
    if not isinstance(name, str):
        raise TypeError(
            'register_policy takes the name of a policy: write @register_policy("my-policy") above '
            f"the function, got {name!r}"
        )
    if not _NAME.fullmatch(name) or name.endswith(_FILES):
        raise ValueError(
            "a policy's name starts with a letter or digit, holds letters, digits and - _ . + # "
            f"only, and does not end like a file ({' '.join(_FILES)}), got {name!r}"
        )

    def add(policy: Policy) -> Policy:
        if not callable(policy):
            raise TypeError(
                f"policy {name!r} must be a function of (block, groups), got {policy!r}"
            )
        taken = _POLICIES.get(name, policy)
        if taken is not policy:
            raise ValueError(
                f"a policy called {name!r} is registered already{_place(taken)}; choose another "
                "name"
            )
        _POLICIES[name] = policy
        return policy

    return add


def policy_names() -> tuple[str, ...]:
    """Names of all policies, installed entry points included."""
    return tuple({**_POLICIES, **{point.name: None for point in _points()}})


def require_policy(name: object) -> str:
    """The name itself where a policy has it; an entry point is not loaded.

    Raises:
        TypeError: no name but the policy itself, say.
        ValueError: there is none; the message lists those there are.
    """
    if not isinstance(name, str):
        raise TypeError(
            f"policy must be the name of a registered policy, got {name!r}; register a function "
            'first: weavejax.register_policy("my-policy")(function)'
        )
    names = policy_names()
    if name in names:
        return name
    parts = [part for part in re.split(r"[,\s]+", name) if part]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    if len(parts) > 1:
        hint = f" (separate names by spaces on the command line: {' '.join(parts)})"
    raise ValueError(
        f"no policy is called {name!r}{hint}; policies are {', '.join(names)}. Your own are known "
        "once the module that registers them is imported (on the command line: --policy-module "
        "FILE.py)"
    )


def policy_named(name: str) -> Policy:
    """The policy of a name.

    Raises:
        TypeError, ValueError: there is none (:func:`require_policy`).
        PolicyError: an installed one that cannot be loaded.
    """
    require_policy(name)
    if name in _POLICIES:
        return _POLICIES[name]
    point = next(point for point in _points() if point.name == name)
    try:
        return point.load()
    except Exception as error:
        raise PolicyError(
            f"policy {name!r} cannot be loaded from {point.value}: {_said(error, depth=9)}"
        ) from error


def policy_templates(name: str, block: PartitionBlock, groups: int) -> tuple[Template, ...]:
    """The distinct templates a policy offers for K groups.

    Raises:
        ValueError: an unknown policy.
        PolicyError: the policy raises, returns something other than templates, or a template
            that is longer than the model or whose stages do not divide over K groups.
    """
    policy = policy_named(name)
    try:
        offered = policy(block, groups)
        several = isinstance(offered, Iterable) and not isinstance(offered, (str, Template))
        templates: Any = tuple(offered) if several else None
    except PolicyError:
        raise
    except Exception as error:
        raise PolicyError(
            f"policy {name!r} fails for K={groups}: {_said(error, depth=1)}"
        ) from error
    if templates is None or not all(isinstance(one, Template) for one in templates):
        got = offered if templates is None else list(templates)
        raise PolicyError(
            f"policy {name!r} for K={groups} must return a list of weavejax.Template, "
            f"[] where it has none, got {got!r}"
        )
    for template in templates:
        if template.num_stages % groups:
            raise PolicyError(
                f"policy {name!r}: stages of a template must be a multiple of the {groups} groups, "
                f"got {template.num_stages} in {template}"
            )
        if template.layers > block.model_layers:
            raise PolicyError(
                f"policy {name!r} for K={groups}: a template may span the model's "
                f"{block.model_layers} layers at most, got {template}"
            )
    return distinct_templates(block, groups, templates)


@register_policy("colocated")
def colocated(block: PartitionBlock, groups: int) -> list[Template]:
    """Everything on one group."""
    return [Template(layers=block.layers)] if groups == 1 else []


@register_policy("afd")
def afd(block: PartitionBlock, groups: int) -> list[Template]:
    """Attention-FFN disaggregation: the attention operators of a layer | its feed-forward."""
    return [Template(cuts=(3,))] if groups == 2 else []


@register_policy("cad")
def cad(block: PartitionBlock, groups: int) -> list[Template]:
    """Core-attention disaggregation: the attention over the cache | everything else."""
    return [Template(cuts=(1,), offset=1)] if groups == 2 else []


@register_policy("weave")
def weave(block: PartitionBlock, groups: int) -> list[Template]:
    """Every cut of every sub-block, colocation included (paper section 5)."""
    if groups == 1:
        return [Template(layers=block.layers)]
    return list(legal_templates(block, groups))


def _points() -> list:  # type: ignore[type-arg]
    return list(entry_points(group=ENTRY_POINT_GROUP))


def _place(policy: Policy) -> str:
    """`` at FILE:LINE`` of a function."""
    code = getattr(policy, "__code__", None)
    return "" if code is None else f" at {code.co_filename}:{code.co_firstlineno}"


def _said(error: Exception, *, depth: int) -> str:
    """What an exception says and the line it came from, ``depth`` calls below ours."""
    frames = traceback.extract_tb(error.__traceback__)
    frame = frames[min(depth, len(frames) - 1)]
    return f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno})"
