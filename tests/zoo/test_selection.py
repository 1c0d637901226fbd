"""Expressions over metadata: parsed, compared with pandas, never executed; all spellings of one are one selection."""

import ast
import hashlib
import operator
from itertools import combinations, product

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zoo.reading.selection import Selection, select

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
    assert list(select(TABLE, text)) == np.asarray(TABLE.eval(text.strip())).tolist()
    assert list(select(TABLE, Selection.parse(text))) == np.asarray(TABLE.eval(text.strip())).tolist()


def test_a_float32_column_equals_the_number_that_was_rounded_to_it():
    assert list(select(TABLE, "test_accuracy == 0.8")) == [False, True, False, False]


SYNTAX_ERRORS = [
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
    "0 < 1 < epoch",
    "epoch == True",
    "optimizer in 'adam'",
    "epoch ==",
    "",
    "epoch == 1\nepoch == 2",
    "(" * 300 + "epoch" + ")" * 300,
    "epoch == 1 and " * 5000 + "epoch == 1",
    "epoch == 1\0",
    f"test_accuracy < 0x{'f' * 300}",
]


@pytest.mark.parametrize(
    "text",
    [
        *SYNTAX_ERRORS,
        "learning_rate == 3",
        "epoch == 'adam'",
        "optimizer == 3",
        "optimizer in [3]",
        "epoch < optimizer",
    ],
)
def test_everything_else_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"\w+"):
        select(TABLE, text)


def test_membership_rounds_a_constant_to_the_column_as_equality_does():
    assert select(TABLE, "test_accuracy in [0.8, 0.9]").tolist() == [False, True, False, True]
    assert select(TABLE, "test_accuracy not in [0.8, 0.9]").tolist() == [True, False, True, False]


@pytest.mark.parametrize("text", SYNTAX_ERRORS)
def test_a_syntax_error_is_found_without_a_table(text):
    with pytest.raises(ValueError, match=r"\w+"):
        Selection.parse(text)


def test_errors_name_the_position_and_what_there_is():
    with pytest.raises(
        ValueError, match=r"cannot read the expression 'epoch \+ 1 == 76': 'epoch \+ 1' is not one of columns"
    ):
        Selection.parse("epoch + 1 == 76")
    with pytest.raises(ValueError, match=r"cannot read the expression 'epoch ==': invalid syntax"):
        Selection.parse("epoch ==")
    with pytest.raises(ValueError, match="no column 'rate': there are optimizer, test_accuracy, epoch, weight_decay"):
        Selection.parse("rate > 3").mask(TABLE)
    with pytest.raises(ValueError, match=r"optimizer is text and 3\.0 is a number: compare text with text"):
        Selection.parse("3 == optimizer").mask(TABLE)


@pytest.mark.long
@given(st.text(max_size=40) | st.text(alphabet="epoch=<>!and or not in()[],'\"0123456789.-", max_size=40))
def test_any_text_is_a_mask_or_a_value_error(text):
    try:
        mask = select(TABLE, text)
    except ValueError:
        return
    assert mask.shape == (4,)
    assert mask.dtype == bool


def test_masks_and_functions_must_give_one_bool_per_row():
    assert list(select(TABLE, [True, False, True, False])) == [True, False, True, False]
    assert list(select(TABLE, lambda table: table["epoch"] == 75)) == [False, True, False, True]
    for wrong in ([True], np.array([1, 0, 1, 0]), lambda table: table):
        with pytest.raises(ValueError, match="one bool per row"):
            select(TABLE, wrong)


@pytest.mark.parametrize(
    "expression", ["train_fraction >= 0.8", "test_accuracy >= 0.8", "train_fraction == 1.0", "optimizer == 'adam'"]
)
def test_the_expressions_of_committed_rows_are_canonical_and_keep_their_file_names(expression):
    selection = Selection.parse(expression)
    assert selection.expression == expression
    assert selection.file_suffix == hashlib.sha256(expression.encode()).hexdigest()[:8]


