"""Weights pass through host memory one tensor at a time on their way to a group's devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from weavejax.models import load_config
from weavejax.models.packing import checkpoint_tensors

# Run by a fresh process, whose highest memory use so far is that of its imports. Devices are
# virtual CPUs, so that placed weights count as memory too and are subtracted.
PLACE = """
import json, pathlib, sys
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)
from weavejax.meshes.submesh import group_meshes
from weavejax.models import operator_sequence
from weavejax.models.loading import load_model
from weavejax.default_plans import model_ref
from weavejax.plan import DeviceGroup, Plan, Template, Workload
from weavejax.runtime.memory import live_bytes, load_weights


def peak_bytes():  # of this program; getrusage would include the process that started it
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

directory, kinds, ways = sys.argv[1], sys.argv[2].split(","), int(sys.argv[3])
model = load_model(directory)
group = DeviceGroup(device="cpu", tensor_parallel=ways, resident_batch=1)
plan = Plan(model=model_ref(model.config), workload=Workload(context=8), template=Template(),
            groups=(group,))
mesh = group_meshes(plan)[0]
indices = [op.index for op in operator_sequence(model.config) if op.kind in kinds]
jax.block_until_ready(jax.device_put(1.0))
before = peak_bytes()
weights = jax.block_until_ready(load_weights(model, group, mesh, indices, "float32"))
print(json.dumps([peak_bytes() - before, sum(live_bytes([weights]).values())]))
"""
CONFIG = dict(
    model_type="llama",
    vocab_size=6_000,
    hidden_size=1_024,
    num_hidden_layers=6,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=128,
    intermediate_size=3_072,
    max_position_embeddings=64,
    tie_word_embeddings=True,
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 MB in float32, of which the largest parameter (an MLP's two projections) has 25."""
    directory = tmp_path_factory.mktemp("large")
    (directory / "config.json").write_text(json.dumps(CONFIG))
    shapes = checkpoint_tensors(load_config(directory))
    save_file(
        {name: np.full(shape, 0.5, np.float32) for name, shape in shapes.items()},
        directory / "model.safetensors",
    )
    return directory


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("ways", [1, 2])
@pytest.mark.parametrize("kinds", ["embed,attn_in,attn_core,attn_out,ffn,head", "ffn"])
def test_placing_weights_takes_one_tensor_of_memory(
    kinds: str, ways: int, checkpoint: Path
) -> None:
    """On one device and cut over two; a group that owns one kind of operator holds that alone."""
    largest = 2 * 1_024 * 3_072 * 4
    command = [sys.executable, "-c", PLACE, str(checkpoint), kinds, str(ways)]
    # Freed memory goes back at once, so that what is used shows, not what the allocator keeps.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    used, placed = json.loads(subprocess.check_output(command, text=True, env=environment))
    weights_of_ffn = 6 * (3 * 1_024 * 3_072 + 1_024) * 4
    if kinds == "ffn":
        assert placed == weights_of_ffn + 6 * 1_024 * 4 * (ways - 1)
    else:
        assert placed > 1.2 * weights_of_ffn
    # Its packed form and the tensor being read into it.
    assert placed < used < placed + 2 * largest
