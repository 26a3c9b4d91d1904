"""What requests get where the model or the machine is not what it should be."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from serving import nine_heads

from weavejax.request import SamplingParams
from weavejax.serve import serve


@dataclasses.dataclass
class Damaged:
    """A source whose last norm is not a number."""

    source: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    def read(self, name: str, dtype: Any, index: int | None = None) -> np.ndarray:
        array = self.source.read(name, dtype, index)
        return np.full_like(array, np.nan) if name == "model.norm.weight" else array


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("plan", ["colocated", "afd"])
def test_logits_that_are_no_numbers_are_an_error(plan: str, temperature: float) -> None:
    model = dataclasses.replace(nine_heads(), source=Damaged(nine_heads().source))
    with serve(model, plan, slots=2, context=32, prefill_chunks=(8,)) as engine:
        params = SamplingParams(max_tokens=4, temperature=temperature)
        outputs = engine.generate([[1, 2, 3], [4, 5], [6]], params)
    for output in outputs:
        assert output.finish_reason == "error" and output.token_ids == ()
        assert output.error is not None and "logits are no numbers (NaN)" in output.error


@pytest.mark.parametrize("platform", ["cuda", "nonesuch"])
def test_a_platform_that_is_not_there_is_named(platform: str) -> None:
    command = "generate llama-3.1-8b 1,2 --random-weights --max-tokens 2 --context 32".split()
    found = subprocess.run(
        [sys.executable, "-m", "weavejax.cli", *command],
        env={**os.environ, "JAX_PLATFORMS": platform},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 2
    assert f"no device of the platforms it was told to use, got {platform!r}" in found.stderr
    assert "Traceback" not in found.stderr
