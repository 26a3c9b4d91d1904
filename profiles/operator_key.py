"""Which operators share a measured time."""

from __future__ import annotations

import hashlib

from weavejax.models.specs import OperatorSpec
from weavejax.plan import Parallelism


def operator_key(operator: OperatorSpec, group: Parallelism) -> str:
    """Equal for operators that cost the same, of whatever model, under one parallelism.

    ``operator`` is the unsharded one (:func:`weavejax.models.operator_sequence` of one way).
    """
    facts = (
        operator.kind,
        operator.signature,
        tuple((param.name, param.shape) for param in operator.params),
        operator.state,
        operator.kernels,
        tuple(tensor.shape for tensor in (*operator.inputs, *operator.outputs)),
    )
    digest = hashlib.sha256(repr(facts).encode()).hexdigest()[:12]
    cut = (group.tensor_parallel, group.expert_parallel, group.attention_data_parallel)
    return f"{operator.kind}-{digest}-tp{cut[0]}-ep{cut[1]}-dp{cut[2]}"
