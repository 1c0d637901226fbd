"""Numbers typed into prose, checked against the rows they come from.

A paragraph or list item with numbers has a comment that claims each of them:

    Transformer-NFN has 0.845 on MNIST; the hyperparameters are ahead by 0.028.
    <!-- rows: 0.845 = kendall mnist transformer_nfn tau;
    0.028 = kendall mnist hyperparameters tau - kendall mnist transformer_nfn tau -->

What may stand to the right of the equals sign:

    defined                                          a number that was chosen, not measured
    BENCHMARK CONFIG NAME METRIC [KEY=VALUE ...]     a row, NAME being its model or variant. In the tables of τ: without
                                                     a threshold, by the paper's recipe, on all training rows, on its
                                                     own test split, unless a key says otherwise
    paper.BENCHMARK CONFIG NAME tau [KEY=VALUE ...]  what the paper prints
    generated CONFIG STATISTIC [where=EXPRESSION]    count, min, median or max of the full zoo's final test accuracies
    128                                              a number
    A + B, A - B, A * B, A / B                       of these, products first
    STATISTIC A                                      min, max, mean, sum or spread of A over all {choices|in|braces};
                                                     equal braces make equal choices

The value, rounded to the digits written, must be the number. Each occurrence of a decimal number must be claimed, an
integer may be. Code, tables, links, generated blocks and comments are not prose.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator

from benchmarks.documents.facts import Facts

CLAIMS = re.compile(r"<!-- rows:(.*?)-->", re.DOTALL)
NOT_PROSE = re.compile(
    r"^```.*?^```$|<!-- generated: .*?<!-- end: .*?-->|<!--.*?-->|^\|.*?$|`(?:(?!\n\n)[^`])+`|\]\([^)\n]*\)",
    re.DOTALL | re.MULTILINE,
)
PARAGRAPH_END = re.compile(r"\n(?=[ \t]*\n)|\n(?=[ \t]*(?:[-*]|\d+\.) )")
NUMBER = re.compile(r"(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)*(?:e-?\d+)?(?!\w)")


def problems(document: str, written: str, facts: Facts) -> list[str]:
    """One line for each number of the prose that is wrong, or that nothing vouches for."""
    prose = NOT_PROSE.sub(lambda match: re.sub(r"[^\n]", "\0", match[0]), written)
    edges = [0, *(match.end() for match in PARAGRAPH_END.finditer(prose)), len(prose)]
    noted: list[tuple[int, str]] = []
    for paragraph in itertools.pairwise(edges):
        unclaimed = Counter(match[0] for match in NUMBER.finditer(prose, *paragraph))
        for place, number, expression in claims(written, *paragraph):
            if unclaimed[number] == 0:
                noted.append((place, f"{number} is claimed more often than it stands in this paragraph"))
            elif problem := disagreement(number, expression, facts):
                noted.append((place, problem))
            unclaimed[number] -= 1
        for match in NUMBER.finditer(prose, *paragraph):
            if unclaimed[match[0]] > 0 and not match[0].replace(",", "").isdigit():
                noted.append((match.start(), f"{match[0]} is not claimed: say in <!-- rows: --> where it comes from"))
                unclaimed[match[0]] -= 1
    return [f"{document}, line {written.count(chr(10), 0, place) + 1}: {problem}" for place, problem in noted]


def claims(written: str, start: int, end: int) -> Iterator[tuple[int, str, str]]:
    """Place, number and expression of each claim between two places of a document."""
    for comment in CLAIMS.finditer(written, start, end):
        for claim in re.finditer(r"[^;\s][^;]*", comment[1]):
            number, _, expression = (" ".join(part.split()) for part in claim[0].partition("="))
            yield comment.start(1) + claim.start(), number, expression


def disagreement(number: str, expression: str, facts: Facts) -> str | None:
    """Why the expression does not give the number, in one line; None where it does."""
    if expression == "defined":
        return None
    if not expression:
        return f"{number} is claimed without a source: write NUMBER = EXPRESSION"
    try:
        value = facts.value(expression)
    except (ValueError, ZeroDivisionError) as error:
        return f"{number} = {expression}: {error}"
    digits = len(number.partition(".")[2])
    rounded = f"{value:.{digits}f}"
    return None if rounded == number.replace(",", "") else f"{number} is written, but {expression} is {value:.6g}"
