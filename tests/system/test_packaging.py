"""The wheel and the sdist: what is in them, and that they work where nothing else of ours is."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import auxbit

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # pip fetches what the package needs


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="no hatchling: pip install hatchling")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


def test_the_wheel_holds_the_package_with_its_page_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"auxbit-{auxbit.__version__}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"auxbit", f"auxbit-{auxbit.__version__}.dist-info"}
    assert "auxbit/py.typed" in names
    assert any(name.startswith("auxbit/serve/static/") for name in names)
    assert not [name for name in names if "__pycache__" in name or name.endswith((".nbi", ".nbc"))]


def test_the_sdist_holds_what_is_needed_to_test_it(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert {
        "pyproject.toml",
        "Makefile",
        "CITATION.cff",
        "examples/shrink_text.py",
        "tests/conftest.py",
    } <= names


def test_the_wheel_works_in_an_environment_of_its_own(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    python = str(tmp_path / "env" / ("Scripts" if sys.platform == "win32" else "bin") / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    installed = subprocess.run([*pip, str(wheel)], capture_output=True, text=True)
    if installed.returncode != 0 and "Could not find a version" in installed.stderr:
        pytest.skip("the dependencies cannot be fetched here")
    assert installed.returncode == 0, installed.stderr
    code = (
        "import auxbit; from sklearn.datasets import load_digits; X = load_digits().data; "
        "print(auxbit.BinaryAutoencoder(8, random_state=0).fit(X).encode(X).shape)"
    )
    ran = subprocess.run([python, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert ran.stdout == "(1797, 1)\n", ran.stderr
    said = subprocess.run([python, "-m", "auxbit", "demo"], capture_output=True, text=True, cwd=tmp_path)
    assert "pip install 'auxbit[plot]'" in said.stderr  # matplotlib is not a core dependency
    everything = subprocess.run([*pip, "--dry-run", f"{wheel}[all]"], capture_output=True, text=True)
    assert everything.returncode == 0, everything.stderr
