"""Hash functions as ONNX models, of which onnxruntime makes the bytes of `encode`."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxbit import (
    ITQ,
    LSH,
    AnchorGraphHashing,
    BinaryAutoencoder,
    BinaryFactorAnalysis,
    SpectralHashing,
    SphericalHashing,
    ThresholdedPCA,
    __version__,
)
from auxbit.core.features import _smallest
from auxbit.core.maps import LinearEncoder, Scaling
from auxbit.errors import FileExists, FileProblem, InvalidInput, MissingExtra
from auxbit.export import to_onnx
from auxbit.export.onnx import Graph, _like_cosine, _nearest, onnx_bytes
from helpers.every_hasher import DEGENERATE, every_hasher
from helpers.export_models import QUICK, digits_rows, doubtful, fitted, on_hyperplanes


def session(content):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def onnx_codes(model, X):
    (codes,) = session(onnx_bytes(model)).run(["codes"], {"X": np.asarray(X, dtype=np.float32)})
    return codes


@every_hasher
@pytest.mark.parametrize("n_bits", [13, 16])
def test_the_onnx_model_of_every_hasher_gives_the_bytes_of_encode(hasher, n_bits):
    model = fitted(hasher, n_bits)
    codes = onnx_codes(model, digits_rows())
    assert codes.dtype == np.uint8
    assert np.array_equal(codes, model.encode(digits_rows()))


@pytest.mark.parametrize("hasher", [BinaryAutoencoder, BinaryFactorAnalysis])
@pytest.mark.parametrize("normalize", [False, True])
def test_the_onnx_model_has_the_features_of_the_hasher(hasher, normalize):
    model = fitted(hasher, encoder="rbf", normalize=normalize)
    assert np.array_equal(onnx_codes(model, digits_rows()), model.encode(digits_rows()))


def test_the_features_of_a_users_own_map_have_no_onnx_form():
    with pytest.raises(InvalidInput, match="OwnEncoder is not an encoder of auxbit"):
        onnx_bytes(fitted(BinaryAutoencoder, encoder=np.square))


@pytest.mark.parametrize("hasher", [BinaryAutoencoder, BinaryFactorAnalysis])
def test_the_onnx_model_normalises_rows_where_the_hasher_does(hasher):
    model = fitted(hasher, normalize=True)
    rows = np.vstack([digits_rows(), 1e-20 * digits_rows()[:9], 1e20 * digits_rows()[:9], np.zeros((1, 64))])
    assert np.array_equal(onnx_codes(model, rows), model.encode(rows.astype(np.float32)))


@pytest.mark.parametrize("n_bits", [7, 12])
def test_the_onnx_model_of_an_anchor_graph_has_two_layers_where_the_hasher_does(n_bits):
    model = fitted(AnchorGraphHashing, n_bits, n_layers=2, n_anchors=40)
    assert np.array_equal(onnx_codes(model, digits_rows()), model.encode(digits_rows()))


def test_an_anchor_graph_whose_rows_have_a_share_in_all_anchors_can_be_exported():
    model = fitted(AnchorGraphHashing, 3, n_anchors=8, n_neighbors=8)
    assert np.array_equal(onnx_codes(model, digits_rows()), model.encode(digits_rows()))


@every_hasher
def test_the_onnx_model_agrees_with_encode_where_rows_have_little_in_them(hasher):
    X = np.random.default_rng(0).normal(size=(200, 8))
    compared = 0
    for make in DEGENERATE.values():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                model = hasher(5, random_state=0, n_jobs=1, **QUICK.get(hasher, {})).fit(make(X))
            except InvalidInput:
                continue  # too few rows for so many bits
        mean = model.scaling_.mean[None]
        rows = np.vstack([make(X)[:300], mean, make(X)[:1] / 2 + mean / 2, np.zeros((1, 8))])
        rows = rows.astype(np.float32)
        assert np.array_equal(onnx_codes(model, rows), model.encode(rows))
        compared += 1
    assert compared > len(DEGENERATE) // 2


@pytest.mark.parametrize("n_dims", [3, 7, 64])
@pytest.mark.parametrize("mean", [0.0, 5.0, 1000.0])
@pytest.mark.parametrize("normalize", [False, True])
def test_scores_too_near_0_for_float32_get_the_bits_of_encode(n_dims, mean, normalize):
    X = (np.random.default_rng(0).normal(size=(300, n_dims)) + mean).astype(np.float32)
    model = ThresholdedPCA(3, random_state=0, n_jobs=1).fit(X)
    if normalize:  # rows are then not on hyperplanes, which a norm moves, but some are near
        unit = X / np.linalg.norm(X, axis=1, keepdims=True)
        scale = float(np.ptp(unit, axis=0).max())
        model.scaling_ = Scaling(unit.mean(axis=0).astype(np.float64), scale, normalize=True)
    rows = on_hyperplanes(model, X.astype(np.float64)) if not normalize else X
    assert normalize or doubtful(model, rows).sum() > 100
    assert np.array_equal(onnx_codes(model, rows), model.encode(rows))


@pytest.mark.parametrize("normalize", [False, True])
@given(st.integers(2, 21), st.integers(0, 2**32 - 1))
def test_scores_that_are_0_but_for_the_order_of_a_sum_get_the_bits_of_encode(normalize, n_dims, seed):
    rng = np.random.default_rng(seed)
    weights = np.zeros((n_dims + 9, 9))  # those past n_dims have a part in norms only
    weights[:n_dims] = rng.choice([0.1, 0.3, 0.7, 1 / 3], (n_dims, 9))
    weights[n_dims - 1] = -weights[: n_dims - 1].sum(axis=0)
    model = LSH(9, random_state=0, n_jobs=1).fit(rng.normal(size=(20, n_dims + 9)))
    model.encoder_ = LinearEncoder(weights.astype(np.float32), np.zeros(9, dtype=np.float32))
    model.scaling_ = Scaling(np.full(n_dims + 9, 1 / 3), 0.7, normalize)
    rows = rng.normal(size=(30, n_dims + 9)).astype(np.float32)
    rows[:, :n_dims] = rng.integers(1, 20, (30, 1)) / 7
    assert doubtful(model, rows).any(axis=1).all()
    assert np.array_equal(onnx_codes(model, rows), model.encode(rows))


@given(st.integers(0, 2**32 - 1), st.sampled_from([0.0, 3e-6, 1e-5, 1e-3]))
def test_the_nearest_anchors_are_those_of_the_kernel_where_distances_are_nearly_equal(seed, spread):
    rng = np.random.default_rng(seed)
    m, s = int(rng.integers(1, 13)), 3
    s = min(s, m)
    distances = rng.integers(1, 4, (20, m)) * (1 + spread * rng.normal(size=(20, m)))
    near, ids = np.empty((20, s)), np.empty((20, s), dtype=np.int64)
    _smallest(distances, near, ids)
    graph = Graph()
    for name, value in zip(("near", "ids"), _nearest(graph, "distances", m, s)):
        graph.add("Identity", value, name=name)
    model = graph.model(
        [graph.declared("distances", "DOUBLE", ["n", m])],
        [graph.declared("near", "DOUBLE", ["n", s]), graph.declared("ids", "INT64", ["n", s])],
    )
    found_near, found_ids = session(model.SerializeToString()).run(None, {"distances": distances})
    assert np.array_equal(np.sort(found_ids, axis=1), np.sort(ids, axis=1))
    assert np.array_equal(np.take_along_axis(distances, found_ids, axis=1), found_near)


def test_eigenfunctions_have_the_sign_of_the_cosine_next_to_its_zeros():
    zeros = np.arange(-9999, 10000, 2) * np.pi / 2
    angles = np.concatenate([zeros, np.nextafter(zeros, 9e9), np.nextafter(zeros, -9e9), zeros + 1, [0.0]])
    graph = Graph()
    graph.add("Identity", _like_cosine(graph, "angle"), name="score")
    model = graph.model(
        [graph.declared("angle", "DOUBLE", ["n"])], [graph.declared("score", "DOUBLE", ["n"])]
    )
    (score,) = session(model.SerializeToString()).run(None, {"angle": angles})
    assert np.array_equal(score >= 0, np.cos(angles) >= 0)


def test_codes_of_siftsmall_are_the_same_by_onnx(real_data):
    X = np.load(real_data / "siftsmall" / "base.npy")[:4000]
    for hasher in (ITQ, AnchorGraphHashing, SphericalHashing, SpectralHashing):
        model = hasher(32, random_state=0, n_jobs=1).fit(X[:1000])
        assert np.array_equal(onnx_codes(model, X), model.encode(X))


def test_the_onnx_model_takes_any_number_of_rows_and_says_what_it_is(tmp_path):
    to_onnx(fitted(ITQ), tmp_path / "h.onnx")
    model = onnx.load(tmp_path / "h.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert (model.producer_name, model.producer_version) == ("auxbit", __version__)
    assert {entry.key: entry.value for entry in model.metadata_props} == {"method": "ITQ", "n_bits": "13"}
    assert model.ir_version <= 8  # onnxruntime 1.18 reads up to 10
    assert [opset.version for opset in model.opset_import] == [17]
    loaded = session((tmp_path / "h.onnx").read_bytes())
    for n in (0, 1, 2, 1000):
        assert loaded.run(None, {"X": digits_rows()[:n]})[0].shape == (n, 2)
    assert [(each.name, each.shape, each.type) for each in loaded.get_inputs()] == [
        ("X", ["n", 64], "tensor(float)")
    ]


def test_a_row_with_nan_gets_some_code_and_changes_no_other():
    rows = digits_rows()[:20].copy()
    rows[7, 3], rows[9, 5] = np.nan, np.inf
    others = np.delete(np.arange(20), [7, 9])
    for model in (fitted(ITQ), fitted(SphericalHashing)):
        assert np.array_equal(onnx_codes(model, rows)[others], model.encode(digits_rows()[:20])[others])


def test_the_exported_bits_are_those_that_were_fitted():
    model = ITQ(5, random_state=0, n_jobs=1).fit(digits_rows()[:200]).set_params(n_bits=40)
    assert np.array_equal(onnx_codes(model, digits_rows()), model.encode(digits_rows()))


def test_an_onnx_file_that_exists_is_refused_and_stays(tmp_path):
    path = tmp_path / "h.onnx"
    path.write_bytes(b"old")
    with pytest.raises(FileExists, match="exists"):
        to_onnx(fitted(ITQ), path, overwrite=False)
    assert path.read_bytes() == b"old"
    to_onnx(fitted(ITQ), path)
    assert path.stat().st_size > 1000
    with pytest.raises(FileProblem, match="is a folder"):
        to_onnx(fitted(ITQ), tmp_path)


def test_what_cannot_be_an_onnx_model_is_refused(tmp_path, monkeypatch):
    class Strange:
        pass

    with pytest.raises(InvalidInput, match="not fitted"):
        to_onnx(ITQ(), tmp_path / "h.onnx")
    model = ITQ(5, random_state=0, n_jobs=1).fit(digits_rows()[:200])
    model.encoder_ = Strange()
    with pytest.raises(InvalidInput, match="Strange is not an encoder of auxbit"):
        to_onnx(model, tmp_path / "h.onnx")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtra, match=r"pip install 'auxbit\[onnx\]'"):
        to_onnx(fitted(ITQ), tmp_path / "h.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_model_for_inner_products_is_refused_with_the_remedy():
    with pytest.raises(InvalidInput, match=r"rows and queries alike.*evaluate\.lift_rows"):
        onnx_bytes(fitted(ITQ, lift=True))
