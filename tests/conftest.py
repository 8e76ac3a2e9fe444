"""Fixtures that several test files use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# no deadline: on a busy machine the time of a single example says nothing
# the same examples every time, so that a run can be repeated; HYPOTHESIS=explore looks for new ones
settings.register_profile("auxbit", deadline=None, max_examples=50, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS", "auxbit"))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data: AUXBIT_DATA, or ../shared/data from the repository's root."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("AUXBIT_DATA") or default)
    if not folder.is_dir():
        pytest.skip(f"no real data: AUXBIT_DATA is not set to a folder, and {default} is not there")
    return folder
