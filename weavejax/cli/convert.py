"""``weavejax convert``: a model's weights, packed per operator, as Orbax checkpoints."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from weavejax.cli.common import user_errors
from weavejax.models.loading import load_model
from weavejax.progress import show_progress


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Register the command."""
    parser = commands.add_parser(
        "convert", help="pack a model's weights per operator, for faster loading by every group"
    )
    parser.add_argument("model", help="preset, Hugging Face directory, hub id or .gguf file")
    parser.add_argument("out", metavar="OUT", help="directory to write, new or empty")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        default="float32",
        help="of the stored weights (default: float32); bfloat16 takes half the space and loses "
        "nothing of checkpoints published in it",
    )
    parser.add_argument(
        "--random-weights", action="store_true", help="a tiny random model of this architecture"
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Run the command."""
    # Here, because Orbax is slow to import and no other command needs it.
    from weavejax.models.conversion import convert_model

    with user_errors(), show_progress() as report:
        if options.random_weights:
            model = load_model(options.model, random_weights=True, scale="tiny")
        else:
            model = load_model(options.model)
        out = convert_model(model, options.out, dtype=options.dtype, progress=report)
    size = sum(path.stat().st_size for path in Path(out).rglob("*") if path.is_file())
    print(f"{out}: {model.config.name} in {options.dtype}, {size / 1e6:.1f} MB")
    return 0
