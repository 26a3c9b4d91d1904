"""Test-wide settings, made before any JAX backend exists.

Eight virtual CPU devices stand in for a cluster. Dtype promotion is strict, so that a silent
float64 or bfloat16 mix-up fails here rather than on an accelerator.
"""

from __future__ import annotations

import os

_CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
# Read once, when numpy, torch and tokenizers load: one pool each of at most four threads, and no
# network, so that a test can only load what is on the disk.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, str(min(_CPUS, 4)))
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import hypothesis  # noqa: E402
import jax  # noqa: E402

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")

# Compilation makes the first example of a property slow, so there is no deadline per example. A
# run for a merge must not depend on luck; a run at a desk should explore.
hypothesis.settings.register_profile(
    "weavejax", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True
)
hypothesis.settings.load_profile("weavejax")
