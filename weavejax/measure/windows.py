"""A model cut into windows: stages of any length, on one group, for timing.

A plan's stages follow its template. What is timed here is cut more finely or more coarsely than
any plan would, but each window is bound, compiled and called exactly as a stage is.
"""

from __future__ import annotations

from collections.abc import Sequence

from weavejax.models.config import ModelConfig
from weavejax.models.sequence import operator_sequence
from weavejax.models.specs import TensorSpec
from weavejax.plan import Parallelism
from weavejax.runtime.binding import StageBinding


def bind_windows(
    config: ModelConfig, parallelism: Parallelism, length: int, *, owner: int = 0, base: int = 0
) -> list[StageBinding]:
    """The whole model as stages of ``length`` layer operators each.

    Args:
        config: the model.
        parallelism: how the operators are cut.
        length: operators of a window; the last one may be shorter.
        owner: the group they are bound for.
        base: index of the first window, for runners that hold windows of several lengths.

    Examples:
        >>> from weavejax.models import preset_config
        >>> windows = bind_windows(preset_config("smollm2-135m-instruct"), Parallelism(), 8)
        >>> len(windows), windows[0].reads[0].name, windows[-1].writes[0].name
        (15, 'x.0', 'x.30')
    """
    sequence = operator_sequence(config, parallelism.heads_ways)
    embed, *layers, head = sequence
    last_read = {
        tensor.name: place for place, op in enumerate((*layers, head)) for tensor in op.inputs
    }
    bindings = []
    for number, start in enumerate(range(0, len(layers), length)):
        stop = min(start + length, len(layers))
        operators = layers[start:stop]
        made = {tensor.name for op in operators for tensor in op.outputs}
        reads: dict[str, TensorSpec] = {
            tensor.name: tensor
            for op in operators
            for tensor in op.inputs
            if tensor.name not in made
        }
        bindings.append(
            StageBinding(
                index=base + number,
                last=base + number,
                owner=owner,
                embed=embed if start == 0 else None,
                operators=tuple(operators),
                head=head if stop == len(layers) else None,
                reads=tuple(reads.values()),
                writes=tuple(
                    tensor
                    for op in operators
                    for tensor in op.outputs
                    if last_read[tensor.name] >= stop
                ),
                forgets=_spent(operators, last_read, stop),
            )
        )
    return bindings


def _spent(operators: Sequence, last_read: dict[str, int], stop: int) -> tuple[str, ...]:
    """Tensors that nothing reads after this window."""
    names = {tensor.name for op in operators for tensor in (*op.inputs, *op.outputs)}
    return tuple(sorted(name for name in names if last_read[name] < stop))
