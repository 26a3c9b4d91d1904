"""llama.cpp as a contestant, through ``llama-cpp-python``, on the GGUF file a model was read from.

It computes with the file's weights as they are, quantised ones too, while plans hold them in the
dtype they were asked for. Its attention and thread count are its own defaults on this machine.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from weavejax.bench.interleaved import Subject
from weavejax.models.loading import Model

LLAMA_CPP = "llama.cpp"


class LlamaCpp:
    """A GGUF file in llama.cpp, and contexts to time it in.

    Args:
        model: read from a GGUF file.
        threads: cores to compute on.

    Raises:
        ValueError: ``llama-cpp-python`` is not there, or the model comes from no such file.
    """

    def __init__(self, model: Model, threads: int) -> None:
        if importlib.util.find_spec("llama_cpp") is None:
            raise ValueError(
                "a comparison with llama.cpp needs llama-cpp-python: pip install llama-cpp-python, "
                "or leave it out of --against"
            )
        path = str(getattr(model.source, "location", ""))
        if not path.endswith(".gguf"):
            raise ValueError(
                f"llama.cpp reads GGUF files, got weights from {path or 'memory'}; compare a model "
                "of a .gguf file, or leave llama.cpp out of --against"
            )
        api: Any = importlib.import_module("llama_cpp")
        self._api = api
        self._threads, self._vocab = threads, model.config.vocab_size
        self._quiet = api.llama_log_callback(lambda level, text, data: None)
        api.llama_log_set(self._quiet, None)
        api.llama_backend_init()
        parameters = api.llama_model_default_params()
        self._model = api.llama_model_load_from_file(path.encode(), parameters)
        if not self._model:
            raise ValueError(f"llama.cpp could not read {path}; leave it out of --against")

    def decode(self, batch: int, context: int, iterations: int) -> Subject:
        """Seconds of a step: one token for each of ``batch`` sequences, and an argmax."""
        start_at = max(1, context - iterations - 1)
        held = self._context(batch, context)
        memory = self._api.llama_get_memory(held)
        self._evaluate(held, [1] * start_at, range(start_at), [0] * start_at, last_only=True)
        for row in range(1, batch):
            self._api.llama_memory_seq_cp(memory, 0, row, -1, -1)
        rows = range(batch)

        def run() -> float:
            for row in rows:
                self._api.llama_memory_seq_rm(memory, row, start_at, -1)
            ids = [1] * batch
            begin = 0.0
            for step in range(iterations + 1):  # the first one is not timed
                if step == 1:
                    begin = time.perf_counter()
                logits = self._evaluate(held, ids, [start_at + step] * batch, rows)
                ids = logits.argmax(-1).tolist()
            return (time.perf_counter() - begin) / iterations

        return run

    def prefill(self, tokens: Sequence[int]) -> Subject:
        """Seconds to the first token of one prompt."""
        held = self._context(1, len(tokens) + 1)
        memory = self._api.llama_get_memory(held)
        places, zeros = range(len(tokens)), [0] * len(tokens)

        def run() -> float:
            self._api.llama_memory_clear(memory, False)
            begin = time.perf_counter()
            self._evaluate(held, tokens, places, zeros, last_only=True).argmax(-1)
            return time.perf_counter() - begin

        return run

    def _context(self, sequences: int, length: int) -> Any:
        parameters = self._api.llama_context_default_params()
        parameters.n_ctx = sequences * (length + 1)
        parameters.n_batch = parameters.n_ubatch = max(length, sequences)
        parameters.n_seq_max = sequences
        parameters.n_threads = parameters.n_threads_batch = self._threads
        parameters.no_perf = True
        held = self._api.llama_init_from_model(self._model, parameters)
        if not held:
            raise ValueError(f"llama.cpp made no context of {sequences} x {length} tokens")
        return held

    def _evaluate(
        self,
        held: Any,
        tokens: Sequence[int],
        positions: Sequence[int],
        rows: Sequence[int],
        *,
        last_only: bool = False,
    ) -> np.ndarray:
        """Logits ``[tokens, vocabulary]``, or ``[1, vocabulary]`` of the last one alone."""
        count = len(tokens)
        batch = self._api.llama_batch_init(count, 0, 1)
        try:
            batch.n_tokens = count
            for place in range(count):
                batch.token[place], batch.pos[place] = tokens[place], positions[place]
                batch.n_seq_id[place], batch.seq_id[place][0] = 1, rows[place]
                batch.logits[place] = not last_only or place == count - 1
            status = self._api.llama_decode(held, batch)
        finally:
            self._api.llama_batch_free(batch)
        if status:
            raise RuntimeError(f"llama.cpp could not decode {count} tokens: status {status}")
        logits = self._api.llama_get_logits(held)
        kept = 1 if last_only else count
        return np.ctypeslib.as_array(logits, shape=(kept, self._vocab))


def cores_here() -> int:
    """Cores that this process may use, as JAX does on CPU."""
    return len(os.sched_getaffinity(0))
