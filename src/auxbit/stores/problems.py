"""What goes wrong with stores, beside what is wrong with the data.

StoreError              a store that cannot do what was asked: rights, names, versions
├── StoreUnreachable    no server, no such database, a wrong password, a connection that broke
└── StoreExists         something has the name already
"""

from __future__ import annotations

from auxbit.errors import AuxbitError


class StoreError(AuxbitError):
    """A store cannot do what was asked; the message names the remedy."""


class StoreUnreachable(StoreError, ConnectionError):
    """No server, no such database, a wrong password, or a connection that broke."""


class StoreExists(StoreError):
    """Something of that name is there already, and is not replaced."""
