"""Rows of text in columns."""

from tf_scalecom.base.text_table import text_table

HEADER = ("name", "kind", "n")
ROWS = [("a", "long kind", "1"), ("bcdef", "b", "1,000")]


def test_columns_are_aligned():
    assert text_table(HEADER, ROWS).splitlines() == [
        "name        kind      n",
        "a      long kind      1",
        "bcdef          b  1,000",
    ]


def test_a_total_stands_between_rules():
    assert text_table(HEADER, ROWS, ("total", "", "1,001"), left=2).splitlines() == [
        "name   kind           n",
        "-----------------------",
        "a      long kind      1",
        "bcdef  b          1,000",
        "-----------------------",
        "total             1,001",
    ]
