"""The analytic model: latency = max(floor, roofline), counted by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weavejax.meshes import device_spec, known_devices
from weavejax.models import operator_sequence, preset_config
from weavejax.models.costs import kernel_bytes, kernel_flops
from weavejax.models.specs import Attention, Gemm
from weavejax.profiles import Efficiency
from weavejax.profiles.analytic import DEFAULT_EFFICIENCIES, analytic_device, analytic_time_s
from weavejax.profiles.schema import KERNEL_AXES
from weavejax.profiles.work import kernel_work

H20 = analytic_device(device_spec("h20"))


def test_latency_is_the_largest_of_floor_memory_and_compute():
    device = dataclasses.replace(
        H20,
        bandwidth_bytes_per_s=1e12,
        bf16_flop_per_s=1e14,
        efficiencies={"gemm": Efficiency(floor_s=1e-5, bandwidth=0.5, flop=0.25)},
    )
    sizes = (
        np.array([1.0, 1.0, 4096.0]),
        np.array([64.0, 8192, 8192]),
        np.array([64.0, 8192, 8192]),
    )
    times_s = analytic_time_s(device, "gemm", (), sizes)
    weights = 2 * (8192 * 8192 + 2 * 8192)
    assert times_s.tolist() == pytest.approx([1e-5, weights / 0.5e12, 2 * 4096 * 8192**2 / 0.25e14])


@pytest.mark.parametrize("name", known_devices())
def test_every_known_device_has_an_answer_for_every_kernel(name):
    device = analytic_device(device_spec(name))
    for kind, (fixed, axes) in KERNEL_AXES.items():
        shape = [2] * len(fixed)
        small = analytic_time_s(device, kind, shape, [8] * len(axes))
        large = analytic_time_s(device, kind, shape, [1e9] * len(axes))
        assert DEFAULT_EFFICIENCIES[kind].floor_s == small < large < np.inf


@given(
    st.sampled_from(sorted(KERNEL_AXES)),
    st.lists(st.integers(1, 64), min_size=6, max_size=6),
    st.lists(st.integers(1, 10**6), min_size=3, max_size=3),
    st.integers(0, 2),
)
def test_a_bigger_problem_is_never_cheaper(kind, shape, sizes, axis):
    fixed, axes = KERNEL_AXES[kind]
    shape, sizes = shape[: len(fixed)], sizes[: len(axes)]
    bigger = list(sizes)
    bigger[axis % len(axes)] *= 2
    assert analytic_time_s(H20, kind, shape, bigger) >= analytic_time_s(H20, kind, shape, sizes)


def test_work_agrees_with_the_models_own_counts():
    """Two independent counts of the same kernels: per local shape here, per operator there."""
    for op in operator_sequence(preset_config("gemma-3-27b"))[:8]:
        for kernel in op.kernels:
            if isinstance(kernel, Gemm):
                k, n = kernel.local(2)
                flop, traffic = kernel_work("gemm", (), (16, n, k))
            elif isinstance(kernel, Attention):
                shape = (*kernel.local(2), kernel.head_dim, kernel.window or 0)
                flop, traffic = kernel_work("attention", shape, (16, 4096))
            else:
                continue
            assert flop == kernel_flops(kernel, 16, 4096, 2)
            assert traffic == kernel_bytes(kernel, 16, 4096, 2)


def test_unknown_kernels_are_refused():
    with pytest.raises(ValueError, match="unknown kernel kind 'convolution'"):
        kernel_work("convolution", (), ())
