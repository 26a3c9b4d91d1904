"""What the README and the documentation show works as written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from forked import run_command, run_python

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Installing is what `make` does before tests run; making it again inside a test proves nothing.
OUTSIDE = ("make", "pip")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, text) of the fenced blocks of a page, in order."""
    return BLOCK.findall(page.read_text("utf-8"))


def commands(page: Path) -> list[str]:
    """Shell commands of a page's console blocks, comments removed."""
    found = []
    for language, text in blocks(page):
        if language == "console":
            lines = text.replace("\\\n", " ").splitlines()
            found += [line[2:] for line in lines if line.startswith("$ ")]
    return found


def test_the_readme_names_the_two_commands() -> None:
    assert {"make demo", "make test"} <= {
        shlex.join(shlex.split(command, comments=True)) for command in commands(PAGES[0])
    }


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page_run_in_order(page: Path, tmp_path: Path) -> None:
    for command in commands(page):
        words = shlex.split(command, comments=True)
        if words[0] in OUTSIDE:
            continue
        assert words[0] == "weavejax", command
        result = run_command(words[1:], tmp_path)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_of_a_page_runs_and_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    found = blocks(page)
    for index, (language, text) in enumerate(found):
        if language != "python":
            continue
        result = run_python(text, tmp_path)
        assert result.returncode == 0, f"{text}\n{result.stderr}"
        if index + 1 < len(found) and found[index + 1][0] == "text":
            assert result.stdout == found[index + 1][1]
