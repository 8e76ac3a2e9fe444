"""Rows of numbers as text, against Python's own reading of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auxbit.data.datasets import read_number_rows
from auxbit.errors import DataFileError

numbers = st.one_of(
    st.floats(-(2.0**120), 2.0**120, width=32).map(repr),
    st.floats(-10, 10).map(lambda value: f"{value:.7f}"),
    st.integers(-(10**9), 10**9).map(str),
    st.sampled_from(
        ["0", "-0.0", "+1", ".5", "5.", "1e-45", "1E+30", "3.40282e38", "1e-400", "0.000000001234"]
    ),
    st.from_regex(r"\A[+-]?[0-9]{1,25}(\.[0-9]{0,25})?(e-?[0-9]{1,2})?\Z").filter(
        lambda s: abs(float(s)) < 3e38
    ),
)


@settings(max_examples=100)
@given(width=st.integers(1, 4), drawn=st.data(), gap=st.sampled_from([" ", "  ", "\t", " \t "]))
def test_numbers_are_read_as_python_reads_them(tmp_path_factory, width, drawn, gap):
    rows = drawn.draw(st.lists(st.lists(numbers, min_size=width, max_size=width), min_size=1, max_size=6))
    end = drawn.draw(st.sampled_from(["\n", " \n", "\r\n"]))
    path = tmp_path_factory.getbasetemp() / "numbers.dat"
    path.write_text(
        end.join(gap.join(row) for row in rows) + drawn.draw(st.sampled_from(["", end, end + "\n \n"])),
        newline="",
    )
    expected = np.array([[float(value) for value in row] for row in rows]).astype(np.float32)
    np.testing.assert_array_max_ulp(read_number_rows([path]), expected, maxulp=1)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("1 2", "line 4: expected 3 numbers as before, found 2"),
        ("1 2 3 4", "line 4: expected 3 numbers as before, found 4"),
        ("1 x 3", "line 4: value 2 is 'x', not a finite float32"),
        ("1 2 nan", "line 4: value 3 is 'nan', not a finite float32"),
        ("1 2 1e", "line 4: value 3 is '1e', not a finite float32"),
        ("1,2 3 4", "line 4: value 1 is '1,2', not a finite float32"),
        ("1 2-3 4", "line 4: value 2 is '2-3', not a finite float32"),
        ("- 2 3", "line 4: value 1 is '-', not a finite float32"),
        ("1 2 . ", "line 4: value 3 is '.', not a finite float32"),
        ("1 1.2.3 2", "line 4: value 2 is '1.2.3', not a finite float32"),
        ("1 2 1e39", "line 4: value 3 is '1e39', not a finite float32"),
        ("1 2 1e999999999999", "line 4: value 3 is '1e999999999999', not a finite float32"),
        ("1 2 #3", "line 4: value 3 is '#3', not a finite float32"),
        ("1 2 1_0", "cannot be read as text: .*1_0"),
    ],
)
def test_a_bad_line_is_named_by_its_number(tmp_path, line, complaint):
    path = tmp_path / "a.dat"
    path.write_text("1 2 3\n" * 3 + line + "\n4 5 6\n")
    with pytest.raises(DataFileError, match=rf"a\.dat,? {complaint}"):
        read_number_rows([path])


def test_text_files_of_different_lengths_empty_ones_and_binaries_are_refused(tmp_path):
    for name, content in (
        ("a", b"1 2\n3 4\n"),
        ("b", b"1\n"),
        ("empty", b""),
        ("blank", b"\n\n"),
        ("zip", b"PK\0\1"),
    ):
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataFileError, match=r"b has 1 rows, but .*a has 2"):
        read_number_rows([tmp_path / "a", tmp_path / "b"])
    for name in ("empty", "blank"):
        with pytest.raises(DataFileError, match="has no numbers in it"):
            read_number_rows([tmp_path / name])
    with pytest.raises(DataFileError, match="line 1: value 1 is"):
        read_number_rows([tmp_path / "zip"])
    with pytest.raises(DataFileError, match="cannot be read"):
        read_number_rows([tmp_path / "none"])


def test_integers_beyond_int64_are_read(tmp_path):
    (tmp_path / "a.dat").write_text("9230000000000000000 99999999999999999999 -9999999999999999999.5\n")
    np.testing.assert_array_max_ulp(
        read_number_rows([tmp_path / "a.dat"]), np.array([[9.23e18, 1e20, -1e19]], dtype=np.float32), maxulp=1
    )
