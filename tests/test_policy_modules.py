"""Policies of a file or module, at the command line, and the shipped examples."""

from __future__ import annotations

import pytest
from workbench_cases import CLUSTER, MODEL

from weavejax.cli import main
from weavejax.models.presets import preset_config
from weavejax.models.specs import LAYER_OPERATORS
from weavejax.planner import partition_block
from weavejax.planner.policies import policy_named, policy_names
from weavejax.schedule import stage_occurrences
from weavejax.workbench import example_policies  # noqa: F401  registers its policies

OPTIONS = ["--max-devices", "2", "--max-replicas", "1", "--max-groups", "1"]


def test_commands_print_and_write(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:  # type: ignore[no-untyped-def]
    policies = tmp_path / "mine.py"
    policies.write_text(
        "import weavejax as wj\n"
        "@wj.register_policy('compare-test-file')\n"
        "def mine(block, groups):\n"
        "    return [wj.Template()] if groups == 1 else []\n"
    )
    (tmp_path / "broken.py").write_text(
        "import weavejax as wj\n"
        "wj.register_policy('compare-test-broken')(lambda block, groups: 5)\n"
    )
    broken = ["compare-test-broken", "--policy-module", str(tmp_path / "broken.py")]
    picture = tmp_path / "c.svg"
    arguments = ["compare", MODEL, "--cluster", "h100-sxm:2", "--context", "4096", "--tpot-slo-ms"]
    arguments += ["20", *OPTIONS, "--jobs", "1", "--plot", str(picture), "--policy", "colocated"]
    # One file named twice, in two ways, runs once.
    twice = ["--policy-module", str(policies), "--policy-module", str(tmp_path / "." / "mine.py")]
    assert main([*arguments, "compare-test-file", *broken, *twice]) == 0
    shown, error = capsys.readouterr()
    assert "| compare-test-broken | - | - | - | - | policy |" in shown
    assert error.count("'compare-test-broken' for K=1 must return a list") == 1
    assert "| 4,096 | 20 | compare-test-file |" in shown and picture.read_text().startswith("<?xml")
    assert "compare-test-file" in policy_names()
    setting = ["--cluster", "h100-sxm:2", "--context", "4096", "--tpot-slo-ms", "1e-3", *OPTIONS]
    sweep = ["sweep", MODEL, "context", "4096", *setting, "--policy", "colocated", "--jobs", "1"]
    assert main(sweep) == 1
    assert "| latency |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("nowhere.py", "no such file"),
        ("weavejax.no_such_module", "No module named"),
        ("straddle", "did you mean straddle.py?"),
    ],
)
def test_a_policy_module_that_is_not_there(  # type: ignore[no-untyped-def]
    module, words, capsys, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "straddle.py").touch()
    arguments = ["plan", MODEL, "--cluster", CLUSTER, "--context", "1", "--tpot-slo-ms", "1"]
    assert main([*arguments, "--policy-module", module]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "policy", "names", "attention"),
    [
        ("gemma-3-27b", "hybrid-cad", {"attn_core"}, {"full"}),
        ("qwen3-next-80b-a3b", "hybrid-cad", {"attn_core"}, {"full"}),
        ("qwen3-next-80b-a3b", "expert-layers", {"ffn"}, {"full", "linear"}),
    ],
)
def test_an_example_policy_isolates_what_it_says(model, policy, names, attention) -> None:  # type: ignore[no-untyped-def]
    config = preset_config(model)
    [template] = policy_named(policy)(partition_block(config), 2)
    isolated = []
    for owner in (0, 1):
        found = {
            (LAYER_OPERATORS[index % 4], config.layer_kinds[index // 4].attention)
            for stage in stage_occurrences(template, config.num_layers, 2)
            if stage.owner == owner
            for index in range(stage.start, stage.stop)
        }
        isolated.append(found)
    assert {(name, kind) for name in names for kind in attention} in isolated
    assert not isolated[0] & isolated[1]


def test_example_policies_offer_nothing_where_they_do_not_apply() -> None:
    gemma = partition_block(preset_config("gemma-3-27b"))
    assert policy_named("expert-layers")(gemma, 2) == policy_named("three-way")(gemma, 2) == []
