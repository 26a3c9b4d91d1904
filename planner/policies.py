"""Policies: which templates a search may use.

A policy is a function from a partition block and a number of groups K to templates. Four ship;
others register under a name, in code or through the entry-point group ``weavejax.policies``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from importlib.metadata import entry_points

from weavejax.plan import Template
from weavejax.planner.partition import PartitionBlock, distinct_templates, legal_templates

Policy = Callable[[PartitionBlock, int], Iterable[Template]]
"""(partition block, groups K) to templates whose stages are a multiple of K; none for a K the
policy does not use."""

ENTRY_POINT_GROUP = "weavejax.policies"
_POLICIES: dict[str, Policy] = {}


def register_policy(name: str) -> Callable[[Policy], Policy]:
    """Decorator that makes a policy known by name.

    Raises:
        ValueError: the name is taken by another policy.

    Examples:
        >>> @register_policy("halves")
        ... def halves(block, groups):
        ...     middle = block.num_operators // 2
        ...     return [Template(layers=block.layers, cuts=(middle,))] if groups == 2 else []
        >>> policy_named("halves") is halves
        True
    """

    def add(policy: Policy) -> Policy:
        if _POLICIES.get(name, policy) is not policy:
            raise ValueError(f"a policy called {name!r} is registered already; choose another name")
        _POLICIES[name] = policy
        return policy

    return add


def policy_names() -> tuple[str, ...]:
    """Names of all policies, installed entry points included."""
    return tuple({**_POLICIES, **{point.name: None for point in _points()}})


def policy_named(name: str) -> Policy:
    """The policy of a name.

    Raises:
        ValueError: there is none; the message lists those there are.
    """
    if name in _POLICIES:
        return _POLICIES[name]
    for point in _points():
        if point.name == name:
            return point.load()
    names = policy_names()
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    raise ValueError(f"no policy is called {name!r}{hint}; policies are {', '.join(names)}")


def policy_templates(name: str, block: PartitionBlock, groups: int) -> tuple[Template, ...]:
    """The distinct templates a policy offers for K groups.

    Raises:
        ValueError: an unknown policy, or a template whose stages do not divide over K groups.
    """
    templates = tuple(policy_named(name)(block, groups))
    for template in templates:
        if template.num_stages % groups:
            raise ValueError(
                f"policy {name!r}: stages of a template must be a multiple of the {groups} groups, "
                f"got {template.num_stages} in {template}"
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
