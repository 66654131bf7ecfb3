"""Errors in one line, whatever Spark, Java and Arrow put into them."""

from __future__ import annotations

import pytest

from opsq.spark.spark_errors import first_line, line_of


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\n[PARSE_SYNTAX_ERROR] Syntax error at 'BIGNIT'.\n== SQL ==", "Syntax error at 'BIGNIT'."),
        ("An error occurred while calling o1.collect.\n: java.lang.OutOfMemoryError", "java.lang.OutOfMemoryError"),
        ("Caused by:\nno room", "Caused by: no room"),
        (" ", "it said nothing."),
    ],
)
def test_page_of_java_is_its_first_line_that_says_something(text: str, line: str) -> None:
    assert first_line(text) == line


@pytest.mark.parametrize(
    ("error", "line"),
    [(ValueError("a\nb"), "a"), (ValueError("It ends."), "It ends"), (ValueError(), "ValueError")],
)
def test_error_of_arrow_is_its_first_line_or_its_class(error: Exception, line: str) -> None:
    assert line_of(error) == line
