"""Every hasher has scikit-learn's habits: pipelines, clones, names of features, parameters."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from auxbit.errors import InvalidInput
from helpers import hasher_models
from helpers.every_hasher import every_hasher
from helpers.hasher_models import made

digits = hasher_models.digits


@every_hasher
def test_a_hasher_works_in_a_pipeline(hasher, digits):
    pipeline = make_pipeline(StandardScaler(), made(hasher)).fit(digits)
    scaled = pipeline[0].transform(digits)
    assert np.array_equal(pipeline.transform(digits), pipeline[1].transform(scaled))
    assert np.array_equal(pipeline.fit_transform(digits), pipeline.transform(digits))
    assert pipeline.inverse_transform(pipeline.transform(digits)).shape == digits.shape


@every_hasher
def test_a_clone_has_the_parameters_but_not_the_model(hasher, digits):
    model = made(hasher).fit(digits)
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert not hasattr(copy, "encoder_")
    assert np.array_equal(copy.fit(digits).encode(digits), model.encode(digits))


@every_hasher
def test_output_features_have_names_and_the_default_output_is_an_array(hasher, digits):
    model = made(hasher, 3).set_output(transform="default").fit(digits)
    assert isinstance(model.transform(digits), np.ndarray)
    prefix = hasher.__name__.lower()
    assert model.get_feature_names_out().tolist() == [f"{prefix}{bit}" for bit in range(3)]


@every_hasher
def test_a_parameter_set_after_fit_waits_for_the_next_fit(hasher, digits):
    model = made(hasher, 6).fit(digits)
    bits, codes = model.transform(digits), model.encode(digits)
    model.set_params(n_bits=3)
    assert np.array_equal(model.transform(digits), bits)
    assert np.array_equal(model.encode(digits), codes)
    assert len(model.get_feature_names_out()) == 6
    assert np.array_equal(model.decode(codes), model.inverse_transform(bits))
    assert model.fit(digits).transform(digits).shape == (600, 3)


@every_hasher
def test_inverse_transform_and_decode_refuse_what_are_not_codes(hasher, digits):
    model = made(hasher, 6).fit(digits)
    with pytest.raises(InvalidInput, match="Z has 7 columns; expected 6, one per bit"):
        model.inverse_transform(np.zeros((3, 7), dtype=np.uint8))
    with pytest.raises(InvalidInput, match="only 0 and 1"):
        model.inverse_transform(np.full((3, 6), 2))
    with pytest.raises(InvalidInput, match="expects a 2-D array"):
        model.inverse_transform(np.zeros(6))
    with pytest.raises(InvalidInput, match=r"packed codes of 6 bits: a \(n, 1\) array of uint8"):
        model.decode(np.zeros((3, 6), dtype=np.uint8))
    with pytest.raises(InvalidInput, match="bits set beyond the first 6"):
        model.decode(np.full((3, 1), 255, dtype=np.uint8))
