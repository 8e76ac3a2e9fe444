"""The neighbours estimator: KNeighborsTransformer's contract, and estimators on its graph."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.cluster import DBSCAN
from sklearn.manifold import TSNE, Isomap, trustworthiness
from sklearn.neighbors import KNeighborsClassifier, KNeighborsTransformer
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from auxbit.data.datasets import digits as digits_with_labels
from auxbit.errors import InvalidParameter
from auxbit.integrations.scikit_learn import AuxbitTransformer

EXACT = {"exact_below": 10_000}
CODES = {"exact_below": 0, "n_bits": 32}


@parametrize_with_checks([AuxbitTransformer(n_neighbors=2), AuxbitTransformer(2, exact_below=0, n_bits=2)])
def test_the_estimator_passes_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def by_codes(digits):
    return AuxbitTransformer(10, **CODES).fit(digits[300:])


def recall(found, truth):
    return np.mean([len(set(a) & set(b)) / len(b) for a, b in zip(found, truth)])


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("mode", ["distance", "connectivity"])
def test_the_exact_graph_is_that_of_scikit_learn(digits, metric, mode):
    X = digits[:400] + np.random.default_rng(0).normal(size=(400, 64))  # no ties
    ours = AuxbitTransformer(7, mode=mode, metric=metric, **EXACT)
    theirs = KNeighborsTransformer(n_neighbors=7, mode=mode, metric=metric)
    assert abs(ours.fit_transform(X[:300]) - theirs.fit_transform(X[:300])).max() < 1e-3
    assert abs(ours.transform(X[300:]) - theirs.transform(X[300:])).max() < 1e-3
    assert ours.model_ is None
    assert list(ours.get_feature_names_out()[:2]) == ["auxbittransformer0", "auxbittransformer1"]
    assert len(ours.get_feature_names_out()) == 300
    near, far = ours.kneighbors(), theirs.kneighbors()
    assert np.array_equal(near[1], far[1])
    assert np.allclose(near[0], far[0], atol=1e-3)


def test_codes_find_nearly_all_neighbours_with_true_distances(digits, by_codes):
    theirs = KNeighborsTransformer(n_neighbors=10).fit(digits[300:])
    distances, found = by_codes.kneighbors(digits[:300])
    true_distances, truth = theirs.kneighbors(digits[:300])
    assert by_codes.model_.n_bits == 32
    assert recall(found, truth) > 0.97
    same = found == truth
    assert np.allclose(distances[same], true_distances[same], rtol=1e-5)
    few = clone(by_codes).set_params(candidates=10, metric="cosine").fit(digits[300:])
    assert 0.4 < recall(few.kneighbors(digits[:300], return_distance=False), truth) < 0.97


def test_a_row_is_its_own_neighbour_in_transform_and_not_in_kneighbors(digits, by_codes):
    graph = by_codes.transform(digits[300:])
    assert graph.shape == (1497, 1497)
    assert set(np.diff(graph.indptr)) == {11}
    assert (np.diff(graph.data.reshape(-1, 11), axis=1) >= 0).all()
    _, found = by_codes.kneighbors()
    assert found.shape == (1497, 10)
    assert not (found == np.arange(1497)[:, None]).any()


def test_it_can_be_pickled_and_cloned(digits, by_codes):
    again = pickle.loads(pickle.dumps(by_codes))
    assert np.array_equal(again.kneighbors(digits[:9])[1], by_codes.kneighbors(digits[:9])[1])
    assert clone(by_codes).get_params() == by_codes.get_params()


# ---- scikit-learn's estimators on the graph


def test_a_classifier_on_the_graph_is_as_good_as_on_the_rows():
    data = digits_with_labels()
    classifier = KNeighborsClassifier(n_neighbors=5, metric="precomputed")
    ours = make_pipeline(AuxbitTransformer(5, **CODES), classifier).fit(data.base, data.labels)
    theirs = KNeighborsClassifier(n_neighbors=5).fit(data.base, data.labels)
    ours, theirs = (each.score(data.queries, data.query_labels) for each in (ours, theirs))
    assert abs(ours - theirs) < 0.01


def test_dbscan_on_the_graph_finds_the_clusters_that_it_finds_in_rows():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(5, 16)) * 10
    X = np.concatenate([centre + rng.normal(size=(60, 16)) * 0.5 for centre in centres])
    graph = AuxbitTransformer(30, exact_below=0, n_bits=16).fit_transform(X)
    labels = DBSCAN(eps=3.0, metric="precomputed").fit_predict(graph)
    assert np.array_equal(labels, DBSCAN(eps=3.0).fit_predict(X))
    assert set(labels) == set(range(5))


def test_tsne_and_isomap_run_on_the_graph(digits):
    X = digits[:150]
    tsne = TSNE(metric="precomputed", init="random", perplexity=10, max_iter=350, random_state=0)
    graphs = (AuxbitTransformer(31, **CODES), KNeighborsTransformer(n_neighbors=31))
    ours, theirs = (trustworthiness(X, tsne.fit_transform(graph.fit_transform(X))) for graph in graphs)
    assert ours > theirs - 0.03
    assert ours > 0.8
    flat = make_pipeline(AuxbitTransformer(15, **CODES), Isomap(n_neighbors=15, metric="precomputed"))
    assert trustworthiness(X, flat.fit_transform(X), n_neighbors=5) > 0.7


# ---- bad input


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({"n_neighbors": 0}, "n_neighbors=0"),
        ({"mode": "both"}, "mode='both'"),
        ({"metric": "manhattan"}, "metric='manhattan' is invalid: expected 'euclidean' or 'cosine'"),
        ({"exact_below": -1}, "exact_below=-1"),
    ],
)
def test_parameters_are_named(how, named, digits):
    with pytest.raises(InvalidParameter, match=named):
        AuxbitTransformer(**how).fit(digits[:20])


def test_more_neighbours_than_rows_are_refused(digits):
    fitted = AuxbitTransformer(5).fit(digits[:5])
    with pytest.raises(
        InvalidParameter, match="n_neighbors=6 is invalid: expected at most 5, for n_samples_fit_=5"
    ):
        fitted.transform(digits[:5])
    with pytest.raises(InvalidParameter, match="n_neighbors=5 is invalid: expected at most 4"):
        fitted.kneighbors()
    assert fitted.kneighbors(digits[5:7])[1].shape == (2, 5)