@pytest.mark.parametrize(
    ("canonical", "spellings"),
    [
        (
            "train_fraction >= 0.8",
            ["train_fraction>=0.80", " ((train_fraction  >= 8e-1)) ", "0.8 <= train_fraction", ".8 <= train_fraction"],
        ),
        ("train_fraction == 1.0", ["train_fraction == 1", "1e0 == train_fraction", "train_fraction == 0x1"]),
        ("weight_decay != -1.0", ["-1 != weight_decay", "weight_decay != -1.00"]),
        ("weight_decay == 0.0", ["weight_decay == 0", "weight_decay == -0.0", "-0 == weight_decay"]),
        ("optimizer == 'adam'", ['optimizer == "adam"', "'adam' == optimizer", "optimizer == 'ad' 'am'"]),
        ("optimizer < 'b'", ["'b' > optimizer", 'u"b" > optimizer']),
        ("epoch < weight_decay", ["weight_decay > epoch"]),
        (
            "test_accuracy < 0.8 and test_accuracy > 0.2",
            ["0.2 < test_accuracy < 0.8", "test_accuracy > 0.2 and test_accuracy < 0.8", "0.8 > test_accuracy > 0.2"],
        ),
        (
            "epoch == 75.0 and optimizer == 'adam'",
            [
                "optimizer == 'adam' and epoch == 75",
                "epoch == 75 and (optimizer == 'adam' and epoch == 75.0)",
                "(epoch == 75 or 75 == epoch) and optimizer == 'adam'",
            ],
        ),
        ("epoch == 75.0", ["epoch == 75 or epoch == 75", "not not epoch == 75"]),
        (
            "epoch == 50.0 or (epoch == 75.0 and optimizer == 'adam')",
            ["epoch == 75 and optimizer == 'adam' or epoch == 50"],
        ),
        ("epoch in [50.0, 75.0]", ["epoch in (75, 50, 75.0)", "epoch in {50, 75}", "not epoch not in [50, 75]"]),
        (
            "optimizer not in ['adam', 'sgd']",
            ["optimizer not in ['sgd', 'adam', 'sgd']", "not optimizer in ('sgd', 'adam')"],
        ),
        ("not (epoch == 75.0 or optimizer == 'adam')", ["not (optimizer == 'adam' or epoch == 75)"]),
    ],
)
def test_spellings_of_one_expression_are_one_selection(canonical, spellings):
    selection = Selection.parse(canonical)
    assert selection.expression == canonical
    for text in spellings:
        assert Selection.parse(text) == selection
        assert hash(Selection.parse(text)) == hash(selection)
        assert Selection.parse(text).file_suffix == selection.file_suffix


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("epoch < 75", "epoch <= 75"),
        ("epoch < 75", "75 < epoch"),
        ("epoch == 1 and epoch == 2", "epoch == 1 or epoch == 2"),
        ("optimizer == '1'", "optimizer == 1"),
        ("optimizer == 'a b'", "optimizer == 'a  b'"),
        ("epoch in [1]", "epoch not in [1]"),
        ("epoch == 9007199254740993", "epoch == 9007199254740993.0"),
        ("epoch in [1, 9007199254740993]", "epoch in [1.0, 9007199254740993]"),
    ],
)
def test_different_expressions_stay_different(first, second):
    assert Selection.parse(first) != Selection.parse(second)


EVERY_KIND = pd.DataFrame(
    {
        "text": ["sgd", "adam", "", "it's", 'a "b"', "adam", "\\", "ü"],
        "single": pd.array([0.1, 0.8, 0.5, 16777216, -0.0, float("nan"), float("inf"), 1], dtype="float32"),
        "double": [0.0, 0.8, 1e-4, -1.0, 9007199254740992.0, float("nan"), float("-inf"), 75.0],
        "small": pd.array([50, 75, 100, 75, 0, -1, 1, 16777217], dtype="int32"),
        "large": pd.array([0, 1, 75, 2**53, 2**53 + 1, -(2**53) - 1, 2**62, 2**53 - 1], dtype="int64"),
    }
)
NUMBERS = [
    *("0", "-0", "0.0", "1", "1.0", "1e0", "75", "75.0", "7.5e1", "0x4b", "-1", "-1.0", "100", "1_00"),
    *("0.8", "0.80", "8e-1", ".5", "1e-4", "1e999", "-1e999", "16777217", "16777217.0"),
    *("9007199254740991", "9007199254740992", "9007199254740992.0", "9007199254740993", "9007199254740993.0"),
    *("-9007199254740993", "4611686018427387904", "18446744073709551616"),
]
TEXTS = ["'adam'", '"adam"', "''", "'sgd'", '"it\'s"', "'a \"b\"'", "'\\\\'", "'ü'", "'\\xfc'", "'none'"]
SIGNS = ["==", "!=", "<", "<=", ">", ">="]
CONSTANTS_OF = {"text": TEXTS} | dict.fromkeys(("single", "double", "small", "large"), NUMBERS)


