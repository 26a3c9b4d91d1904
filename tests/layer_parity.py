"""Compare every operator of a model with the Hugging Face module that computes the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from weavejax.models.build import build_operator
from weavejax.models.loading import Model
from weavejax.models.sequence import operator_sequence
from weavejax.models.specs import OperatorSpec
from weavejax.models.step import Step

Arrays = dict[str, jax.Array]
Outputs = dict[str, dict[str, np.ndarray]]
"""Operator name to its outputs by role."""
Expected = list[tuple[str, str, np.ndarray]]
"""(operator name, role, transformers' value)."""


def run_operators(model: Model, tokens: np.ndarray, chunks: Sequence[int] = ()) -> Outputs:
    """Outputs of every operator, one after the other, in float32.

    Args:
        model: what to run.
        tokens: ``[b, t]`` int.
        chunks: tokens of each pass through the caches, which follow one another; all at once by
            default. Operators are compiled then, which pays where they run often.
    """
    rows, length = tokens.shape
    sequence = operator_sequence(model.config)
    weights = [model.operator_params(op, dtype="float32") for op in sequence]
    caches = [_empty_caches(op, rows, length) for op in sequence]
    run = _Runner(model, compiled=bool(chunks))
    passes: list[Outputs] = []
    start = 0
    for size in chunks or (length,):
        positions = jnp.broadcast_to(jnp.arange(start, start + size, dtype=jnp.int32), (rows, size))
        held = {"ids": jnp.asarray(tokens[:, start : start + size], jnp.int32)}
        outputs: Outputs = {}
        for index, op in enumerate(sequence):
            inputs = {
                role: held[role] for role in (tensor.name.split(".")[0] for tensor in op.inputs)
            }
            params = {name: jnp.asarray(value) for name, value in weights[index].items()}
            produced, caches[index] = run(op, params, inputs, caches[index], positions, length)
            held |= produced
            outputs[op.name] = {role: np.asarray(value) for role, value in produced.items()}
        passes.append(outputs)
        start += size
    assert start == length
    return {
        name: {role: np.concatenate([p[name][role] for p in passes], axis=1) for role in roles}
        for name, roles in passes[0].items()
    }


class _Runner:
    """Runs operators, compiled once for all layers alike or not at all."""

    def __init__(self, model: Model, *, compiled: bool) -> None:
        self._config, self._compiled = model.config, compiled
        self._found: dict[Any, Any] = {}

    def __call__(
        self,
        op: OperatorSpec,
        params: Arrays,
        inputs: Arrays,
        caches: Arrays,
        positions: jax.Array,
        context: int,
    ) -> tuple[Arrays, Arrays]:
        def run(params: Arrays, inputs: Arrays, caches: Arrays, positions: jax.Array) -> Any:
            active = jnp.ones(positions.shape, bool)
            step = Step(positions=positions, active=active, slots=None, prefix=context)
            return build_operator(op, self._config, params)(inputs, caches, step)

        if self._compiled:  # jit finds again what has the same shapes
            run = self._found.setdefault(op.signature, jax.jit(run))
        return run(params, inputs, caches, positions)


def _empty_caches(op: OperatorSpec, rows: int, context: int) -> Arrays:
    caches: Arrays = {}
    for spec in op.state:
        shape = spec.shape(rows, spec.dims[0].count, context)
        caches[spec.name] = jnp.zeros(shape, jnp.float32)
    return caches


def compare_operators(model: Model, theirs: Any, tokens: np.ndarray) -> dict[str, float]:
    """Largest absolute difference of every operator's output from transformers'.

    Softmax ``attn_in`` is compared through what follows from it alone (values, gates and, by way
    of ``attn_core``, queries and keys); the others by their own outputs, taken with hooks.
    """
    return differences(run_operators(model, tokens), expected_values(theirs, tokens))


def differences(ours: Outputs, expected: Expected) -> dict[str, float]:
    """Largest difference by operator, relative to values above one; NaN anywhere is infinite.

    Relative, because real models have residual values in the thousands.
    """
    worst: dict[str, float] = {}
    for name, role, value in expected:
        mine = _derived(ours, name, role).reshape(value.shape)
        gap = np.abs(mine - value) / np.maximum(1.0, np.abs(value))
        gap = float(np.nan_to_num(gap, nan=np.inf).max())
        worst[name] = max(worst.get(name, 0.0), gap)
    return worst


def _derived(ours: Outputs, name: str, role: str) -> np.ndarray:
    """An output of ours, or what a hook sees instead of it."""
    if role == "gated attn":  # the output projection's input
        gate = ours[name.replace("attn_core", "attn_in")]["gate"]
        return ours[name]["attn"] / (1 + np.exp(-gate))
    if role == "qkv z":
        return np.concatenate([ours[name]["qkv"], ours[name]["z"]], axis=-1)
    return ours[name][role]


def expected_values(theirs: Any, tokens: np.ndarray) -> Expected:
    """What transformers computes in one forward pass, by our operators."""
    import torch

    hooks = _Hooks()
    body = theirs.model
    hooks.on_output(body.embed_tokens, "embed", "x")
    for index, layer in enumerate(body.layers):
        name = f"layers.{index}"
        if hasattr(layer, "linear_attn"):
            _hook_delta_net(hooks, layer.linear_attn, name)
        else:
            _hook_attention(hooks, layer.self_attn, name)
        # The norm before the feed-forward; Gemma has one after the attention as well.
        before = getattr(layer, "pre_feedforward_layernorm", layer.post_attention_layernorm)
        hooks.on_input(before, f"{name}.attn_out", "h")
        hooks.on_output(layer, f"{name}.ffn", "x")
    try:
        with torch.no_grad():
            logits = theirs(torch.tensor(tokens)).logits
    finally:
        hooks.remove()
    return [*hooks.seen, ("head", "logits", logits.numpy())]


def _hook_attention(hooks: _Hooks, module: Any, name: str) -> None:
    gated = module.q_proj.out_features > module.o_proj.in_features
    if gated:  # queries and gates side by side, head by head
        hooks.on_output(
            module.q_proj,
            f"{name}.attn_in",
            "gate",
            lambda o: o.unflatten(-1, (-1, 2, module.head_dim))[..., 1, :],
        )
    hooks.on_output(module.v_proj, f"{name}.attn_in", "v")
    hooks.on_input(module.o_proj, f"{name}.attn_core", "gated attn" if gated else "attn")


def _hook_delta_net(hooks: _Hooks, module: Any, name: str) -> None:
    hooks.on_output(module.in_proj_qkvz, f"{name}.attn_in", "qkv z")
    hooks.on_output(module.in_proj_ba, f"{name}.attn_in", "ba")
    hooks.on_input(module.norm, f"{name}.attn_core", "attn")


class _Hooks:
    """Records values that pass through modules."""

    def __init__(self) -> None:
        self.seen: Expected = []
        self._handles: list[Any] = []

    def on_input(self, module: Any, name: str, role: str) -> None:
        self._handles.append(
            module.register_forward_pre_hook(lambda m, inputs: self._keep(name, role, inputs[0]))
        )

    def on_output(self, module: Any, name: str, role: str, view: Any = lambda o: o) -> None:
        def hook(m: Any, inputs: Any, output: Any) -> None:
            self._keep(name, role, view(output[0] if isinstance(output, tuple) else output))

        self._handles.append(module.register_forward_hook(hook))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _keep(self, name: str, role: str, value: Any) -> None:
        self.seen.append((name, role, value.detach().float().numpy()))
