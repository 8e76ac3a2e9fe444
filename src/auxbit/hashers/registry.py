"""The methods, in one table: a new hashing method is one file and one line in METHODS.

The table gives a method's name on the command line, its label and look in figures, its class and the class of
its encoder. Classes are imported on first use: the table can be read without NumPy, numba or scikit-learn.
Model files are read here as well. They are safetensors with a JSON header: nothing in them is executed, and
they can name only classes of the table.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from auxbit.core.progress import Silent
from auxbit.errors import InvalidInput, InvalidParameter, ModelFileError

if TYPE_CHECKING:
    from auxbit.core.checks import PathLike
    from auxbit.core.decoders import Decoder
    from auxbit.core.files import Tensors
    from auxbit.core.maps import Scaling
    from auxbit.core.progress import Progress
    from auxbit.hashers.base import Hasher


@dataclass(frozen=True)
class Style:
    """How a method looks, the same in every figure."""

    colour: str
    marker: str
    line: str = "-"


@dataclass(frozen=True)
class Method:
    """A method as tables, figures, the command line and model files know it.

    label : in tables and figures; home : "module:Class" of the estimator below auxbit.hashers, "" for one of
    experiments/quantisers.py; encoder : "module:Class" of its encoder below auxbit; seeded : whether it is
    random; options : parameters of the estimator that make it this method, which `note` explains to users;
    made : a class that was registered.
    """

    label: str
    style: Style
    home: str = ""
    encoder: str = "core.maps:LinearEncoder"
    seeded: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    made: Any = None

    @property
    def estimator(self) -> str:
        """The name of the class, "" for one of experiments/quantisers.py."""
        return self.home.partition(":")[2]

    def load_class(self) -> Any:
        """The estimator's class."""
        return _imported(f"hashers.{self.home}")

    def check_bits(self, n_bits: object) -> int:
        """Return `n_bits` as an int, or say how many bits the method can make."""
        from auxbit.core.maps import check_n_bits

        bits: int = self.load_class().check_bits(n_bits) if self.home else check_n_bits(n_bits)
        return bits


# Okabe and Ito's colours, and three more that stay apart from them under common colour blindness;
# methods that do not search by Hamming distance are dashed.
METHODS = {
    "ba": Method("BA", Style("#d55e00", "o"), "autoencoder:BinaryAutoencoder"),
    "ba-asymmetric": Method(
        "BA-asymmetric", Style("#f08a4b", "x", "--"), note="its codes by the decoder"
    ),
    "ba-linear": Method(
        "BA-linear", Style("#7a5230", ".", "--"), note="codes that are best for a linear decoder"
    ),
    "ba-optimal": Method(
        "BA-optimal", Style("#a33c00", "$\\bigstar$", "--"), note="codes that are best for the decoder"
    ),
    "ba-agh": Method(
        "BA-AGH", Style("#f0027f", "H"), "autoencoder:BinaryAutoencoder",
        options={"init": "agh"}, note="started from agh"
    ),
    "ba-itq": Method(
        "BA-ITQ", Style("#7b4fd6", "8"), "autoencoder:BinaryAutoencoder",
        options={"init": "itq"}, note="started from itq, whatever the preset"
    ),
    # random only where bits are more than the dimensions
    "bfa": Method("BFA", Style("#e69f00", "s"), "autoencoder:BinaryFactorAnalysis", seeded=False),
    "itq": Method("ITQ", Style("#0072b2", "D"), "linear:ITQ"),
    "agh": Method(
        "AGH", Style("#882255", "P"), "anchor_graph:AnchorGraphHashing",
        "hashers.anchor_graph:AnchorGraphEncoder",
    ),
    "agh2": Method(
        "AGH2", Style("#aa4499", "d"), "anchor_graph:AnchorGraphHashing",
        "hashers.anchor_graph:AnchorGraphEncoder",
        options={"n_layers": 2}, note="two layers"
    ),
    "sph": Method(
        "SPH", Style("#999933", "X"), "spherical:SphericalHashing", "hashers.spherical:SphericalEncoder"
    ),
    "sh": Method(
        "SH", Style("#009e73", "<"), "spectral:SpectralHashing", "hashers.spectral:SpectralEncoder",
        seeded=False,
    ),
    "klsh": Method("KLSH", Style("#cc79a7", ">"), "klsh:KernelizedLSH", "hashers.klsh:KernelEncoder"),
    "tpca": Method("tPCA", Style("#56b4e9", "^"), "linear:ThresholdedPCA", seeded=False),
    "lsh": Method("LSH", Style("#8c8c8c", "v"), "linear:LSH"),
    "sign": Method(
        "sign", Style("#666666", "|", ":"), note="one bit per dimension", seeded=False
    ),
    "pq": Method("PQ", Style("#000000", "*", "--"), note="of FAISS"),
    "opq": Method("OPQ", Style("#555555", "p", "--"), note="of FAISS, slow"),
    "rq": Method("RQ", Style("#117733", "1", "--"), note="of FAISS"),
    "lsq": Method("LSQ", Style("#44aa99", "2", "--"), note="of FAISS, slow"),
    "plsq": Method("PLSQ", Style("#6699cc", "3", "--"), note="of FAISS"),
    "rabitq": Method("RaBitQ", Style("#b8860b", "4", "--"), note="of FAISS"),
    "pca-rabitq": Method(
        "PCA-RaBitQ", Style("#cc6677", "_", "--"), seeded=False, note="of FAISS"
    ),
    "pca-rabitq2": Method(
        "PCA-RaBitQ2", Style("#994455", "$2$", "--"), seeded=False, note="of FAISS, two bits on half the axes"
    ),
    "itq-rabitq": Method("ITQ-RaBitQ", Style("#4477aa", "+", "--"), note="RaBitQ of FAISS"),
}  # fmt: skip
HASHER_NAMES = tuple(name for name, method in METHODS.items() if method.home)
# what `compare` shows by default; those last that may take minutes
COMPARED_METHODS = (
    "ba", "ba-asymmetric", "ba-linear", "ba-optimal", "sign", "itq", "pq", "rabitq", "pca-rabitq", "rq",
    "lsq",
)  # fmt: skip
ESTIMATORS = {method.estimator: method for method in reversed(METHODS.values()) if method.home}
ENCODERS = {method.encoder.partition(":")[2]: method.encoder for method in ESTIMATORS.values()}
ENCODERS["RbfEncoder"] = "core.features:RbfEncoder"  # of BA and BFA, by their parameter `encoder`


