"""PostgreSQL's errors as ours: what is wrong, and the remedy. No password is in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from auxbit.errors import InvalidInput, StoreError, StoreExists, StoreUnreachable
from auxbit.extras import require
from auxbit.stores.addresses import Address

NO_EXTENSION = (
    "the server has no pgvector. Install it there (Debian: apt install postgresql-18-pgvector, of the "
    "server's version; others: github.com/pgvector/pgvector), and try again."
)
NO_RIGHT_TO_EXTENSION = (
    "pgvector is installed there, but not enabled in this database, and the user may not do that. Let its "
    "owner run: CREATE EXTENSION vector;"
)


@contextmanager
def translated(address: Address, name: str) -> Iterator[None]:
    """Raise errors of ours in the place of the driver's."""
    psycopg = require("psycopg", extra="pgvector", purpose="PostgreSQL")
    try:
        yield
    except psycopg.Error as error:
        raise _ours(error, address, name) from None


def unreachable(error: Any, address: Address) -> StoreUnreachable:
    """Why no connection could be made."""
    # an indented line is advice of libpq's own, and ours follows
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("\t")]
    text = address.hide(lines[-1].removeprefix("connection failed: ") if lines else type(error).__name__)
    remedy = "Is the server running, and does it listen there?"
    if "password" in text:
        remedy = "Check the password in the URL, in PGPASSWORD or in ~/.pgpass."
    elif 'database "' in text and "does not exist" in text:
        remedy = "Create the database first, or name another one at the end of the URL."
    elif "role" in text or "pg_hba" in text or "no pg_hba" in text:
        remedy = "Check the user in the URL, and that the server lets it in from here."
    return StoreUnreachable(f"{address.shown} cannot be reached: {text}. {remedy}")


def _ours(error: Any, address: Address, name: str) -> Exception:
    psycopg = require("psycopg", extra="pgvector", purpose="PostgreSQL")
    errors, diag = psycopg.errors, error.diag
    text = address.hide(diag.message_primary or str(error).strip().partition("\n")[0])
    detail = address.hide(diag.message_detail or "")
    if isinstance(error, errors.UniqueViolation):
        found = re.search(r"\((\d+)\)", detail)
        number = f"id {found[1]}" if found else "one of the ids"
        return InvalidInput(
            f"{number} is already in {name!r}; nothing was added. upsert=True replaces its row."
        )
    if isinstance(error, errors.InsufficientPrivilege):
        return StoreError(f"{address.shown}: {text}. Its owner can grant it, or take another user or name.")
    if isinstance(error, errors.UndefinedTable):
        return StoreError(f"the table {name!r} is not there any more ({text}). Create it again.")
    if isinstance(error, errors.DependentObjectsStillExist):
        return StoreError(f"the table {name!r} is not replaced, others depend on it: {detail or text}")
    if isinstance(error, (errors.DuplicateTable, errors.DuplicateObject)):
        return StoreExists(f"{text}: somebody else has just made it. Try again.")
    if isinstance(error, psycopg.DataError):
        place = re.search(r"COPY .*?line (\d+)", diag.context or "")
        row = f", row {int(place[1]) - 1} of a batch" if place else ""
        return InvalidInput(f"PostgreSQL cannot keep or compare this{row}: {text}. {detail}".rstrip())
    gone = isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))
    if gone and not isinstance(error, errors.InsufficientResources):
        return StoreUnreachable(
            f"{address.shown}: the connection broke: {text}. What was committed is there; once the server "
            "is back, go on (push --resume)."
        )
    return StoreError(f"{address.shown}: {text}. {detail}".rstrip())
