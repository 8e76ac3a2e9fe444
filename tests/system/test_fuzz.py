"""Changed inputs of every reader: only errors of ours come out, within limits of time, memory and files.

`make fuzz` tries many more; what it finds becomes a file in tests/corpus.
"""

from __future__ import annotations

import itertools
import warnings

import pytest

from helpers.fuzz_readers import CORPUS, READERS, inputs, try_input, watched

SLOW = {"collection": 40, "body": 100, "settings": 200}  # inputs, of those that open collections
MANY = 400


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy's, of headers by Python 2
        yield


def test_every_reader_has_inputs_that_are_kept():
    assert {path.name for path in CORPUS.iterdir() if path.name != "formats"} == READERS.keys()


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_of_changed_inputs_raises_nothing_but_errors_of_ours(reader):
    with watched() as folder:
        for content in itertools.islice(inputs(reader, 0), SLOW.get(reader, MANY)):
            try_input(reader, folder, content)