def _imported(home: str) -> Any:
    """The class at "module:Class" below auxbit."""
    module, _, name = home.partition(":")
    return getattr(importlib.import_module(f"auxbit.{module}"), name)


def register(name: str, cls: Any) -> None:
    """Name a hashing method of your own, so that `compare` can run it; valid until the process ends.

    >>> import auxbit
    >>> class Signs:
    ...     def __init__(self, n_bits): self.n_bits = n_bits
    ...     def fit(self, X): return self
    ...     def transform(self, X): return (X[:, : self.n_bits] > 0).astype("uint8")
    >>> auxbit.register("signs", Signs)  # now compare(..., ["signs", "ba"], ...)

    cls : a class, or a function, that makes an estimator from n_bits (and random_state, if it takes one). It
    needs `fit(X)`, and either `encode(X)`, which returns packed codes, or `transform(X)`, which returns 0/1.
    """
    if not isinstance(name, str) or not name or name != name.lower() or set(name) & set(", :"):
        raise InvalidParameter("name", name, "a word in lower case, without commas, colons or spaces")
    if name in METHODS and METHODS[name].made is None:
        raise InvalidParameter("name", name, "a name that none of auxbit's methods has")
    if not callable(cls):
        raise InvalidParameter("cls", type(cls).__name__, "a class, or a function that makes an estimator")
    METHODS[name] = Method(name, Style("#332288", "h"), made=cls)


def find_method(name: str, among: Iterable[str] | None = None) -> Method:
    """The method of that name, in either case."""
    allowed = list(METHODS if among is None else among)
    if name.lower() not in allowed:
        near = difflib.get_close_matches(name.lower(), allowed, n=1)
        remedy = f"Did you mean {near[0]}?" if near else ""
        raise InvalidParameter("method", name, f"one of {', '.join(allowed)}", remedy)
    return METHODS[name.lower()]


def parameters_of(name: str) -> dict[str, Any]:
    """The parameters that a hasher takes, with their defaults."""
    parameters = inspect.signature(_class_of(name)).parameters
    return {key: parameter.default for key, parameter in parameters.items()}


def keeps_checkpoints(name: str) -> bool:
    """Whether the fit of a method keeps its state, so that it can be resumed."""
    return "checkpoint" in inspect.signature(_class_of(name).fit).parameters


def make_hasher(name: str, n_bits: int, **parameters: Any) -> Hasher:
    """An estimator that is not fitted yet."""
    made: Hasher = _class_of(name)(n_bits=n_bits, **find_method(name).options | parameters)
    return made


