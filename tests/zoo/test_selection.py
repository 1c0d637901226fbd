"""Expressions over metadata: parsed, compared with pandas, and never executed."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zoo.reading.selection import select

TABLE = pd.DataFrame(
    {
        "optimizer": ["sgd", "adam", "adam", "rmsprop"],
        "test_accuracy": pd.array([0.1, 0.8, 0.5, 0.9], dtype="float32"),
        "epoch": pd.array([50, 75, 100, 75], dtype="int32"),
        "weight_decay": [0.0, 1e-4, 1e-4, -1.0],
    }
)


@pytest.mark.parametrize(
    "text",
    [
        "optimizer == 'adam'",
        "optimizer != 'adam' and epoch == 75",
        "test_accuracy >= 0.8",
        "not (test_accuracy < 0.5 or epoch == 100)",
        "0.2 < test_accuracy <= 0.8",
        "optimizer in ['sgd', 'rmsprop']",
        "epoch not in (50, 75)",
        "weight_decay == -1",
        "0.5 <= test_accuracy",
        "optimizer < 'b'",
        "  epoch == 75  ",
    ],
)
def test_expressions_mean_what_they_mean_in_pandas(text):
    assert list(select(TABLE, text)) == list(TABLE.eval(text.strip()))


def test_a_float32_column_equals_the_number_that_was_rounded_to_it():
    assert list(select(TABLE, "test_accuracy == 0.8")) == [False, True, False, False]


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true') == 0",
        "().__class__",
        "optimizer.str.len() == 3",
        "optimizer[0] == 's'",
        "@epoch == 3",
        "(lambda: 1)() == epoch",
        "[x for x in (1, 2)] == epoch",
        "epoch := 3",
        "epoch + 1 == 76",
        "epoch == 75 & test_accuracy > 0.5",
        "epoch is 75",
        "epoch",
        "True",
        "1 == 1",
        "epoch == True",
        "learning_rate == 3",
        "epoch == 'adam'",
        "optimizer == 3",
        "optimizer in [3]",
        "optimizer in 'adam'",
        "epoch ==",
        "",
        "epoch == 1\nepoch == 2",
        "(" * 300 + "epoch" + ")" * 300,
        "epoch == 1 and " * 5000 + "epoch == 1",
        "epoch == 1\0",
    ],
)
def test_everything_else_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"\w+"):
        select(TABLE, text)


@given(st.text(max_size=40) | st.text(alphabet="epoch=<>!and or not in()[],'\"0123456789.-", max_size=40))
def test_any_text_is_a_mask_or_a_value_error(text):
    try:
        mask = select(TABLE, text)
    except ValueError:
        return
    assert mask.shape == (4,)
    assert mask.dtype == bool


def test_masks_and_functions_must_give_one_bool_a_row():
    assert list(select(TABLE, [True, False, True, False])) == [True, False, True, False]
    assert list(select(TABLE, lambda table: table["epoch"] == 75)) == [False, True, False, True]
    for wrong in ([True], np.array([1, 0, 1, 0]), lambda table: table):
        with pytest.raises(ValueError, match="one bool a row"):
            select(TABLE, wrong)
