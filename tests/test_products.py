"""Products of bfloat16 that accumulate in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from weavejax.models.products import einsum_float32, project, project_float32


@pytest.mark.parametrize("shape", [(1, 1, 96), (2, 1, 96), (1, 7, 96), (3, 5, 96)])
def test_a_projection_is_the_rounded_exact_product(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    x = jnp.asarray(random.standard_normal(shape), jnp.bfloat16)
    weight = jnp.asarray(random.standard_normal((4, 10, 96)), jnp.bfloat16)
    exact = np.einsum("btk,mnk->btmn", np.asarray(x, np.float64), np.asarray(weight, np.float64))
    found = jax.jit(project)(x, weight)
    assert found.dtype == jnp.bfloat16 and found.shape == (*shape[:-1], 4, 10)
    # half a unit in the last place of bfloat16, and what float32 loses over 96 terms
    np.testing.assert_allclose(np.asarray(found, np.float64), exact, rtol=2**-8, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_float32_is_multiplied_as_it_is(rows: int) -> None:
    random = np.random.default_rng(1)
    x = jnp.asarray(random.standard_normal((rows, 3, 4)), jnp.float32)
    weight = jnp.asarray(random.standard_normal((5, 4)), jnp.float32)
    np.testing.assert_allclose(project(x, weight), x @ weight.T, rtol=1e-6)
    np.testing.assert_allclose(project_float32(x, weight), x @ weight.T, rtol=1e-6)
    assert einsum_float32("btk,nk->btn", x, weight).dtype == jnp.float32
