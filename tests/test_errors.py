"""The errors: one tree, as its file draws it, and messages that name the remedy."""

from __future__ import annotations

import re

import pytest

from auxbit import errors


def drawn():
    """The names in the tree of the docstring, with the depth of each."""
    lines = re.findall(r"^([│├└─ ]*)(\w+)(?: |$)", errors.__doc__.split("\n\n", 1)[1], re.M)
    return [(len(indent) // 4, name) for indent, name in lines if name]


def test_the_tree_in_the_docstring_is_the_tree_of_the_classes():
    parents: list[str] = []
    seen = set()
    for depth, name in drawn():
        parents[depth:] = [name]
        cls = getattr(errors, name)
        seen.add(cls)
        if depth:
            assert issubclass(cls, getattr(errors, parents[depth - 1]))
    classes = {each for each in vars(errors).values() if isinstance(each, type)}
    assert seen == classes
    assert all(issubclass(cls, errors.AuxbitError) for cls in classes)


def test_a_parameter_is_named_with_what_came_what_is_allowed_and_the_remedy():
    error = errors.InvalidParameter("n_bits", 0, "an integer in 1..1024", "Try n_bits=32.")
    assert str(error) == "n_bits=0 is invalid: expected an integer in 1..1024. Try n_bits=32."
    assert error.parameter == "n_bits"
    with pytest.raises(ValueError, match="n_bits=0"):
        raise error
