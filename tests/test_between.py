"""Between which assumptions a number lies."""

import math

from hypothesis import given
from hypothesis import strategies as st

from weavejax.reproduce.between import BEYOND, SAME, between
from weavejax.reproduce.merits import MIB, STAGES, countings

numbers = st.floats(0.1, 100)


@given(goal=numbers, ours=st.lists(numbers | st.none(), min_size=1, max_size=6))
def test_the_nearest_on_both_sides_are_named(goal: float, ours: list[float | None]) -> None:
    rows = [{"switch": str(place), "gain": value} for place, value in enumerate(ours)]
    (found,) = between({"gain": goal, "note": "text", "missing": None}, rows).records
    known = [value for value in ours if value is not None]
    below, above = found["nearest below"], found["nearest above"]
    assert below == max((v for v in known if v <= goal), default=None)
    assert above == min((v for v in known if v >= goal), default=None)
    for side in ("below", "above"):
        value, switch = found[f"nearest {side}"], found[f"switch {side}"]
        assert (value is None) == (switch is None)
        assert value is None or ours[int(switch)] == value
    near = any(math.isclose(v, goal, rel_tol=0, abs_tol=SAME * goal) for v in known)
    outside = below is None or above is None
    assert found["verdict"] == ("reached" if near else BEYOND if outside else "between")


def test_a_second_counting_is_a_row_of_its_own() -> None:
    row = {"switch": "TP 1", "gain": 1.5, "a MiB/token": 1, "a MiB/token, a copy a device": 2}
    first, stages, copies = countings([row], "switch")
    assert first is row and stages == {"switch": "TP 1, blocks as fractions"}
    assert copies == {"switch": "TP 1, a copy a device", "a MiB/token": 2}
    assert [len(counted) for counted in (STAGES, MIB)] == [2, 2]
    found = between({"a MiB/token": 1.5}, [row, copies])
    assert found.column("verdict") == ["between"]
    assert found.column("switch above") == ["TP 1, a copy a device"]
