"""The accelerator's self-test, run on the CPU: it finds nothing wrong, and what is planted."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from weavejax.cli import main
from weavejax.measure import selftest
from weavejax.models import attention
from weavejax.profiles.files import load_data
from weavejax.runtime.programs import shared_programs


@pytest.mark.slow
def test_the_cpu_passes_and_its_profile_is_kept(
    capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest, "CUTS", {"afd": selftest.CUTS["afd"]})
    profile = tmp_path / "profile.json"
    arguments = ["selftest", "--device", "cpu", "--architecture", "llama-3.1-8b"]
    assert main([*arguments, "-o", str(profile)]) == 0
    output = capsys.readouterr().out
    assert output.count("ok    llama-3.1-8b, ") == 2 and "afd beside colocated" in output
    assert "WRONG" not in output
    assert "of the device's bandwidth" in output and "us a Run" in output
    assert load_data(profile).devices["device"].operators
    assert jax.config.jax_default_matmul_precision is None


def test_without_a_gpu_it_says_so(capsys) -> None:
    assert main(["selftest"]) == 2
    assert "no GPU here, nothing was checked: JAX sees cpu" in capsys.readouterr().out


@pytest.mark.slow
def test_a_wrong_product_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right, run = attention.AttentionOut.__call__, selftest._run
    bad, good = jax.devices()[1], jax.devices()[0]

    def wrong(self, tensors, state, step):
        return right(self, tensors | {"attn": -tensors["attn"]}, state, step)

    def planted(model, plan, device):
        with monkeypatch.context() as patch:
            if device == bad:
                patch.setattr(attention.AttentionOut, "__call__", wrong)
            shared_programs.cache_clear()  # what the other device traced is not this one's
            return run(model, plan, device)

    monkeypatch.setattr(selftest, "_run", planted)
    monkeypatch.setattr(selftest, "CUTS", {"afd": selftest.CUTS["afd"]})
    try:
        first, *plans = selftest.check_architectures(bad, good, ["qwen3-0.6b"])
    finally:
        shared_programs.cache_clear()
    assert not first.good and "largest logit difference" in first.figure
    assert all(finding.good for finding in plans)  # as wrong as colocated on the same device
