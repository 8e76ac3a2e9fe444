"""Documents for Elasticsearch, OpenSearch and Vespa, as text: there are no servers of theirs here."""

from __future__ import annotations

import errno
import json
from dataclasses import replace

import numpy as np
import pytest

from auxbit import ITQ, Collection
from auxbit.errors import FileExists, FileProblem, InvalidInput, InvalidParameter
from auxbit.stores.documents import write_documents
from auxbit.stores.push import of_arrays, of_collection
from helpers.index_truth import random_codes

CODES = np.array([[0, 127, 128], [255, 1, 2]], dtype=np.uint8)
SOURCE = of_arrays(CODES, 24, ids=[7, 2**40], metadata=[{"title": "é\n"}, None])


def read(folder, name):
    return json.loads((folder / name).read_text(encoding="utf-8"))


def lines(folder, name):
    return [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]


def test_elasticsearch_gets_bits_as_hexadecimal_text(tmp_path):
    done = write_documents(SOURCE, tmp_path / "out", "elasticsearch")
    assert done["files"] == ["documents.ndjson", "exact.json", "mapping.json", "query.json"]
    fields = read(tmp_path / "out", "mapping.json")["mappings"]["properties"]
    assert fields["metadata"] == {"type": "flattened", "ignore_above": 8000}  # 32,766 bytes would be refused
    assert fields["code"] == {"type": "dense_vector", "element_type": "bit", "dims": 24, "index": True}
    assert lines(tmp_path / "out", "documents.ndjson") == [
        {"index": {"_id": "7"}},
        {"code": "007f80", "metadata": {"title": "é\n"}},
        {"index": {"_id": str(2**40)}},
        {"code": "ff0102"},
    ]
    assert read(tmp_path / "out", "query.json")["knn"]["query_vector"] == "007f80"
    script = read(tmp_path / "out", "exact.json")["query"]["script_score"]["script"]
    assert script == {"source": "(24 - hamming(params.query, 'code')) / 24.0", "params": {"query": "007f80"}}


@pytest.mark.parametrize("program", ["elasticsearch", "vespa"])
def test_half_a_surrogate_pair_is_escaped(program, tmp_path):
    row = {"cut": "é\ud83d"}
    write_documents(of_arrays(CODES[:1], 24, metadata=[row]), tmp_path / "out", program)
    found = lines(tmp_path / "out", "documents.jsonl" if program == "vespa" else "documents.ndjson")[-1]
    assert row == (json.loads(found["fields"]["metadata"]) if program == "vespa" else found["metadata"])


def test_opensearch_gets_bits_as_signed_bytes(tmp_path):
    write_documents(SOURCE, tmp_path / "out", "opensearch")
    mapping = read(tmp_path / "out", "mapping.json")
    assert mapping["settings"] == {"index": {"knn": True}}
    code = mapping["mappings"]["properties"]["code"]
    assert (code["type"], code["dimension"], code["data_type"]) == ("knn_vector", 24, "binary")
    assert code["method"] == {"name": "hnsw", "space_type": "hamming", "engine": "faiss"}
    assert [each["code"] for each in lines(tmp_path / "out", "documents.ndjson")[1::2]] == [
        [0, 127, -128],
        [-1, 1, 2],
    ]
    assert read(tmp_path / "out", "query.json")["query"] == {
        "knn": {"code": {"vector": [0, 127, -128], "k": 10}}
    }
    script = read(tmp_path / "out", "exact.json")["query"]["script_score"]["script"]
    assert (script["lang"], script["params"]["space_type"]) == ("knn", "hamming")


def test_vespa_gets_a_schema_documents_and_queries(tmp_path):
    done = write_documents(SOURCE, tmp_path / "out", "vespa", name="photos")
    assert done["files"] == ["documents.jsonl", "exact.json", "photos.sd", "query.json"]
    schema = (tmp_path / "out" / "photos.sd").read_text()
    assert "field code type tensor<int8>(x[3])" in schema
    assert "query(q) tensor<int8>(x[3])" in schema
    assert "distance-metric: hamming" in schema
    assert schema.count("{") == schema.count("}")
    first, second = lines(tmp_path / "out", "documents.jsonl")
    assert first == {
        "put": "id:photos:photos::7",
        "fields": {"code": {"values": "007f80"}, "metadata": '{"title":"é\\n"}'},
    }
    assert second["fields"]["metadata"] == "{}"
    for file, approximate in (("query.json", "true"), ("exact.json", "false")):
        query = read(tmp_path / "out", file)
        assert f"{{targetHits: 10, approximate: {approximate}}}nearestNeighbor(code, q)" in query["yql"]
        assert query["input.query(q)"] == [0, 127, -128]


def test_a_folder_that_is_there_is_left_alone_and_mistakes_write_nothing(tmp_path):
    with pytest.raises(InvalidParameter, match="program='solr'"):
        write_documents(SOURCE, tmp_path / "out", "solr")
    with pytest.raises(InvalidParameter, match="name='A/b'"):
        write_documents(SOURCE, tmp_path / "out", "vespa", name="A/b")
    (tmp_path / "there").mkdir()
    with pytest.raises(FileExists, match=r"there exists\. Choose the name of a new folder"):
        write_documents(SOURCE, tmp_path / "there", "vespa")
    assert [each.name for each in tmp_path.iterdir()] == ["there"]


def test_a_disk_that_is_full_is_named_and_nothing_stays(tmp_path):
    def full(rows):
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(FileProblem, match=r"out could not be written: No space left on device\."):
        write_documents(replace(SOURCE, read=full), tmp_path / "out", "vespa")
    assert not list(tmp_path.iterdir())


def test_codes_for_the_decoder_alone_are_refused(tmp_path, digits):
    model = ITQ(8, random_state=0).fit(digits[:200])
    model.fit_decoder(digits[:200], "linear", n_iter=1)
    with (
        Collection.create(tmp_path / "c", model) as collection,
        pytest.raises(InvalidInput, match="Hamming distances between them mean nothing"),
    ):
        of_collection(collection)


def test_no_rows_make_an_empty_file_of_documents(tmp_path):
    write_documents(of_arrays(random_codes(0, 16), 16), tmp_path / "out", "elasticsearch")
    assert (tmp_path / "out" / "documents.ndjson").read_text() == ""
