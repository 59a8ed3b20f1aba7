"""The history in print: narrow, nothing cut, the decision of a stage in sight."""

import pytest

from pushforward.training.history import History

# The rows of two stages and a callback, as the engine writes them.
FIRST = [
    {"stage": "transport", "step": 9 * i, "loss": 45.0 + 1 / i, "skipped": 0}
    for i in range(1, 101)
]
SEEN = {"stage": "transport", "step": 500, "width": 0.987654321}
CHOICE = {
    "stage": "choose",
    "step": 1,
    "dft_chosen": 1.0,
    "ksd_dft": -0.00015557,
    "ksd_gain_error": 0.00059911,
    "ksd_kl": 3.98412e-05,
    "lost_weight_z": 1.74121,
    "skipped": 0,
    "seconds": 40.829,
}


@pytest.fixture
def history():
    return History([*FIRST[:56], SEEN, *FIRST[56:], CHOICE])


def test_it_fits_a_terminal_and_cuts_nothing(history):
    text = str(history)
    assert all(len(line) <= 88 for line in text.splitlines())
    assert "…" not in text
    words = text.split()
    for column in history.columns:
        assert column == "stage" or column in words
    # The decision, and what was watched: one row among many.
    for number in ("-0.00015557", "0.00059911", "3.9841e-05", "40.829", "0.98765"):
        assert number in words


def test_it_shows_both_ends_and_says_where_the_rest_is(history):
    text = str(history)
    blocks = text.split("\n\n")
    assert [b.splitlines()[0] for b in blocks[:-1]] == [
        "transport, 100 rows",
        "transport, 1 row",
        "choose, 1 row",
    ]
    steps = [line.split()[0] for line in blocks[0].splitlines()[2:]]
    assert steps == ["9", "18", "...", "882", "891", "900"]
    assert blocks[-1] == (
        "102 rows; all are in history.rows, a column is history['step']."
    )
    assert repr(history) == "<History of 102 rows (transport, choose); print it>"


def test_steps_are_those_of_all_stages(history):
    assert history.steps == 900 + 1
    assert History([]).steps == 0


def test_short_and_odd_ones():
    assert str(History([])) == "0 rows; all are in history.rows."
    assert str(History(FIRST[:6])).count("\n") == 9
    assert "made" in str(History([{"made": 1, "ksd": float("nan")}]))
    name = "a_name_as_long_as_a_line_" * 4
    assert name in str(History([{"step": 1, name: 2.0}]))
