"""The demo: a table of four methods, and pictures of what they retrieve."""

from __future__ import annotations

import json

import numpy as np
import pytest

from auxbit.data.vectors import embedded_digits
from auxbit.errors import FileExists, FileProblem
from auxbit.experiments import demo
from auxbit.experiments.measure import prepare


def test_files_that_are_there_are_refused_before_anything_is_trained(tmp_path):
    (tmp_path / "precision.png").write_bytes(b"precious")
    with pytest.raises(FileExists, match=r"precision\.png exists"):
        demo.run_demo(tmp_path, progress=lambda step: pytest.fail("it started to work"))
    with pytest.raises(FileProblem, match="is a file"):
        demo.run_demo(tmp_path / "precision.png")
    assert [path.name for path in tmp_path.iterdir()] == ["precision.png"]


def test_the_result_is_what_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "SEEDS", (0,))
    monkeypatch.setattr(demo, "METHODS", ("tpca", "ba"))
    steps = []
    result = demo.run_demo(tmp_path, n_jobs=1, progress=steps.append)
    assert steps == ["true neighbours", "training tPCA", "training BA", "drawing"]
    assert [row["method"] for row in result["rows"]] == ["tPCA", "BA"]
    assert result["rows"][1]["precision_10"] > 0
    assert json.loads((tmp_path / "results.json").read_text()) == json.loads(json.dumps(result))
    assert np.load(tmp_path / "codes.npy").shape == (1497, 2)


def test_pictures_are_ink_on_white_and_other_digits_are_wrong():
    X, labels = embedded_digits()
    task = prepare(X[300:], X[:300], K=50, k=50, radius=2, n_jobs=1)
    panels = demo.digit_panels({}, task, labels[300:], labels[:300])
    assert [panel["caption"] for panel in panels] == [f"query: {digit}" for digit in (2, 3, 5, 7, 8, 9)]
    for panel in panels:
        ((name, pictures, wrong),) = panel["rows"]
        assert name == "exact"
        assert pictures.shape == (8, 8, 8)
        assert pictures.dtype == np.uint8
        assert panel["query"].max() == 255
        assert wrong.shape == (8,)
