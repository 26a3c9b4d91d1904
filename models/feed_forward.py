"""Feed-forward operators: a gated MLP, and routed experts with an optional shared one."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from weavejax.models.config import ModelConfig
from weavejax.models.operator import Operator, Tensors
from weavejax.models.products import project
from weavejax.models.step import Step

Array = jax.Array


class DenseFeedForward(Operator):
    """Pre-norm, gated MLP, post-norm and residual: ``h`` to ``x``."""

    def __call__(self, tensors: Tensors, state: Tensors, step: Step) -> tuple[Tensors, Tensors]:
        h = tensors["h"]
        y = gated_mlp(
            self.normalize("norm", h), self.weight("gate_up"), self.weight("down"), self.config
        )
        return {"x": self.residual(y, h, step)}, state


class MoeFeedForward(Operator):
    """Pre-norm, router, experts, shared expert, post-norm and residual: ``h`` to ``x``.

    No token is dropped, whatever the routing. Under expert parallelism a rank computes its own
    experts for all rows; otherwise its part of every expert's hidden width.
    """

    def __call__(self, tensors: Tensors, state: Tensors, step: Step) -> tuple[Tensors, Tensors]:
        h = tensors["h"]
        x = self.normalize("norm", h)
        rows = x.reshape(-1, x.shape[-1])
        experts, weights = self.route(rows)
        y = self.mix(rows, experts, weights, step).reshape(x.shape)
        if self.has("shared_gate_up"):
            shared = gated_mlp(
                x, self.weight("shared_gate_up"), self.weight("shared_down"), self.config
            )
            if self.has("shared_gate"):
                shared = shared * jax.nn.sigmoid(project(x, self.weight("shared_gate")))
            y = y + shared
        return {"x": self.residual(y, h, step)}, state

    def route(self, rows: Array) -> tuple[Array, Array]:
        """Experts ``[n, k]`` int32 and their weights ``[n, k]`` float32 for ``[n, hidden]``."""
        moe = self.config.moe
        assert moe is not None
        logits = project(rows, self.weight("router")).astype(jnp.float32)
        if self.has("router_bias"):
            logits = logits + self.weight("router_bias").astype(jnp.float32)
        if moe.softmax_after_topk:
            top, experts = jax.lax.top_k(logits, moe.experts_per_token)
            return experts, jax.nn.softmax(top, axis=-1)
        weights, experts = jax.lax.top_k(jax.nn.softmax(logits, axis=-1), moe.experts_per_token)
        if moe.normalize_weights:
            weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
        return experts, weights

    def mix(self, rows: Array, experts: Array, weights: Array, step: Step) -> Array:
        """Weighted sum of this rank's part of the chosen experts, ``[n, hidden]``."""
        gate_up, down = self.weight("experts_gate_up"), self.weight("experts_down")
        local, hidden, _, inner = gate_up.shape
        first = step.rank() * local if step.expert_ranks > 1 else jnp.int32(0)
        flat = experts.reshape(-1) - first  # this rank's experts are 0..local-1
        mine = (flat >= 0) & (flat < local)
        flat = jnp.where(mine, flat, local)
        order = jnp.argsort(flat, stable=True)
        sizes = jnp.bincount(flat, length=local).astype(jnp.int32)
        owner = jnp.minimum(flat[order], local - 1)
        token = order // experts.shape[1]
        y = jax.lax.ragged_dot(rows[token], gate_up.reshape(local, hidden, 2 * inner), sizes)
        if self.has("experts_gate_up_bias"):
            y = y + self.weight("experts_gate_up_bias").reshape(local, -1)[owner]
        y = activate(y[:, :inner], y[:, inner:], self.config)
        y = jax.lax.ragged_dot(y, down, sizes)
        if self.has("experts_down_bias"):
            bias = self.weight("experts_down_bias")[owner]
            once = step.expert_ranks > 1 or step.ranks == 1
            y = y + (bias if once else jnp.where(step.rank() == 0, bias, jnp.zeros_like(bias)))
        scale = jnp.where(mine, weights.reshape(-1), 0.0)[order]
        y = jnp.where(mine[order, None], y * scale[:, None].astype(y.dtype), jnp.zeros_like(y))
        return jnp.zeros_like(rows).at[token].add(y)


def activate(gate: Array, up: Array, config: ModelConfig) -> Array:
    """The gated activation of this model, computed in float32 and rounded once."""
    dtype = gate.dtype
    gate, up = gate.astype(jnp.float32), up.astype(jnp.float32)
    if config.swiglu_limit is not None:  # GPT-OSS: clamped, a sharper sigmoid, up shifted by one
        gate = jnp.minimum(gate, config.swiglu_limit)
        up = jnp.clip(up, -config.swiglu_limit, config.swiglu_limit)
        y = (up + 1) * gate * jax.nn.sigmoid(gate * 1.702)
    elif config.activation == "gelu_tanh":
        y = jax.nn.gelu(gate, approximate=True) * up
    else:
        y = jax.nn.silu(gate) * up
    return y.astype(dtype)


def gated_mlp(x: Array, gate_up: Array, down: Array, config: ModelConfig) -> Array:
    """Two projections in one GEMM, the activation, one projection back (this rank's part)."""
    y = project(x, gate_up)
    return project(activate(y[..., 0, :], y[..., 1, :], config), down)
