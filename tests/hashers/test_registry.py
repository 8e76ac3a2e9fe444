"""Model files: what is saved comes back the same, and what is not whole or not ours is refused."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from sklearn.base import clone

import auxbit
from auxbit import (
    ITQ,
    LSH,
    AnchorGraphHashing,
    BinaryAutoencoder,
    BinaryFactorAnalysis,
    KernelizedLSH,
    SpectralHashing,
    SphericalHashing,
    ThresholdedPCA,
)
from auxbit.core import files
from auxbit.errors import FileExists, FileProblem, InvalidInput, ModelFileError
from auxbit.hashers import base
from auxbit.hashers.registry import ESTIMATORS, read_header

X = np.random.default_rng(0).normal(size=(150, 7)) * 3 + 100

MODELS = {
    "LSH": LSH(5, random_state=0),
    "ThresholdedPCA": ThresholdedPCA(5),
    "ITQ": ITQ(5, n_iter=9, random_state=np.int64(3)),
    "SpectralHashing": SpectralHashing(5),
    "KernelizedLSH": KernelizedLSH(5, n_anchors=40, random_state=0),
    "AnchorGraphHashing": AnchorGraphHashing(5, n_layers=2, n_anchors=40, random_state=0),
    "SphericalHashing": SphericalHashing(5, random_state=0),
    "BinaryAutoencoder": BinaryAutoencoder(
        5, mu_factor=2.0, normalize=True, z_options={"theorem_4_3": False}, random_state=0
    ),
    "BinaryFactorAnalysis": BinaryFactorAnalysis(5, random_state=0, max_iter=4),
}
every_model = pytest.mark.parametrize("name", MODELS)


def test_every_method_of_the_table_is_saved_and_loaded_here():
    assert set(MODELS) == set(ESTIMATORS)


@pytest.fixture(scope="module")
def fitted():
    """One fitted model of each class."""
    return {name: clone(model).fit(X) for name, model in MODELS.items()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, fitted):
    """The bytes of a model file, and the model."""
    path = tmp_path_factory.mktemp("whole") / "m.safetensors"
    fitted["BinaryAutoencoder"].save(path)
    return path.read_bytes()


def assert_same_model(loaded, model):
    assert type(loaded) is type(model)
    assert loaded.get_params() == model.get_params()
    assert np.array_equal(loaded.transform(X), model.transform(X))
    codes = model.encode(X)
    assert np.array_equal(loaded.encode(X), codes)
    assert np.array_equal(loaded.decode(codes), model.decode(codes))
    assert loaded.score(X) == model.score(X)
    assert loaded.n_features_in_ == model.n_features_in_
    assert getattr(loaded, "history_", None) == getattr(model, "history_", None)
    assert getattr(loaded, "n_iter_", None) == getattr(model, "n_iter_", None)


# ---- there and back


@every_model
def test_a_loaded_model_is_the_one_that_was_saved(name, fitted, tmp_path):
    fitted[name].save(tmp_path / "m.safetensors")
    loaded = auxbit.load(str(tmp_path / "m.safetensors"))
    assert_same_model(loaded, fitted[name])
    loaded.save(tmp_path / "again.safetensors")
    assert_same_model(auxbit.load(tmp_path / "again.safetensors"), fitted[name])
    refitted = clone(loaded).fit(X)
    assert np.array_equal(refitted.encode(X), fitted[name].encode(X))


@every_model
def test_any_safetensors_reader_can_read_the_header_and_the_tensors(name, fitted, tmp_path):
    model = fitted[name]
    model.save(tmp_path / "m.safetensors")
    with safe_open(tmp_path / "m.safetensors", framework="numpy") as file:
        metadata = file.metadata()
        for key, tensor in model.encoder_.tensors().items():
            assert np.array_equal(file.get_tensor(f"encoder.{key}"), np.atleast_1d(tensor))
        assert np.array_equal(file.get_tensor("decoder.A"), model.decoder_.A)
    assert metadata["format"] == "auxbit model"
    assert metadata["format_version"] == "1"
    assert metadata["auxbit_version"] == auxbit.__version__
    header = json.loads(metadata["model"])
    assert header["class"] == name
    assert header["parameters"]["n_bits"] == 5


def test_read_header_tells_the_class_the_parameters_and_the_versions(fitted, tmp_path):
    fitted["ITQ"].save(tmp_path / "m.safetensors")
    header = read_header(tmp_path / "m.safetensors")
    assert (header["class"], header["format_version"]) == ("ITQ", 1)
    assert header["auxbit_version"] == auxbit.__version__
    assert header["parameters"] == {
        "n_bits": 5, "n_iter": 9, "n_init": 1, "normalize": False, "lift": False, "random_state": 3,
        "n_jobs": None,
    }  # fmt: skip
    assert header["n_features_in"] == 7


def test_nothing_in_the_package_imports_a_pickler():
    for module in Path(auxbit.__file__).parent.rglob("*.py"):
        assert not re.search(
            r"^\s*(import|from) (pickle|joblib|dill|marshal|shelve)\b", module.read_text(), re.M
        )


# ---- parameters that JSON cannot hold


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("init", ITQ(5)),
        ("init", np.random.default_rng(0).integers(0, 2, (150, 5))),
        ("callback", print),
        ("callback", lambda record: None),
        ("random_state", np.random.RandomState(0)),
        ("validation", X[:20]),
        ("z_options", {"admm_tol": np.float32(0.5)}),
        ("mu_schedule", np.array([0.1, 0.5])),
        ("mu_schedule", (0.1, 0.5)),
        ("n_bits", np.int16(5)),
        ("n_jobs", np.int64(1)),
    ],
)
def test_any_parameter_can_be_saved_and_the_loaded_model_used_and_fitted_again(
    parameter, value, tmp_path, capsys
):
    model = BinaryAutoencoder(5, max_iter=3).set_params(**{parameter: value}).fit(X)
    model.save(tmp_path / "m.safetensors")
    loaded = auxbit.load(tmp_path / "m.safetensors")
    assert np.array_equal(loaded.encode(X), model.encode(X))
    assert loaded.history_ == model.history_
    assert clone(loaded).fit(X).encode(X).shape == (150, 1)


def test_small_arrays_and_numpy_numbers_are_saved_as_numbers_and_the_rest_is_named(tmp_path, capsys):
    model = BinaryAutoencoder(
        np.int16(5), init=ITQ(5), mu_schedule=np.array([0.1, 0.5]), callback=print, random_state=0
    ).fit(X)
    model.save(tmp_path / "m.safetensors")
    header = read_header(tmp_path / "m.safetensors")
    assert header["left_out"] == {"init": "ITQ", "callback": "builtin_function_or_method"}
    loaded = auxbit.load(tmp_path / "m.safetensors")
    assert (loaded.n_bits, loaded.mu_schedule) == (5, [0.1, 0.5])
    assert (loaded.init, loaded.callback) == (None, None)


# ---- files that are not whole, or not ours


def check_refused_or_unchanged(content, path, model):
    """Damaged content raises ModelFileError; if it hit nothing but padding, the model is the same."""
    path.write_bytes(content)
    try:
        loaded = auxbit.load(path)
    except ModelFileError:
        return False
    assert_same_model(loaded, model)
    return True


@settings(max_examples=150)
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_file_cut_short_anywhere_is_refused(share, whole, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "cut.safetensors"
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ModelFileError, match="is not an auxbit model, or was cut short"):
        auxbit.load(path)
    with pytest.raises(ModelFileError, match="is not an auxbit model, or was cut short"):
        read_header(path)


@pytest.mark.parametrize("missing", [1, 2, 7, 8, 9, 100])
def test_a_file_without_its_last_bytes_is_refused(missing, whole, tmp_path):
    (tmp_path / "m.safetensors").write_bytes(whole[:-missing])
    with pytest.raises(ModelFileError, match="cut short"):
        auxbit.load(tmp_path / "m.safetensors")


def test_a_file_with_bytes_after_its_end_is_refused(whole, tmp_path):
    (tmp_path / "m.safetensors").write_bytes(whole + b"\0")
    with pytest.raises(ModelFileError, match="is not an auxbit model"):
        auxbit.load(tmp_path / "m.safetensors")


def test_no_byte_of_the_tensors_can_change_unnoticed(whole, tmp_path):
    start = 8 + int.from_bytes(whole[:8], "little")
    path = tmp_path / "m.safetensors"
    for position in range(start, len(whole)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(ModelFileError, match="is damaged: its checksum does not match"):
            auxbit.load(path)


@settings(max_examples=400)
@given(share=st.floats(0, 1, exclude_max=True), mask=st.integers(1, 255))
def test_a_changed_byte_is_refused_wherever_it_matters(share, mask, whole, fitted, tmp_path_factory):
    position = int(share * len(whole))
    content = bytearray(whole)
    content[position] ^= mask
    path = tmp_path_factory.getbasetemp() / "flipped.safetensors"
    header_end = 8 + int.from_bytes(whole[:8], "little")
    unchanged = check_refused_or_unchanged(bytes(content), path, fitted["BinaryAutoencoder"])
    assert not unchanged or position < header_end


@settings(max_examples=100)
@given(content=st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(content, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "arbitrary.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match="is not an auxbit model"):
        auxbit.load(path)


def test_a_number_changed_in_the_header_is_noticed(whole, tmp_path):
    assert whole.count(b'\\"n_bits\\": 5') == 1
    (tmp_path / "m.safetensors").write_bytes(whole.replace(b'\\"n_bits\\": 5', b'\\"n_bits\\": 4'))
    with pytest.raises(ModelFileError, match="checksum does not match"):
        auxbit.load(tmp_path / "m.safetensors")


def test_a_tensor_read_as_another_type_is_noticed(whole, tmp_path):
    (tmp_path / "m.safetensors").write_bytes(whole.replace(b'"F32"', b'"I32"'))
    with pytest.raises(ModelFileError, match="checksum does not match"):
        auxbit.load(tmp_path / "m.safetensors")


@pytest.mark.parametrize("version", ["6", "9", "x"])
def test_a_file_of_a_newer_format_says_to_upgrade(version, whole, tmp_path):
    assert whole.count(b'"format_version":"1"') == 1
    newer = whole.replace(b'"format_version":"1"', f'"format_version":"{version}"'.encode())
    (tmp_path / "m.safetensors").write_bytes(newer)
    expected = (
        rf"has format {version}, made by auxbit {re.escape(auxbit.__version__)}; .*pip install -U auxbit"
    )
    with pytest.raises(ModelFileError, match=expected):
        auxbit.load(tmp_path / "m.safetensors")


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_a_safetensors_file_of_somebody_else_is_not_ours(metadata, tmp_path):
    save_file({"encoder.weights": np.ones(3)}, tmp_path / "m.safetensors", metadata)
    with pytest.raises(ModelFileError, match="is a safetensors file, but not an auxbit model"):
        auxbit.load(tmp_path / "m.safetensors")


@pytest.mark.parametrize(
    "content", [b"", b"\0", b"not a model, but a text that is long enough to be one\n" * 9]
)
def test_an_empty_file_and_a_text_are_no_models(content, tmp_path):
    (tmp_path / "m.safetensors").write_bytes(content)
    with pytest.raises(ModelFileError, match=r"m\.safetensors is not an auxbit model"):
        auxbit.load(tmp_path / "m.safetensors")


def test_a_missing_file_and_a_folder_are_no_models(tmp_path):
    with pytest.raises(ModelFileError, match="does not exist or is not a file"):
        auxbit.load(tmp_path / "none.safetensors")
    with pytest.raises(ModelFileError, match="is a folder; expected an auxbit model"):
        auxbit.load(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.pop("parameters"),
        lambda header: header.pop("scaling"),
        lambda header: header.update({"class": "Pipeline"}),
        lambda header: header.update({"encoder": "DeepEncoder"}),
        lambda header: header["parameters"].update(depth=3),
        lambda header: header.update(attributes={"depth": 3}),
        lambda header: header.update(attributes=[1]),
    ],
)
def test_a_header_of_the_right_form_with_the_wrong_content_is_refused(change, fitted, tmp_path, monkeypatch):
    dumps = json.dumps

    def changed(value, **options):
        if isinstance(value, dict) and "class" in value:
            change(value)
        return dumps(value, **options)

    monkeypatch.setattr(base.json, "dumps", changed)
    fitted["BinaryAutoencoder"].save(tmp_path / "m.safetensors")
    monkeypatch.undo()
    with pytest.raises(ModelFileError, match="is not a complete auxbit model"):
        auxbit.load(tmp_path / "m.safetensors")


OTHER_TENSORS = {
    "longer": lambda tensor: np.concatenate([tensor, tensor[-1:]]),
    "shorter": lambda tensor: tensor[:-1],
    "wider": lambda tensor: np.concatenate([tensor, tensor[..., -1:]], axis=-1),
    "narrower": lambda tensor: tensor[..., :-1],
    "turned": lambda tensor: tensor.T,
    "with another axis": lambda tensor: tensor[None],
    "with one axis less": lambda tensor: tensor[0],
    "empty": lambda tensor: tensor[:0],
    "of 4,000,000": lambda tensor: np.zeros(4_000_000, tensor.dtype),
    "of float16": lambda tensor: tensor.astype(np.float16),
    "of the other float": lambda tensor: tensor.astype({"f4": "f8"}.get(tensor.dtype.str[1:], "f4")),
    "of int32": lambda tensor: tensor.astype(np.int32),
    "with NaN": lambda tensor: np.where(np.arange(tensor.size).reshape(tensor.shape) == 0, np.nan, tensor),
}


@pytest.mark.parametrize("decoder", ["linear", "tables"])
@every_model
def test_a_tensor_of_another_shape_or_type_is_refused_whatever_its_checksum(name, decoder, fitted, tmp_path):
    model = copy.deepcopy(fitted[name])
    if decoder == "tables":
        model.fit_decoder(X, "tables", n_iter=1)
    path, refused = tmp_path / "m", 0
    named = r"encoder\.\w+ (is|has)|decoder\.\w+ (is|has)|scaling\.mean (is|has)|training|n_bits=4000000"
    model.save(path)
    header, tensors = base.MODEL_FILE.read(path)
    for key, tensor in tensors.items():
        for how, change in OTHER_TENSORS.items():
            other = np.atleast_1d(change(tensor))
            same = (other.shape, other.dtype) == (tensor.shape, tensor.dtype) and np.isfinite(other).all()
            if same or (key == "training.codes" and how in ("shorter", "longer")):
                continue  # a record may be of any number of rows
            base.MODEL_FILE.write(path, header, tensors | {key: other})
            with pytest.raises(ModelFileError, match=f"m is not a complete auxbit model: .*({named})"):
                auxbit.load(path)
            refused += 1
        base.MODEL_FILE.write(path, header, {each: tensors[each] for each in tensors.keys() - {key}})
        with pytest.raises(ModelFileError, match="m is not a complete auxbit model: "):
            auxbit.load(path)
    assert refused > 6 * len(tensors)
    base.MODEL_FILE.write(path, header, tensors)
    assert np.array_equal(*(each.encode(X, coding="hash") for each in (auxbit.load(path), model)))


@pytest.mark.parametrize("name", ["SpectralHashing", "AnchorGraphHashing", "KernelizedLSH"])
@pytest.mark.parametrize("value", [-1, 0, 41])
def test_a_number_of_an_encoder_that_would_be_out_of_bounds_is_refused(name, value, fitted, tmp_path):
    fitted[name].save(tmp_path / "m")
    header, tensors = base.MODEL_FILE.read(tmp_path / "m")
    key = {"SpectralHashing": "axis", "AnchorGraphHashing": "n_neighbors", "KernelizedLSH": "bandwidth"}[name]
    tensor = tensors[f"encoder.{key}"]
    base.MODEL_FILE.write(tmp_path / "m", header, tensors | {f"encoder.{key}": np.full_like(tensor, value)})
    if (key, value) in (("axis", 0), ("bandwidth", 41)):
        auxbit.load(tmp_path / "m").encode(X)
        return
    with pytest.raises(
        ModelFileError, match=rf"encoder\.{key} has values of {value}.* to {value}.*, expected"
    ):
        auxbit.load(tmp_path / "m")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"n_features_in": 8}, r"scaling\.mean is \(7\) of float64, expected \(D=8\) of float64"),
        ({"n_features_in": "many"}, "n_features_in='many' is invalid"),
        ({"scaling": {"scale": 0.0, "normalize": False}}, "scale=0.0 is invalid"),
        ({"scaling": {"scale": "1", "normalize": False}}, "scale='1' is invalid"),
    ],
)
def test_numbers_in_the_header_must_fit_the_tensors(change, why, fitted, tmp_path):
    fitted["ITQ"].save(tmp_path / "m")
    header, tensors = base.MODEL_FILE.read(tmp_path / "m")
    base.MODEL_FILE.write(tmp_path / "m", header | change, tensors)
    with pytest.raises(ModelFileError, match=why):
        auxbit.load(tmp_path / "m")


def test_a_loaded_model_has_the_bits_that_it_was_fitted_with(fitted, tmp_path):
    copy.deepcopy(fitted["ITQ"]).set_params(n_bits=6).save(tmp_path / "m")
    assert auxbit.load(tmp_path / "m").n_bits == 5


# ---- saving


@every_model
def test_a_model_that_is_not_fitted_is_not_saved(name, tmp_path):
    with pytest.raises(InvalidInput, match=f"this {name} is not fitted: call fit before save"):
        clone(MODELS[name]).save(tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_class_that_load_does_not_know_is_not_saved(tmp_path):
    class Mine(LSH):
        pass

    with pytest.raises(InvalidInput, match="Mine is not a class of auxbit"):
        Mine(5).fit(X).save(tmp_path / "m.safetensors")


def test_a_file_that_exists_is_replaced_only_if_it_may_be(fitted, tmp_path):
    path = tmp_path / "m.safetensors"
    fitted["LSH"].save(path)
    before = path.read_bytes()
    with pytest.raises(FileExists, match=r"m\.safetensors exists"):
        fitted["ITQ"].save(path, overwrite=False)
    assert path.read_bytes() == before
    fitted["ITQ"].save(path)
    assert isinstance(auxbit.load(path), ITQ)
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.safetensors"]


@pytest.mark.parametrize("failing", ["_sync", "os.replace", "save_file"])
def test_where_writing_fails_the_old_file_stays_whole(failing, fitted, tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors"
    fitted["LSH"].save(path)

    def half_written(tensors, path, metadata):
        path.write_bytes(b"half of it")
        raise SafetensorError("no space left on device")

    def full(*arguments, **options):
        raise OSError("no space left on device")

    target = {"_sync": files, "os.replace": files.os, "save_file": files}[failing]
    name = failing.rpartition(".")[2]
    monkeypatch.setattr(target, name, half_written if name == "save_file" else full)
    with pytest.raises(OSError, match="no space left"):
        fitted["ITQ"].save(path)
    monkeypatch.undo()
    assert_same_model(auxbit.load(path), fitted["LSH"])
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.safetensors"]


def test_a_folder_is_no_name_for_a_model(fitted, tmp_path):
    with pytest.raises(FileProblem, match="is a folder; expected the name of a file"):
        fitted["LSH"].save(tmp_path)
