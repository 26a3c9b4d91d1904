"""One request: stop strings, end tokens, limits, and text handed out while it grows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weavejax.request import SamplingParams
from weavejax.sequence import RunningSequence

END = 99


class Decoder:
    """Text of each token, one token late: as of a tokenizer that waits for the next byte."""

    def __init__(self, pieces, lag):
        self.pieces, self.lag, self.waiting = pieces, lag, ""

    def push(self, token):
        ready = self.waiting if self.lag else self.pieces[token]
        self.waiting = self.pieces[token] if self.lag else ""
        return ready

    def flush(self):
        ready, self.waiting = self.waiting, ""
        return ready


def sequence(pieces=(), *, limit=100, lag=False, prompt=(1, 2, 3), end_ids=(END,), **params):
    return RunningSequence(
        index=4,
        prompt=prompt,
        params=SamplingParams(**params),
        limit=limit,
        end_ids=frozenset(end_ids),
        seed=0,
        decoder=Decoder(pieces, lag) if pieces else None,
        submitted_s=10.0,
    )


def reference(pieces, ends_at, limit, stops, lag):
    """(text, tokens taken, reason) by looking at the whole text after every token."""
    text, waiting, taken, reason = "", "", 0, None
    while reason is None and taken < len(pieces):
        taken += 1
        if taken - 1 == ends_at:
            text, reason = text + waiting, "stop"
        else:
            text, waiting = (
                (text + waiting, pieces[taken - 1])
                if lag
                else (
                    text + pieces[taken - 1],
                    "",
                )
            )
            if not any(stop in text for stop in stops) and taken == limit:
                text, reason = text + waiting, "length"
        found = [text.index(stop) for stop in stops if stop in text]
        if found:
            text, reason = text[: min(found)], "stop"
    return text, taken, reason


@given(
    pieces=st.lists(st.text("ab", max_size=3), min_size=1, max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
    ends_at=st.none() | st.integers(0, 12),
    limit=st.integers(1, 14),
    lag=st.booleans(),
    peeks=st.lists(st.booleans(), min_size=14, max_size=14),
)
@settings(max_examples=200)
def test_text_tokens_and_reason_equal_the_reference(pieces, stops, ends_at, limit, lag, peeks):
    running = sequence(pieces, limit=limit, lag=lag, stop=tuple(stops))
    streamed, tokens = "", ()
    for index in range(len(pieces)):
        running.accept(END if index == ends_at else index, None, float(index))
        if peeks[index]:
            text, new = running.fresh()
            streamed, tokens = streamed + text, tokens + new
            if not running.finished:
                # All is out but what may yet turn out to begin a stop string.
                held = running.text[len(streamed) :]
                assert running.text.startswith(streamed)
                assert not held or any(stop.startswith(held) for stop in stops)
    text, taken, reason = reference(pieces, ends_at, limit, stops, lag)
    assert (running.text, len(running.tokens), running.finish_reason) == (text, taken, reason)
    assert running.finished == (reason is not None)
    rest, new = running.fresh()
    if running.finished:
        assert streamed + rest == running.text == running.output().text
    assert list(tokens + new) == running.tokens
    assert running.fresh() == ("", ())


def test_a_stop_string_across_tokens_is_found_and_never_shown():
    running = sequence(["one ", "S", "TO", "P two"], stop="STOP")
    shown = []
    for token in range(4):
        running.accept(token, None, 0.0)
        shown.append(running.fresh()[0])
    assert shown == ["one ", "", "", ""]
    assert running.output().text == "one " and running.finish_reason == "stop"
    assert running.output().token_ids == (0, 1, 2, 3)


def test_held_back_text_is_handed_out_when_it_was_no_stop_string():
    running = sequence(["one ", "STO", "RE"], stop="STOP")
    shown = []
    for token in range(3):
        running.accept(token, None, 0.0)
        shown.append(running.fresh()[0])
    assert shown == ["one ", "", "STORE"]


def test_held_back_text_is_handed_out_at_the_limit():
    running = sequence(["one ", "STO"], stop="STOP", limit=2)
    running.accept(0, None, 0.0)
    running.accept(1, None, 0.0)
    assert running.fresh() == ("one STO", (0, 1))
    assert running.finish_reason == "length"


def test_an_end_token_is_counted_and_has_no_text():
    running = sequence(["a", "b"], lag=True)
    for token in (0, 1, END):
        assert not running.finished
        running.accept(token, None, 5.0)
    output = running.output()
    assert (output.text, output.token_ids, output.finish_reason) == ("ab", (0, 1, END), "stop")


def test_tokens_after_the_end_are_dropped():
    running = sequence(["a", "b"], logprobs=True)
    for token, logprob, now in ((0, -1.0, 11.0), (END, -2.0, 12.0), (1, -3.0, 13.0)):
        running.accept(token, logprob, now)
    output = running.output()
    assert output.token_ids == (0, END) and output.logprobs == (-1.0, -2.0)
    assert output.time_to_first_token_s == 1.0 and output.latency_s == 2.0
    assert output.index == 4 and output.prompt_token_ids == (1, 2, 3) and output.error is None


def test_log_probabilities_are_given_when_asked_for():
    running = sequence()
    running.accept(0, -1.0, 11.0)
    assert running.output().logprobs is None and running.output().text == ""


@pytest.mark.parametrize(("reason", "error"), [("abort", None), ("error", "a reason")])
def test_an_end_from_outside_keeps_what_is_there(reason, error):
    running = sequence(["one ", "STO"], stop="STOP")
    running.accept(0, None, 11.0)
    running.accept(1, None, 12.0)
    assert running.fresh() == ("one ", (0, 1))
    running.end(reason, 14.0, error)
    running.end("length", 15.0)  # it ended already
    running.accept(0, None, 16.0)
    output = running.output()
    assert (output.finish_reason, output.error, output.latency_s) == (reason, error, 4.0)
    assert output.token_ids == (0, 1) and output.text == "one STO"
    assert running.fresh() == ("STO", ())


def test_a_request_that_never_ran_has_no_times():
    output = sequence().output()
    assert output.time_to_first_token_s is None and output.latency_s is None
    assert output.finish_reason == "abort"


def test_positions_follow_what_was_dispatched():
    running = sequence(limit=3)
    assert running.prefilling and not running.decoding
    running.prefilled, running.dispatched = 3, 1  # the prompt holds positions 0, 1, 2
    assert not running.prefilling
    for dispatched, position in ((1, 3), (2, 4)):
        running.dispatched = dispatched
        assert running.decoding and running.next_position == position
    running.dispatched = 3
    assert not running.decoding
    running.dispatched = 2
    running.end("abort", 0.0)
    assert not running.decoding
