"""Requests: sampling parameters are kept as they are or refused by name."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weavejax.request import SamplingParams

NAN, INF = float("nan"), float("inf")


@given(
    temperature=st.floats(0, 1e6),
    top_k=st.integers(0, 2**70),
    top_p=st.floats(0, 1, exclude_min=True),
    seed=st.none() | st.integers(0, 2**70),
    max_tokens=st.integers(1, 2**70),
    stop=st.lists(st.text(min_size=1), max_size=3),
    stop_token_ids=st.lists(st.integers(0, 9), max_size=3),
)
def test_what_is_in_range_is_kept_as_it_is(**values):
    params = SamplingParams(**values)
    for name, value in values.items():
        assert getattr(params, name) == (tuple(value) if isinstance(value, list) else value)
    assert params.greedy == (values["temperature"] == 0)
    assert hash(params) == hash(SamplingParams(**values))


def test_one_stop_string_is_a_tuple_of_one():
    assert SamplingParams(stop="ab").stop == ("ab",)
    assert SamplingParams().greedy and SamplingParams().stop == ()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be a whole number >= 1, got 0"),
        ({"max_tokens": 2.0}, "max_tokens must be a whole number >= 1, got 2.0"),
        ({"max_tokens": True}, "max_tokens must be a whole number >= 1, got True"),
        ({"max_tokens": None}, "max_tokens must be a whole number >= 1, got None"),
        ({"top_k": -1}, "top_k must be a whole number >= 0, got -1"),
        ({"top_k": NAN}, "top_k must be a whole number >= 0, got nan"),
        ({"seed": -3}, "seed must be a whole number >= 0, got -3"),
        ({"temperature": -0.1}, "temperature must be a finite number >= 0, got -0.1"),
        ({"temperature": NAN}, "temperature must be a finite number >= 0, got nan"),
        ({"temperature": INF}, "temperature must be a finite number >= 0, got inf"),
        ({"temperature": "hot"}, "temperature must be a finite number >= 0, got 'hot'"),
        ({"temperature": True}, "temperature must be a finite number >= 0, got True"),
        ({"top_p": -0.5}, "top_p must be a finite number between 0 and 1, got -0.5"),
        ({"top_p": 1.01}, "top_p must be a finite number between 0 and 1, got 1.01"),
        ({"top_p": NAN}, "top_p must be a finite number between 0 and 1, got nan"),
        ({"top_p": 0}, "top_p must be greater than 0 and at most 1, got 0"),
        ({"stop": ""}, "stop must hold non-empty strings, got ('',)"),
        ({"stop": ("a", "")}, "stop must hold non-empty strings, got ('a', '')"),
        ({"stop": [1]}, "stop must hold non-empty strings, got (1,)"),
        ({"stop": None}, "stop must be a sequence, got None"),
        ({"stop_token_ids": (-1,)}, "stop_token_ids must be a whole number >= 0, got -1"),
        ({"stop_token_ids": 7}, "stop_token_ids must be a sequence, got 7"),
    ],
)
def test_values_out_of_range_are_named(values, message):
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        SamplingParams(**values)


def test_a_whole_number_beyond_every_float_is_out_of_range():
    with pytest.raises(ValueError, match="^temperature must be a finite number >= 0, got 1000"):
        SamplingParams(temperature=10**400)
