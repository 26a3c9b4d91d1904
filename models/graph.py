"""The computation graph: operators as nodes, tensors as edges."""

from __future__ import annotations

from collections.abc import Iterable

import networkx as nx

from weavejax.models.specs import OperatorSpec


def computation_graph(operators: Iterable[OperatorSpec]) -> nx.MultiDiGraph:
    """Operators as nodes (``spec``), tensors as edges (``tensor``) from producer to reader.

    Args:
        operators: in model order, as :func:`weavejax.models.operator_sequence` gives them.

    Returns:
        A graph whose nodes are operator names; acyclic, because ``head``'s ids, which start the
        next iteration, are left out.

    Raises:
        ValueError: an operator reads a tensor that none before it produces.

    Examples:
        >>> from weavejax.models import operator_sequence, preset_config
        >>> graph = computation_graph(operator_sequence(preset_config("gemma-3-1b")))
        >>> sorted(graph.predecessors("layers.0.attn_out"))  # the residual jumps two operators
        ['embed', 'layers.0.attn_core']
    """
    graph = nx.MultiDiGraph()
    producers: dict[str, str] = {}
    for op in operators:
        graph.add_node(op.name, spec=op)
        for tensor in op.inputs:
            if tensor.name == "ids":
                continue
            if tensor.name not in producers:
                raise ValueError(
                    f"every input must be produced by an earlier operator, got {tensor.name!r} "
                    f"read by {op.name!r}"
                )
            graph.add_edge(producers[tensor.name], op.name, key=tensor.name, tensor=tensor)
        producers |= {tensor.name: op.name for tensor in op.outputs}
    return graph
