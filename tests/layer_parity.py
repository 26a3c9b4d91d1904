"""Compare every operator of a model with the Hugging Face module that computes the same."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from weavejax.models.build import build_operator
from weavejax.models.loading import Model
from weavejax.models.sequence import operator_sequence
from weavejax.models.step import Step


def run_operators(model: Model, tokens: np.ndarray) -> dict[str, dict[str, np.ndarray]]:
    """Outputs of every operator for whole sequences, one after the other, in float32.

    Args:
        model: what to run.
        tokens: ``[b, t]`` int.

    Returns:
        Operator name to its outputs by role.
    """
    rows, length = tokens.shape
    step = Step(
        positions=jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (rows, length)),
        active=jnp.ones((rows, length), bool),
        slots=None,
        prefix=length,
    )
    held = {"ids": jnp.asarray(tokens, jnp.int32)}
    outputs: dict[str, dict[str, np.ndarray]] = {}
    for op in operator_sequence(model.config):
        params = model.operator_params(op, dtype="float32")
        module = build_operator(op, model.config, {k: jnp.asarray(v) for k, v in params.items()})
        state = {}
        for spec in op.state:
            first, *rest = spec.dims
            places = () if spec.length == "constant" else (spec.positions(length),)
            shape = (rows, first.count, *places, first.size, *(dim.total for dim in rest))
            state[spec.name] = jnp.zeros(shape, jnp.float32)
        produced, _ = module(held, state, step)
        held |= produced
        outputs[op.name] = {role: np.asarray(value) for role, value in produced.items()}
    return outputs


def compare_operators(model: Model, theirs: Any, tokens: np.ndarray) -> dict[str, float]:
    """Largest absolute difference of every operator's output from transformers'.

    ``attn_in`` is compared through what follows from it alone (the values ``v`` and, by way of
    ``attn_core``, queries and keys); the others by their own outputs, taken with hooks.
    """
    import torch

    ours = run_operators(model, tokens)
    seen = _hooked_forward(theirs, torch.tensor(tokens))
    worst: dict[str, float] = {}
    for name, outputs in ours.items():
        if name not in seen:
            continue
        role, value = seen[name]
        mine = outputs[role].reshape(value.shape)
        worst[name] = float(np.abs(mine - value).max())
    return worst


def _hooked_forward(theirs: Any, tokens: Any) -> dict[str, tuple[str, np.ndarray]]:
    """Operator name to (role, transformers' value) for one forward pass."""
    import torch

    seen: dict[str, tuple[str, np.ndarray]] = {}
    hooks = []

    def keep(name: str, role: str, value: Any) -> None:
        seen[name] = (role, value.detach().float().numpy())

    def on_input(module: Any, hook: Any) -> None:
        hooks.append(module.register_forward_pre_hook(hook))

    def on_output(module: Any, hook: Any) -> None:
        hooks.append(module.register_forward_hook(hook))

    body = theirs.model
    on_output(body.embed_tokens, lambda m, i, o: keep("embed", "x", o))
    on_output(theirs.lm_head, lambda m, i, o: keep("head", "logits", o))
    for index, layer in enumerate(body.layers):
        name = f"layers.{index}"
        value = getattr(layer.self_attn, "v_proj", None)
        if value is not None:
            on_output(value, lambda m, i, o, n=name: keep(f"{n}.attn_in", "v", o))
        on_input(
            layer.self_attn.o_proj, lambda m, i, n=name: keep(f"{n}.attn_core", "attn", i[0])
        )
        on_input(
            layer.post_attention_layernorm, lambda m, i, n=name: keep(f"{n}.attn_out", "h", i[0])
        )
        on_output(
            layer,
            lambda m, i, o, n=name: keep(f"{n}.ffn", "x", o[0] if isinstance(o, tuple) else o),
        )
    try:
        with torch.no_grad():
            theirs(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return seen
