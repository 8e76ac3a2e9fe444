"""Optional dependencies: imported on use, and a missing one names its pip command."""

from __future__ import annotations

import importlib
from types import ModuleType

from auxbit.errors import MissingExtra


def require(module: str, *, extra: str, purpose: str) -> ModuleType:
    """Import `module`, or say which extra of ours brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise MissingExtra(f"{purpose} needs {package}: pip install 'auxbit[{extra}]'") from error