def fit_reporting(
    model: Hasher, X: Any, progress: Progress | None = None, *, stage: str = "training", **how: Any
) -> Hasher:
    """Fit a model whose number of bits is valid, and report its iterations as a stage; returns the model.

    how : what `fit` takes beside X. InvalidInput if these rows cannot have that many bits.
    """
    told = progress or Silent()
    parameters = model.get_params(deep=False)
    reports = "callback" in parameters

    def report(record: Any) -> None:
        precision = "" if record.precision is None else f"  precision {record.precision:.3f}"
        n_passes = getattr(model, "n_passes_", None)
        passes = "" if n_passes is None else f"  passes {n_passes}"
        told.advance(1)
        figures = f"iteration {record.iteration}  μ {record.mu:.3g}  E_BA {record.E_BA:.4g}"
        told.say(figures + precision + passes)

    told.stage(stage, None)  # a fit ends by itself, long before max_iter
    if reports:
        model.set_params(callback=report)
    try:
        return model.fit(X, **how)
    except InvalidParameter as error:
        if error.parameter == "n_bits":
            raise InvalidInput(str(error)) from error
        raise
    finally:
        if reports:
            model.set_params(callback=None)  # it shows the progress, and is no part of the model


def label_of(model: object) -> str:
    """The method of a model, as tables name it."""
    name = type(model).__name__
    return ESTIMATORS[name].label if name in ESTIMATORS else name


def _class_of(name: str) -> Any:
    return find_method(name, HASHER_NAMES).load_class()


# ---- Model files


def read_header(path: PathLike) -> dict[str, Any]:
    """The JSON header of a model file that is whole, with format_version and auxbit_version."""
    from auxbit.hashers.base import MODEL_FILE

    return MODEL_FILE.read(path)[0]


def load(path: PathLike) -> Hasher:
    """Load a model that was written by `save`.

    >>> import numpy as np
    >>> import auxbit
    >>> X = np.random.default_rng(0).normal(size=(100, 8))
    >>> auxbit.LSH(n_bits=16, random_state=0).fit(X).save("model.safetensors")
    >>> auxbit.load("model.safetensors")
    LSH(n_bits=16, random_state=0)
    """
    import numpy as np

    from auxbit.core.checks import check_integer
    from auxbit.core.maps import Scaling
    from auxbit.hashers.base import MODEL_FILE, TrainingRecord

    header, tensors = MODEL_FILE.read(path)
    try:
        # any class that is not in the table is a KeyError: a file can call nothing else
        model_class = ESTIMATORS[header["class"]].load_class()
        encoder_class = _imported(ENCODERS[header["encoder"]])
        model: Hasher = model_class(**header["parameters"])
        n_features = check_integer("n_features_in", header["n_features_in"], 1)
        sizes = {"D": n_features + bool(header["scaling"].get("lift"))}
        model.scaling_ = Scaling.of_file(tensors["scaling.mean"], header["scaling"], sizes)
        model.decoder_ = _decoder(tensors, header, model.scaling_, sizes)
        model.encoder_ = encoder_class.of_file(_within("encoder.", tensors), sizes)
        model.n_bits = sizes["L"]  # a model may have been told others after its fit
        model.training_ = None  # of a file of a version that did not record it
        if "training" in header:
            codes = _within("training.", tensors)
            model.training_ = TrainingRecord.from_parts(header["training"], codes, model.decoder_.n_bits)
        model.n_features_in_ = n_features
        if header["feature_names_in"]:
            model.feature_names_in_ = np.array(header["feature_names_in"], dtype=object)
        if header["attributes"]:
            model._restore_attributes(header["attributes"])
    except InvalidInput as error:
        raise ModelFileError(f"{path} is not a complete auxbit model: {error}.") from error
    except (
        KeyError,
        TypeError,
        AttributeError,
        ValueError,
        IndexError,
        ArithmeticError,
        MemoryError,
    ) as error:
        raise ModelFileError(f"{path} is not a complete auxbit model: {error!r}.") from error
    return model


def _decoder(tensors: Tensors, header: dict[str, Any], scaling: Scaling, sizes: dict[str, int]) -> Decoder:
    """The decoder of either kind; a file with tables has the number of bits beside them."""
    from auxbit.core.decoders import decoder_from

    parts = _within("decoder.", tensors)
    if "tables" in parts:
        about: dict[str, Any] = {"class": "TableDecoder", "n_bits": header["decoder_bits"]}
        about["errors"] = header.get("decoder_errors")
    else:
        about = {"class": "LinearDecoder", "n_bits": parts["A"].shape[-1]}
    about["lists"] = header.get("decoder_lists")
    if "decoder_mu" in header:
        about["mu"] = header["decoder_mu"]
    elif "training" in header:  # of a version that kept it there alone
        record = header["training"]
        about["mu"] = record["mu"] if record["coding"] == "optimal" else None
    return decoder_from(about | {"normalize": scaling.normalize, "lift": scaling.lift}, parts, sizes)


def _within(prefix: str, tensors: Tensors) -> Tensors:
    """The tensors whose names begin with the prefix, without it."""
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
