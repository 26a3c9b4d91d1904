"""Products of bfloat16 that accumulate in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from weavejax.models.products import einsum_float32, project


@pytest.mark.parametrize("shape", [(1, 1, 96), (2, 1, 96), (1, 7, 96), (3, 5, 96)])
def test_a_projection_is_the_rounded_exact_product(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    x = jnp.asarray(random.standard_normal(shape), jnp.bfloat16)
    weight = jnp.asarray(random.standard_normal((96, 40)), jnp.bfloat16)
    exact = np.asarray(x, np.float64) @ np.asarray(weight, np.float64)
    found = jax.jit(project)(x, weight)
    assert found.dtype == jnp.bfloat16 and found.shape == (*shape[:-1], 40)
    # half a unit in the last place of bfloat16, and what float32 loses over 96 terms
    np.testing.assert_allclose(np.asarray(found, np.float64), exact, rtol=2**-8, atol=1e-4)


def test_float32_is_multiplied_as_it_is() -> None:
    x, weight = jnp.ones((2, 3, 4)), jnp.ones((4, 5))
    np.testing.assert_array_equal(project(x, weight), x @ weight)
    assert einsum_float32("btk,kn->btn", x, weight).dtype == jnp.float32
