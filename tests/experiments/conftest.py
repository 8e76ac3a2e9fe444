"""A problem and its fits, which the tests of all experiments share."""

from __future__ import annotations

import pytest

from auxbit.experiments.study import Fits, Problem


@pytest.fixture(scope="session")
def problem(digits):
    return Problem("digits", digits[60:400], digits[:60])


@pytest.fixture(scope="session")
def fits(problem, tmp_path_factory):
    return Fits(problem, tmp_path_factory.mktemp("raw"))
