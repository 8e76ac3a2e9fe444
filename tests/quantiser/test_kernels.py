from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auxbit.quantiser.kernels import tile_products, to_panels


def made(n, D, K, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, D)).astype(np.float32), rng.normal(size=(D, K))


@pytest.mark.parametrize(
    ("n", "D", "K"), [(1, 1, 64), (4, 128, 256), (67, 33, 192), (131, 784, 512), (0, 5, 64)]
)
def test_products_are_those_of_numpy(n, D, K):
    X, columns = made(n, D, K)
    wanted = X.astype(float) @ columns.astype(np.float32).astype(float)
    found = tile_products(X, to_panels(columns))
    assert found.shape == (n, K)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, wanted, atol=2e-6 * D**0.5 * 8)


@given(st.integers(1, 150), st.integers(1, 40), st.integers(0, 99), st.data())
def test_the_products_of_a_row_do_not_depend_on_the_rows_beside_it(n, D, seed, data):
    X, columns = made(n, D, 128, seed)
    panels = to_panels(columns)
    together = tile_products(X, panels)
    chosen = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=9))
    np.testing.assert_array_equal(tile_products(X[chosen], panels), together[chosen])