@st.composite
def comparisons(draw):
    """A comparison or membership of one kind, possibly chained, spaced at random."""
    columns, constants = draw(st.sampled_from([(["text"], TEXTS), (["single", "double", "small", "large"], NUMBERS)]))
    column, constant = st.sampled_from(columns), st.sampled_from(constants)
    space = draw(st.sampled_from(["", " ", "  "]))
    if draw(st.booleans()):
        items = f",{space}".join([*draw(st.lists(constant, min_size=1, max_size=4)), ""])
        return f"{draw(column)} {draw(st.sampled_from(['in', 'not in']))} ({items})"
    sides = [draw(column | constant)]
    for _ in range(draw(st.integers(1, 3))):
        # two constants may not stand side by side
        sides.append(draw(column if not sides[-1].isidentifier() else column | constant))
    first, *rest = sides
    return first + "".join(f"{space}{draw(st.sampled_from(SIGNS))}{space}{side}" for side in rest)


EXPRESSIONS = st.recursive(
    comparisons(),
    lambda parts: st.one_of(
        st.builds("({})".format, parts),
        st.builds("not ({})".format, parts),
        st.builds("{} and {}".format, parts, parts),
        st.builds("{} or {}".format, parts, parts),
        parts.map(lambda part: f"({part}) and ({part})"),
    ),
    max_leaves=8,
)
SIGN_OF = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def evaluate_plainly(table: pd.DataFrame, node: ast.expr) -> np.ndarray:
    """The slow twin: the tree as it is written, without any canonical form."""
    if isinstance(node, ast.BoolOp):
        join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        return join.reduce([evaluate_plainly(table, value) for value in node.values])
    if isinstance(node, ast.UnaryOp):
        return ~evaluate_plainly(table, node.operand)
    assert isinstance(node, ast.Compare)
    masks = []
    sides = [node.left, *node.comparators]
    for left, sign, right in zip(sides, node.ops, sides[1:], strict=False):
        a, b = (table[side.id] if isinstance(side, ast.Name) else ast.literal_eval(side) for side in (left, right))
        if isinstance(sign, ast.In | ast.NotIn):
            members = np.logical_or.reduce([np.asarray(a == value, dtype=bool) for value in b])
            masks.append(members if isinstance(sign, ast.In) else ~members)
        else:
            masks.append(np.asarray(SIGN_OF[type(sign)](a, b), dtype=bool))
    return np.logical_and.reduce(masks)


def assert_same_rows(text: str) -> None:
    selection = Selection.parse(text)
    expected = list(evaluate_plainly(EVERY_KIND, ast.parse(text, mode="eval").body))
    assert list(selection.mask(EVERY_KIND)) == expected, selection.expression
    again = Selection.parse(selection.expression)
    assert again == selection, "the canonical form of a canonical form is itself"
    assert list(again.mask(EVERY_KIND)) == expected


@pytest.mark.long
@pytest.mark.parametrize("column", CONSTANTS_OF)
def test_the_canonical_form_of_every_comparison_chooses_the_same_rows(column):
    for constant, sign in product(CONSTANTS_OF[column], SIGNS):
        assert_same_rows(f"{column} {sign} {constant}")
        assert_same_rows(f"{constant} {sign} {column}")
    for first, second in combinations(CONSTANTS_OF[column], 2):
        assert_same_rows(f"{column} in [{first}, {second}]")


@pytest.mark.long
@settings(max_examples=200)
@given(EXPRESSIONS)
def test_the_canonical_form_of_any_expression_chooses_the_same_rows(text):
    assert_same_rows(text)


@pytest.mark.parametrize("digits", [39, 300, 309, 400, 5000])
@pytest.mark.parametrize(
    ("form", "chosen"),
    [
        ("{} < {}", True),
        ("{} == {}", False),
        ("{} in [{}, 7.5]", False),
        ("{} not in ({},)", True),
        ("{} < -{}", False),
    ],
)
def test_numbers_of_hundreds_of_digits_are_compared_or_refused(form, chosen, digits):
    """Without an overflow, and without a warning of one."""
    frame = pd.DataFrame({"a": np.array([0.5, 1], "f4"), "b": np.array([0.5, 1]), "c": [1, 2]})
    for column in frame.columns:
        text = form.format(column, "1" + "0" * (digits - 1))
        if digits > 309:
            with pytest.raises(ValueError, match=r"too large|cannot read the expression"):
                select(frame, text)
        else:
            assert select(frame, text).tolist() == [chosen, chosen]
