"""The judgement of who failed, and where."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weavejax.workers.failure import Seen, find_failure
from weavejax.workers.progress_report import Report
from weavejax.workers.share import WorkerName

A, B, C = WorkerName(0, 0), WorkerName(1, 0), WorkerName(1, 1)
RUNNING = Seen(report=Report(state="running", stage=4, microbatch=1), silent_s=0.1, still_s=0.1)
WAITS_FOR_B = replace(
    RUNNING, report=Report(state="waiting", stage=2, boundary=3, microbatch=1, peer="1.0")
)
IDLE = replace(RUNNING, report=Report(state="idle"), still_s=99.0)


def judge(*seen: Seen, busy: bool = True) -> str | None:
    failure = find_failure(dict(zip((A, B, C), seen, strict=False)), timeout_s=5.0, busy=busy)
    return None if failure is None else str(failure)


def test_all_is_well_while_workers_answer_and_one_moves() -> None:
    assert judge(WAITS_FOR_B, RUNNING) is None
    assert judge(IDLE, IDLE, busy=False) is None
    assert judge(replace(WAITS_FOR_B, still_s=99.0), RUNNING) is None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"exit_status": -9}, "died (killed by signal 9)"),
        ({"exit_status": 3}, "died (exit status 3)"),
        ({"closed": True}, "closed its connection"),
        ({"silent_s": 6.0}, "did not answer for 6.0 s"),
        ({"error": "XlaError: out of memory"}, "failed (XlaError: out of memory)"),
        ({"lost": ("0.0", "closed")}, "lost its connection with worker 0.0 (closed)"),
    ],
)
def test_the_failed_worker_and_the_place_are_named(change: dict, reason: str) -> None:
    assert judge(WAITS_FOR_B, replace(RUNNING, **change)) == (
        f"group 1 replica 0 {reason} in stage 3, microbatch 1; "
        "group 0 replica 0 waited for boundary 3, microbatch 1"
    )


def test_a_death_explains_lost_connections_and_silence_of_others() -> None:
    lost = replace(WAITS_FOR_B, lost=("1.0", "closed"))
    silent = replace(RUNNING, silent_s=7.0)
    dead = replace(RUNNING, exit_status=-9)
    assert str(judge(lost, dead, silent)).startswith("group 1 replica 0 died")


def test_standstill_follows_the_waiting_to_its_cause() -> None:
    waits = replace(WAITS_FOR_B, still_s=8.0)
    stuck = replace(RUNNING, still_s=7.0)
    assert judge(waits, stuck, replace(IDLE, still_s=9.0)) == (
        "group 1 replica 0 made no progress for 7.0 s in stage 3, microbatch 1; "
        "group 0 replica 0 waited for boundary 3, microbatch 1"
    )
    assert judge(waits, stuck, busy=False) is None


def test_without_anyone_waiting_the_workers_own_report_is_the_place() -> None:
    sending = replace(RUNNING, report=replace(RUNNING.report, sending=(2, 0)), exit_status=-9)
    assert str(judge(IDLE, sending)).endswith("in stage 2, microbatch 0")
    waiting_itself = replace(WAITS_FOR_B, exit_status=-9)
    assert judge(waiting_itself, IDLE) == (
        "group 0 replica 0 died (killed by signal 9) in stage 2, microbatch 1; "
        "group 0 replica 0 waited for boundary 3, microbatch 1"
    )
