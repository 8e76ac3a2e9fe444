"""Every error that auxbit raises on purpose.

AuxbitError
├── InvalidInput        (also ValueError)   data or a parameter that cannot be used
│   ├── InvalidParameter                    one named parameter
│   └── BadPicture                          a picture that cannot be decoded
├── FileProblem         (also OSError)      a file that is missing, truncated, not auxbit's, or in the way
│   ├── DataFileError                       vectors or codes that cannot be read
│   ├── ModelFileError                      not a model file, truncated, or of a newer version
│   ├── IndexFileError                      not an index file, truncated, or of a newer version
│   ├── CollectionError                     a folder that is no collection, or one of a newer version
│   │   └── Damaged                         a part of a collection whose checksum does not match
│   ├── InUse                               another process writes to it
│   └── FileExists                          a file that would be overwritten
├── StoreError                              a store that refuses a request: rights, names, versions
│   ├── StoreUnreachable (also ConnectionError) no server or database, a wrong password, a lost connection
│   └── StoreExists                         something has the name already
├── ClusterProblem      (also RuntimeError) a cluster that lost its workers or its scheduler
└── MissingExtra        (also ImportError)  an optional dependency is not installed
"""

from __future__ import annotations


def printable(name: str) -> str:
    """A file's name for errors and lists, without control characters."""
    return "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in name)


class AuxbitError(Exception):
    """Base of all errors that auxbit raises on purpose.

    >>> import auxbit
    >>> try:
    ...     auxbit.load("nothing.safetensors")
    ... except auxbit.AuxbitError as error:
    ...     print(error)
    nothing.safetensors does not exist or is not a file.
    """


class InvalidInput(AuxbitError, ValueError):
    """Data or a parameter that cannot be used."""


class InvalidParameter(InvalidInput):
    """One parameter has a value that is not allowed; the message names the remedy."""

    def __init__(self, name: str, value: object, expected: str, remedy: str = "") -> None:
        self.parameter = name
        text = f"{name}={value!r} is invalid: expected {expected}."
        super().__init__(f"{text} {remedy}" if remedy else text)


class BadPicture(InvalidInput):
    """A picture that cannot be decoded: no picture, cut short, too large."""


class FileProblem(AuxbitError, OSError):
    """A file that is missing, truncated, not auxbit's, or in the way."""


class DataFileError(FileProblem):
    """Vectors or codes that cannot be read."""


class ModelFileError(FileProblem):
    """A file that is not a model, is truncated, or is of a newer version."""


class IndexFileError(FileProblem):
    """A file that is not an index, is truncated, or is of a newer version."""


class CollectionError(FileProblem):
    """A folder that is no collection, or one of a newer version."""


class Damaged(CollectionError):
    """A part of a collection that is missing, cut short, or whose checksum does not match."""


class InUse(FileProblem):
    """A collection or file that another process is writing to."""


class FileExists(FileProblem):
    """The output exists and would be overwritten."""


class StoreError(AuxbitError):
    """A store that refuses a request; the message names the remedy."""


class StoreUnreachable(StoreError, ConnectionError):
    """No server, no such database, a wrong password, or a connection that broke."""


class StoreExists(StoreError):
    """A table or collection of that name exists already, and is not replaced."""


class ClusterProblem(AuxbitError, RuntimeError):
    """A cluster that lost its scheduler, or workers again and again."""


class MissingExtra(AuxbitError, ImportError):
    """An optional dependency is not installed."""
