"""Addresses of stores: postgresql://…, milvus://…, file.db, file.faiss. Passwords are never shown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from auxbit.errors import InvalidParameter

FORMS = "postgresql://user@host/database, milvus://host:19530, a file.db of Milvus Lite or a file.faiss"
MILVUS_PORT = 19530
HIDDEN = "***"


@dataclass(frozen=True)
class Address:
    """Where a store is. kind : "pgvector", "milvus", "milvus file", "faiss"; shown : without the password."""

    kind: str
    text: str
    shown: str
    parts: SplitResult

    def hide(self, message: str) -> str:
        """A message of somebody else, without the password."""
        for word in {self.parts.password or "", unquote(self.parts.password or "")} - {""}:
            message = message.replace(word, HIDDEN)
        return message


def parse(url: str) -> Address:
    """The address that is meant, or what forms there are."""
    text = str(url)
    scheme = text.partition("://")[0].lower() if "://" in text else ""
    if not scheme:
        return _file(text)
    if scheme not in ("postgresql", "postgres", "milvus"):
        raise InvalidParameter("to", _without_password(text), FORMS)
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:  # its message may quote the password
        raise _malformed(text, "its port or host cannot be read") from None
    if parts.netloc.count("@") > 1:
        raise _malformed(text, "it has two @: write one that is part of a password as %40")
    if scheme == "milvus":
        if not parts.hostname or parts.query or parts.fragment or "/" in parts.path.strip("/"):
            raise _malformed(text, "expected milvus://[user:password@]host[:port][/database]")
        return Address("milvus", text, _shown(parts, port or MILVUS_PORT), parts)
    if parts.fragment:
        raise _malformed(text, "it has a #: write one that is part of a password as %23")
    return Address("pgvector", text, _shown(parts, port), parts)


def _file(text: str) -> Address:
    suffix, nothing = Path(text).suffix.lower(), urlsplit("")
    if suffix == ".db":
        return Address("milvus file", text, text, nothing)
    if suffix == ".faiss":
        return Address("faiss", text, text, nothing)
    raise InvalidParameter("to", text, FORMS)


def _shown(parts: SplitResult, port: int | None) -> str:
    user = f"{parts.username}@" if parts.username else ""
    host = parts.hostname or ""
    place = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{user}{place}{f':{port}' if port else ''}{parts.path}"


def _without_password(text: str) -> str:
    """What may be shown of an address that cannot be parsed: nothing between the scheme and the last @."""
    scheme, _, rest = text.partition("://")
    return f"{scheme}://{HIDDEN}@{rest.rpartition('@')[2]}" if "@" in rest else text


def _malformed(text: str, why: str) -> InvalidParameter:
    return InvalidParameter("to", _without_password(text), FORMS, f"Of this one, {why}.")
