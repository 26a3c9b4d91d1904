"""Progress bars: drawn when asked for, silent otherwise."""

from __future__ import annotations

from weavejax.progress import show_progress


def report_all(enabled):
    with show_progress(enabled) as report:
        for done in range(1, 4):
            report("compiling", done, 3)
        report("loading weights", 1, 2)


def test_bars_name_what_is_done_and_how_far_it_is(capsys):
    report_all(True)
    shown = capsys.readouterr()
    assert shown.out == ""
    for part in ("compiling", "3/3", "loading weights", "1/2"):
        assert part in shown.err


def test_nothing_is_drawn_without_a_terminal(capsys):
    report_all(None)
    report_all(False)
    assert capsys.readouterr() == ("", "")
