"""Test-wide settings, made before any JAX backend exists.

Eight virtual CPU devices stand in for a cluster. Dtype promotion is strict, so that a silent
float64 or bfloat16 mix-up fails here rather than on an accelerator.
"""

from __future__ import annotations

import gc
import os
import tempfile

# Read once, when numpy, torch and tokenizers load. One thread each: two test processes share two
# cores, and threads that wait for each other on a busy machine cost far more than they give. No
# network, so that a test can only load what is on the disk.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Tests run some eighty commands; each would compile every module of the package again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# What one test compiles, no other test and no command that a test runs compiles again. A fresh
# folder for every run, so that nothing depends on what an earlier run left.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _cache = tempfile.TemporaryDirectory(prefix="weavejax-tests-")
    os.environ |= {
        "JAX_COMPILATION_CACHE_DIR": _cache.name,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

import hypothesis  # noqa: E402
import jax  # noqa: E402

# Test models are tiny: compiling them takes longer than running them, and most of that is
# optimisation. `make demo` runs the same code optimised. Read when the first backend starts; the
# last flags are known to these releases, and an unknown flag would end the process.
_FLAGS = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
if jax.__version__.startswith("0.10."):
    _FLAGS += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
os.environ.setdefault("XLA_FLAGS", _FLAGS)

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")

# Programs and weights are many objects that live long: looking through them for cycles at the
# usual rate takes several per cent of the time.
gc.set_threshold(100_000, 50, 100)

# Compilation makes the first example of a property slow, so there is no deadline per example. A
# run for a merge must not depend on luck; a run at a desk should explore.
hypothesis.settings.register_profile(
    "weavejax", deadline=None, derandomize=bool(os.environ.get("CI")), print_blob=True
)
hypothesis.settings.load_profile("weavejax")
