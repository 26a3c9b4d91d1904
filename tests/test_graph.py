"""The computation graph against the schedule's interfaces."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given, settings
from strategies import ARCHITECTURES, architecture, templates

from weavejax.models.graph import computation_graph
from weavejax.models.sequence import operator_sequence
from weavejax.plan import Template
from weavejax.schedule import boundary_interfaces, occurrence_operators, stage_occurrences


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_sequence_is_a_topological_order(name: str) -> None:
    operators = operator_sequence(architecture(name))
    graph = computation_graph(operators)
    assert nx.is_directed_acyclic_graph(graph)
    place = {op.name: index for index, op in enumerate(operators)}
    assert all(place[a] < place[b] for a, b in graph.edges())
    assert nx.descendants(graph, "embed") | {"embed"} == set(graph)


@given(template=templates(2, 3))
@settings(max_examples=40)
def test_between_two_groups_a_boundary_carries_edges_of_the_graph(template: Template) -> None:
    """Every crossing tensor is an edge from before the boundary to a reader after it."""
    config = architecture("qwen3-next-80b-a3b")
    operators = operator_sequence(config)
    graph = computation_graph(operators)
    occurrences = stage_occurrences(template, config.num_layers, 2)
    stages = tuple(occurrence_operators(operators, o) for o in occurrences)
    owners = tuple(o.owner for o in occurrences)
    stage_of = {op.name: index for index, stage in enumerate(stages) for op in stage}
    for boundary, tensors in enumerate(boundary_interfaces(stages, owners)[:-1]):
        cut = {
            key
            for a, b, key in graph.edges(keys=True)
            if stage_of[a] <= boundary < stage_of[b] and owners[stage_of[b]] != owners[stage_of[a]]
        }
        assert {tensor.name for tensor in tensors} <= cut


def test_a_tensor_nobody_produces_is_named() -> None:
    with pytest.raises(ValueError, match=r"got 'x.0' read by 'layers.0.attn_in'"):
        computation_graph(operator_sequence(architecture("llama-3.1-8b"))[1:])
