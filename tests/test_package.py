"""The package as a whole: its public names, its import, and the layout of docs/architecture.md."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from fnmatch import fnmatch
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
}

# imports inside functions of modules that stand below: (who, whom) → why
UPWARD = {
    ("hashers.base", "hashers.model_file"): "save is a method, and the file format knows all methods",
    ("index.hamming", "index.index_file"): "save and load are methods, and the file format knows the index",
    ("autoencoder", "large_fit"): "fit is a method, and fitting by passes sets its attributes",
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


def test_errors_can_be_caught_without_loading_the_slow_libraries():
    assert (
        run("import sys; from auxbit import AuxbitError; print('sklearn' in sys.modules)").strip() == "False"
    )


# ---- the layout


def listed_modules():
    """The modules of architecture.md in their order, from its only code block."""
    (block,) = re.findall(r"^```\n(.*?)^```", ARCHITECTURE.read_text(), re.M | re.S)
    return [line.split()[0] for line in block.splitlines()]


def modules():
    """Every module of the package but the packages' own, by its name without `auxbit.`, and its file."""
    paths = (path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))
    return {".".join(path.with_suffix("").parts): path for path in paths if path.name != "__init__.py"}


def imports(path):
    """The modules of ours that a file imports: at its top (TYPE_CHECKING included), and inside functions."""
    at_top, inside = set(), set()

    def visit(node, found):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            found = inside
        if isinstance(node, ast.Import):
            found.update(name for alias in node.names for name in ours(alias.name))
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import, which this test does not follow"
            names = [name for alias in node.names for name in ours(f"{node.module}.{alias.name}")]
            found.update(names or ours(node.module))
        for child in ast.iter_child_nodes(node):
            visit(child, found)

    visit(ast.parse((SOURCE / path).read_text()), at_top)
    return at_top, inside


def ours(name):
    """The module behind a dotted name; of a package, the modules that its __init__ imports."""
    package, *rest = name.split(".")
    if package != "auxbit" or not rest:
        return []
    if ".".join(rest) in modules():
        return [".".join(rest)]
    inits = [Path(*rest, "__init__.py"), Path(*rest[:-1], "__init__.py")]
    for init in inits if len(rest) > 1 else inits[:1]:
        if (SOURCE / init).is_file():
            return sorted(imports(init)[0])
    return []


def position(module):
    return next((i for i, entry in enumerate(listed_modules()) if fnmatch(module, entry)), None)


def test_every_module_is_listed_once_and_every_entry_is_there():
    entries = listed_modules()
    assert len(entries) == len(set(entries))
    assert [module for module in modules() if position(module) is None] == []
    plain = [entry for entry in entries if "*" not in entry]
    assert [entry for entry in plain if entry not in modules()] == []


@pytest.mark.parametrize("module", sorted(modules()))
def test_a_module_imports_only_modules_that_stand_above_it(module):
    at_top, _ = imports(modules()[module])
    own = position(module)
    together = "*" in listed_modules()[own]  # files of one layer may import each other
    below = [name for name in at_top if position(name) > own or (position(name) == own and not together)]
    assert below == []


def test_imports_of_modules_below_inside_functions_are_known_and_have_a_reason():
    found = {
        (module, name)
        for module, path in modules().items()
        for name in imports(path)[1]
        if position(name) > position(module)
    }
    assert found == set(UPWARD)


def test_the_layout_test_sees_imports_of_every_form():
    at_top, inside = imports(Path("hashers", "model_file.py"))
    assert {"tensor_file", "errors", "hashers.base", "maps"} <= at_top
    assert imports(Path("hashers", "base.py"))[1] >= {"hashers.model_file"}
    assert ours("auxbit.index.HammingIndex") == ours("auxbit.index") == ["index.hamming"]
    assert ours("auxbit.mac.z_exact") == ["mac.z_exact"]
    assert ours("numpy.linalg") == ours("auxbit") == []
    assert inside == set()


def test_every_file_that_the_architecture_names_is_there():
    text = ARCHITECTURE.read_text()
    named = set(re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)", text)) - {"tests/test_package.py"}
    assert len(named) > 20
    assert [name for name in named if not (SOURCE / name).is_file()] == []


def test_no_module_is_much_longer_than_300_lines():
    long = {module: len((SOURCE / path).read_text().splitlines()) for module, path in modules().items()}
    assert {module: lines for module, lines in long.items() if lines > 330} == {}
