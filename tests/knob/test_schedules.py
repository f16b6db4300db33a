import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attemper import schedules
from attemper.errors import ArgumentError

numbers = st.floats(0, 1e6)
progress = st.floats(0, 1)


@given(numbers, numbers, progress)
def test_linear_and_cosine_stay_between_their_ends(start, end, at):
    for kind in (schedules.linear, schedules.cosine):
        schedule = kind(start, end)
        assert schedule(0.0) == pytest.approx(start)
        assert schedule(1.0) == pytest.approx(end)
        assert min(start, end) - 1e-6 <= schedule(at) <= max(start, end) + 1e-6


def test_values_by_hand():
    assert schedules.constant(3.0)(0.7) == 3.0
    assert schedules.linear(100.0, 1.0)(0.25) == 75.25
    assert schedules.cosine(2.0, 0.0)(0.5) == pytest.approx(1.0)
    assert schedules.cosine(2.0, 0.0)(1 / 3) == pytest.approx(1.5)


def test_steps_fall_at_their_milestones():
    schedule = schedules.step([1.0, 0.1, 0.01], [0.5, 0.75])
    assert [schedule(p) for p in (0.0, 0.499, 0.5, 0.749, 0.75, 1.0)] == [1.0, 1.0, 0.1, 0.1, 0.01, 0.01]
    assert schedules.step([4.0], [])(0.5) == 4.0


def test_one_cycle_rises_and_falls():
    schedule = schedules.one_cycle(2.0, warmup=0.25, start=0.1, end=0.01)
    assert schedule(0.0) == pytest.approx(0.2)
    assert schedule(0.25) == pytest.approx(2.0)
    assert schedule(1.0) == pytest.approx(0.02)
    rising = [schedule(p / 100) for p in range(26)]
    falling = [schedule(p / 100) for p in range(25, 101)]
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)


@pytest.mark.parametrize("number", [-1, math.nan, math.inf, "1", True])
def test_numbers_refused(number):
    for name, make in {
        "value": lambda: schedules.constant(number),
        "start": lambda: schedules.linear(number, 1.0),
        "end": lambda: schedules.cosine(1.0, number),
        r"values\[1\]": lambda: schedules.step([1.0, number], [0.5]),
        "peak": lambda: schedules.one_cycle(number),
    }.items():
        with pytest.raises(ArgumentError, match=f"^{name}: a finite number from 0 is accepted"):
            make()


def test_shapes_refused():
    with pytest.raises(ArgumentError, match="^values: one more than the 2 milestones"):
        schedules.step([1.0, 2.0], [0.5, 0.75])
    for milestones in ([0.75, 0.5], [0.5, 0.5], [0.0, 0.5], [0.5, 1.0]):
        with pytest.raises(ArgumentError, match=r"^milestones: numbers that rise within \(0, 1\)"):
            schedules.step([1.0, 2.0, 3.0], milestones)
    with pytest.raises(ArgumentError, match="^warmup"):
        schedules.one_cycle(1.0, warmup=1.0)
    for schedule in (schedules.linear(1.0, 2.0), schedules.step([1.0, 2.0], [0.5]), schedules.one_cycle(1.0)):
        for outside in (-0.1, 1.1, math.nan):
            with pytest.raises(ArgumentError, match=r"^progress: a number within \[0, 1\] is accepted"):
                schedule(outside)
