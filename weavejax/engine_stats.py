"""Counts of an engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EngineStats:
    """Counts since the engine started."""

    slots: int
    running: int
    waiting: int
    requests_finished: int
    prompt_tokens: int
    generated_tokens: int
    prefill_passes: int
    decode_iterations: int
    programs_compiled: int
    """Of this model and context, by all engines of the process; constant while serving."""
