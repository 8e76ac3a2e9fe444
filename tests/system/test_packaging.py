"""The wheel and the sdist: what is in them, and that they work elsewhere; pinned versions, and tags."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import auxbit

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements-dev.lock"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="no hatchling: pip install hatchling")
    return build(ROOT, tmp_path_factory.mktemp("dist"), "wheel")


def build(folder: Path, out: Path, target: str) -> Path:
    env = {key: value for key, value in os.environ.items() if key != "SOURCE_DATE_EPOCH"}
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    subprocess.run(command, cwd=folder, env=env, check=True, capture_output=True)
    return out


def test_the_wheel_holds_the_package_with_its_page_and_nothing_else(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"auxbit-{auxbit.__version__}-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names} == {"auxbit", f"auxbit-{auxbit.__version__}.dist-info"}
    assert "auxbit/py.typed" in names
    assert any(name.startswith("auxbit/serve/static/") for name in names)
    assert not [name for name in names if "__pycache__" in name or name.endswith((".nbi", ".nbc"))]


@pytest.mark.slow
def test_the_sdist_holds_what_is_needed_to_test_it(tmp_path: Path) -> None:
    (sdist,) = build(ROOT, tmp_path, "sdist").glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    assert {
        "pyproject.toml",
        "Makefile",
        "CITATION.cff",
        "examples/shrink_text.py",
        "tests/conftest.py",
        "requirements-dev.lock",
        ".ci/release-check",
    } <= names


def test_a_wheel_built_elsewhere_and_at_another_time_has_the_same_bytes(built: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "another folder"
    elsewhere.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / name, elsewhere / name)
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "src", elsewhere / "src", ignore=skipped, copy_function=shutil.copyfile)
    for number, path in enumerate(sorted(elsewhere.rglob("*"))):
        os.utime(path, (10**9 + number, 10**9 + number))
        if path.is_file():
            path.chmod(0o600)
    (one,), (other,) = built.glob("*.whl"), build(elsewhere, tmp_path / "dist", "wheel").glob("*.whl")
    assert one.read_bytes() == other.read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(1800)  # pip fetches what the package needs
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


# ---- versions of dependencies


def pinned() -> dict[str, list[tuple[Requirement, str]]]:
    """The lines of the lock by the name of what they pin, and the hashes after each."""
    found: dict[str, list[tuple[Requirement, str]]] = {}
    text = re.sub(r"^#.*\n", "", LOCK.read_text(), flags=re.MULTILINE)
    for line in text.replace("\\\n", " ").splitlines():
        pin, *hashes = line.split(" --hash=")
        found.setdefault(canonicalize_name(Requirement(pin).name), []).append(
            (Requirement(pin), "".join(hashes))
        )
    return found


def wanted(extra: str) -> set[Requirement]:
    """What an extra of ours needs, with what the package itself does."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = set(map(Requirement, project["dependencies"]))
    for each in map(Requirement, project["optional-dependencies"][extra]):
        needed |= set().union(*map(wanted, each.extras)) if each.name == "auxbit" else {each}
    return needed


def test_the_lock_satisfies_every_requirement() -> None:
    locked, needed = pinned(), wanted("test")
    assert len(needed) > 50
    missing = [str(each) for each in needed if canonicalize_name(each.name) not in locked]
    assert missing == [], "make lock"
    pairs = [(each, pin) for each in needed for pin, _ in locked[canonicalize_name(each.name)]]
    assert [
        f"{pin} for {each}" for each, pin in pairs if next(iter(pin.specifier)).version not in each.specifier
    ] == []


def test_the_lock_has_one_version_and_hashes_of_everything_and_names_no_place() -> None:
    for pins in pinned().values():
        for pin, hashes in pins:
            assert [each.operator for each in pin.specifier] == ["=="], pin
            assert re.search("sha256:[0-9a-f]{64}", hashes), pin
            assert pin.url is None
    assert not re.search(r"://|file:|^\s*--?(?!hash=sha256:)[a-z]", LOCK.read_text(), re.MULTILINE)


# ---- tags


def test_a_release_is_refused_unless_its_tag_is_that_of_the_version(tmp_path: Path) -> None:
    def said(*tag: str) -> tuple[int, str]:
        ended = subprocess.run([check, *tag], capture_output=True, text=True, check=False)
        return ended.returncode, ended.stdout + ended.stderr

    def git(*command: str) -> None:
        name = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", "-C", str(tmp_path), *name, *command], check=True, capture_output=True)

    check = tmp_path / ".ci" / "release-check"
    for folder in (check.parent, tmp_path / "src" / "auxbit"):
        folder.mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "release-check", check)
    (tmp_path / "src" / "auxbit" / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("## Unreleased\n")
    git("init", "-q")
    git("commit", "-qm", "Nothing", "--allow-empty")
    status, text = said()
    assert (status, "has no tag" in text) == (0, True)
    for tag in ("v1.2.4", "1.2.3", "v1.2.3.1"):
        status, text = said(tag)
        assert (status, f"{tag} is not of version 1.2.3" in text) == (1, True)
    status, text = said("v1.2.3")
    assert (status, 'no part "## 1.2.3"' in text) == (1, True)
    (tmp_path / "CHANGELOG.md").write_text("## 1.2.3, 2026-01-01\n")
    git("tag", "v1.2.3")
    assert said() == (0, "v1.2.3 is the tag of version 1.2.3.\n")
    git("tag", "v2")
    assert said()[0] == 1
