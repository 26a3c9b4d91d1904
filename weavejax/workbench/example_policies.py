"""Three example policies, from docs/templates.md: copy one and change its cuts."""

from weavejax.plan import Template
from weavejax.planner import register_policy


@register_policy("hybrid-cad")
def hybrid_cad(block, groups):  # type: ignore[no-untyped-def]
    """The cached attention of full layers alone | everything else."""
    full = [i for i, kind in enumerate(block.layer_kinds) if kind.attention == "full"]
    cuts = [4 * layer + 1 + end for layer in full for end in (0, 1)]
    return [ring(block, cuts)] if groups == 2 and full else []


@register_policy("expert-layers")
def expert_layers(block, groups):  # type: ignore[no-untyped-def]
    """Router and experts of mixture layers | everything else: the nearest to a router cut."""
    moe = [i for i, kind in enumerate(block.layer_kinds) if kind.ffn == "moe"]
    cuts = [4 * layer + 3 + end for layer in moe for end in (0, 1)]
    return [ring(block, cuts)] if groups == 2 and moe else []


@register_policy("three-way")
def three_way(block, groups):  # type: ignore[no-untyped-def]
    """Projections before attention | attention over the cache | output and feed-forward."""
    return [Template(layers=1, cuts=(1, 2))] if groups == 3 else []


def ring(block, cuts):  # type: ignore[no-untyped-def]
    """The template of one block that cuts before each of these operators, the first one first."""
    places = sorted({cut % block.num_operators for cut in cuts})
    return Template(
        layers=block.layers,
        cuts=tuple(place - places[0] for place in places[1:]),
        offset=places[0],
    )
