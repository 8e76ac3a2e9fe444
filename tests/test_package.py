"""The package as a whole: its public names, its import, and the layout of docs/architecture.md."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import numpy as np
import pytest

import auxbit

SOURCE = Path(auxbit.__file__).parent
ARCHITECTURE = Path(__file__).parents[1] / "docs" / "architecture.md"

PUBLIC = {
    "ITQ",
    "LSH",
    "AnchorGraphHashing",
    "AuxbitError",
    "BinaryAutoencoder",
    "BinaryFactorAnalysis",
    "Collection",
    "HammingIndex",
    "KernelizedLSH",
    "SpectralHashing",
    "SphericalHashing",
    "ThresholdedPCA",
    "load",
    "register",
}

# ---- public names


def test_the_public_names_are_these_and_no_others():
    assert set(auxbit.__all__) == PUBLIC
    assert auxbit.__all__ == sorted(auxbit.__all__, key=lambda name: (not name.isupper(), name))
    assert set(dir(auxbit)) >= PUBLIC


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_every_public_name_can_be_imported_and_is_documented(name):
    value = getattr(auxbit, name)
    assert value.__name__ == name
    assert value.__doc__


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'auxbit' has no attribute 'Hasher'"):
        _ = auxbit.Hasher


def test_load_reads_what_save_wrote(tmp_path):
    X = np.random.default_rng(0).normal(size=(20, 3))
    model = auxbit.LSH(3, random_state=0).fit(X)
    model.save(tmp_path / "m.safetensors")
    assert np.array_equal(auxbit.load(tmp_path / "m.safetensors").encode(X), model.encode(X))


def test_the_version_is_that_of_the_installed_package():
    from importlib.metadata import version

    assert auxbit.__version__ == version("auxbit")


def test_the_package_says_that_it_is_typed():
    assert (SOURCE / "py.typed").is_file()


# ---- the import


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_import_is_quick_and_brings_none_of_the_slow_libraries():
    code = (
        "import sys, time; start = time.process_time(); import auxbit; took = time.process_time() - start; "
        "slow = {'sklearn', 'numba', 'scipy', 'faiss', 'matplotlib', 'pyarrow'} & set(sys.modules); "
        "print(took, *slow)"
    )
    seconds, slow = [], set()
    for _ in range(3):
        took, *libraries = run(code).split()
        seconds.append(float(took))
        slow |= set(libraries)
    assert not slow
    assert min(seconds) < 0.3


def test_opening_a_collection_brings_none_of_the_slow_libraries(tmp_path):
    X = np.random.default_rng(0).normal(size=(50, 8))
    auxbit.Collection.create(tmp_path / "c", X, bits=8, coding="hash").close()
    code = (
        f"import sys; from auxbit import Collection; collection = Collection.open({str(tmp_path / 'c')!r}); "
        "print(len(collection), *{'sklearn', 'numba', 'llvmlite', 'scipy'} & set(sys.modules)); "
        "collection.search(codes=collection.codes([0]), k=1); print('numba' in sys.modules)"
    )
    assert run(code).split() == ["50", "True"]


def test_errors_can_be_caught_without_loading_the_slow_libraries():
    assert (
        run("import sys; from auxbit import AuxbitError; print('sklearn' in sys.modules)").strip() == "False"
    )


# ---- as a program


def test_python_dash_m_runs_the_commands():
    ran = subprocess.run([sys.executable, "-m", "auxbit", "--version"], capture_output=True, text=True)
    assert ran.stdout == f"auxbit {auxbit.__version__}\n"


def test_a_shell_can_complete_commands():
    words = {"_AUXBIT_COMPLETE": "complete_bash", "COMP_WORDS": "auxbit coll", "COMP_CWORD": "1"}
    command = [sys.executable, "-m", "auxbit"]
    ran = subprocess.run(command, capture_output=True, text=True, env=os.environ | words)
    assert ran.stdout.split() == ["collection"]


def test_the_citation_names_this_version():
    text = (Path(__file__).parents[1] / "CITATION.cff").read_text()
    assert f"\nversion: {auxbit.__version__}\n" in text


# ---- the layout


def packages():
    """The packages of architecture.md in their order, from the block that lists them."""
    block = re.search(r"^```text\n(.*?)^```", ARCHITECTURE.read_text(), re.M | re.S)[1]
    return [line.split()[0].rstrip("/") for line in block.splitlines() if not line.startswith(" ")]


@cache
def modules():
    """Every module of the package but the packages' own, by its name without `auxbit.`, and its file."""
    paths = (path.relative_to(SOURCE) for path in SOURCE.rglob("*.py") if path.name[:2] != "__")
    return {".".join(path.with_suffix("").parts): path for path in paths}


@cache
def imports(path):
    """The modules of ours that a file imports, at its top and inside functions."""
    found = set()
    for node in ast.walk(ast.parse((SOURCE / path).read_text())):
        if isinstance(node, ast.Import):
            found.update(name for alias in node.names for name in ours(alias.name))
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import, which this test does not follow"
            names = [name for alias in node.names for name in ours(f"{node.module}.{alias.name}")]
            found.update(names or ours(node.module))
    return found


def ours(name):
    """The module behind a dotted name."""
    package, *rest = name.split(".")
    if package != "auxbit":
        return []
    return [".".join(rest)] if ".".join(rest) in modules() else []


def test_the_packages_are_those_of_the_architecture():
    assert {module.split(".")[0] for module in modules()} == set(packages())


@pytest.mark.parametrize("module", sorted(modules()))
def test_a_module_imports_only_packages_that_stand_above_its_own(module):
    order = packages()
    own = order.index(module.split(".")[0])
    assert [name for name in imports(modules()[module]) if order.index(name.split(".")[0]) > own] == []


def test_modules_of_a_package_import_each_other_without_cycles():
    graph = {module: imports(path) for module, path in modules().items()}
    TopologicalSorter({module: names - {module} for module, names in graph.items()}).prepare()


def test_the_layout_test_sees_imports_of_every_form():
    assert {"core.files", "errors", "hashers.base", "core.maps"} <= imports(Path("hashers", "registry.py"))
    assert ours("auxbit.mac.z_step") == ["mac.z_step"]
    assert ours("numpy.linalg") == ours("auxbit") == ours("auxbit.mac") == []


def test_every_file_that_the_architecture_names_is_there():
    text = ARCHITECTURE.read_text()
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)", text)) - {"tests/test_package.py"}
    assert len(named) > 20
    assert [name for name in named if not (SOURCE / name).is_file()] == []


def test_the_figure_of_the_architecture_is_drawn_from_the_same_packages():
    spec = importlib.util.spec_from_file_location("layers", ARCHITECTURE.parent / "reference" / "layers.py")
    layers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(layers)
    assert [package for _, layer in layers.LAYERS for package in layer] == packages()
    assert layers.FIGURE.read_text() == layers.draw(), "run: make reference"
