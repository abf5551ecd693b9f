import bz2
import csv
import gzip
import io
import json
import lzma
import os

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrieval_pretraining.corpus import CorpusCounts, load_documents, read_documents, resolve_files
from retrieval_pretraining.errors import InputError

PASSAGES = [f'passage {number}, "quoted" 第{number}段' for number in range(20)]


@pytest.fixture(autouse=True)
def private_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def write(path, text, encoding="utf-8"):
    path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
    return path


def json_lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read(*files, **options):
    counts = CorpusCounts()
    return list(read_documents(files, counts=counts, **options)), counts


def refusal(*files, **options):
    with pytest.raises(InputError) as caught:
        read(*files, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def as_csv(rows, delimiter=","):
    buffer = io.StringIO()
    csv.writer(buffer, delimiter=delimiter).writerows(rows)
    return buffer.getvalue()


ROWS = [{"id": number, "text": passage} for number, passage in enumerate(PASSAGES)]
TABLE = [["id", "text"], *([str(row["id"]), row["text"]] for row in ROWS)]
CONTENT = {
    "a.txt": "\n".join(PASSAGES),
    "a.jsonl": json_lines(ROWS),
    "a.ndjson": json_lines(ROWS),
    "a.json": json.dumps(ROWS, indent=1),
    "lines.json": json_lines(ROWS),
    "a.csv": as_csv(TABLE),
    "a.tsv": as_csv(TABLE, "\t"),
}


@pytest.mark.parametrize("compress, suffix", [(None, ""), (gzip, ".gz"), (lzma, ".xz"), (bz2, ".bz2")])
@pytest.mark.parametrize("name", CONTENT)
def test_every_format_gives_the_same_documents(tmp_path, name, compress, suffix):
    content = CONTENT[name].encode()
    path = write(tmp_path / (name + suffix), compress.compress(content) if compress else content)
    documents, counts = read(path)
    assert documents == PASSAGES
    assert str(counts) == "20 documents from 1 file, 0 dropped"


def test_parquet_reads_only_the_text_column(tmp_path, monkeypatch):
    asked, iter_batches = [], pq.ParquetFile.iter_batches
    monkeypatch.setattr(
        pq.ParquetFile,
        "iter_batches",
        lambda *args, **options: asked.append(options) or iter_batches(*args, **options),
    )
    table = pa.table({"id": [[number] for number in range(20)], "text": PASSAGES, "meta": [{"a": 1}] * 20})
    pq.write_table(table, tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == (PASSAGES, CorpusCounts(files=1, documents=20))
    assert [options["columns"] for options in asked] == [["text"]]


# --- which files ---


def test_a_folder_is_searched_for_known_formats_but_not_for_hidden_files(tmp_path):
    (tmp_path / "deep" / ".hidden").mkdir(parents=True)
    expected = [write(tmp_path / "b.jsonl", ""), write(tmp_path / "deep" / "a.txt.gz", "")]
    for other in ("README.md", "._b.jsonl", "deep/.hidden/c.txt", "d.parquet.gz"):
        write(tmp_path / other, "")
    assert resolve_files(tmp_path) == expected


def test_files_are_sorted_and_named_once(tmp_path):
    a, b = write(tmp_path / "a.txt", ""), write(tmp_path / "b.txt", "")
    assert resolve_files([str(b), str(tmp_path), str(tmp_path / "*.txt"), str(a)]) == [a, b]


def test_a_file_whose_name_looks_like_a_glob_is_found(tmp_path):
    assert resolve_files(str(write(tmp_path / "a[1].txt", ""))) == [tmp_path / "a[1].txt"]


@pytest.mark.parametrize("name", ["missing.txt", "empty", "a.docx", "*.md", "a.parquet.gz"])
def test_what_cannot_be_a_corpus_is_named_in_the_error(tmp_path, name):
    (tmp_path / "empty").mkdir()
    for other in ("a.docx", "README.md", "a.parquet.gz"):
        write(tmp_path / other, "")
    with pytest.raises(InputError) as caught:
        resolve_files(str(tmp_path / name))
    assert name in str(caught.value)
    assert ".jsonl" in str(caught.value) or "no such file" in str(caught.value)


# --- text files ---


def test_only_newline_and_carriage_return_end_a_line(tmp_path):
    path = write(tmp_path / "a.txt", "a\u2028b\x0bc\x0cd\x85e\x1cf\u2029g\nx\r\ny\rz")
    assert read(path)[0] == ["a\u2028b\x0bc\x0cd\x85e\x1cf\u2029g", "x", "y", "z"]


def test_text_is_left_as_it_is(tmp_path):
    lines = ["  spaces around \t", "<p>markup</p>", "nul \x00 inside", "zero\u200bwidth", "NA", "null", "None"]
    assert read(write(tmp_path / "a.txt", "\n".join(lines)))[0] == lines


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "gb18030"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.json"])
def test_byte_order_mark_is_stripped_in_every_encoding(tmp_path, encoding, name):
    text = CONTENT[name] if encoding in ("utf-8-sig", "utf-16") else "\ufeff" + CONTENT[name]
    path = write(tmp_path / name, text, encoding)
    assert read(path, encoding="utf-8" if encoding == "utf-8-sig" else encoding)[0] == PASSAGES


@pytest.mark.parametrize("name, line", [("a.txt", 3), ("a.jsonl", 3), ("a.csv", 3)])
def test_bad_byte_names_file_and_line(tmp_path, name, line):
    raw = CONTENT[name].encode().split(b"\n")
    raw[line - 1] = raw[line - 1].replace(b"passage", b"pass\xffage")
    path = write(tmp_path / name, b"\n".join(raw))
    message = refusal(path)
    assert f"{path}, line {line}:" in message and "utf-8" in message


def test_half_a_character_at_the_end_of_the_file_is_noticed(tmp_path):
    assert "line 2" in refusal(write(tmp_path / "a.txt", "一\n二".encode()[:-1]))


@pytest.mark.parametrize("encoding_errors, line", [("replace", "b\ufffdd"), ("ignore", "bd")])
def test_bad_bytes_are_counted_when_tolerated(tmp_path, encoding_errors, line):
    documents, counts = read(write(tmp_path / "a.txt", b"a\nb\xffd\n"), encoding_errors=encoding_errors)
    assert documents == ["a", line]
    assert counts.undecodable == 1 and "1 undecodable place" in str(counts)


def test_json_lines_under_the_name_json_count_a_bad_byte_once(tmp_path):
    path = write(tmp_path / "a.json", b'{"text": "b\xffd"}\n')
    assert read(path, encoding_errors="replace")[1].undecodable == 1


def test_wrong_and_unknown_encodings_are_refused(tmp_path):
    path = write(tmp_path / "a.txt", "中文\n", "gb18030")
    assert "gb18030" in refusal(path)
    assert "klingon" in refusal(path, encoding="klingon")
    assert "line" in refusal(path, encoding="utf-16")
    assert "surrogateescape" in refusal(path, encoding_errors="surrogateescape")


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".bz2"])
def test_cut_off_archive_names_the_file(tmp_path, suffix):
    compress = {".gz": gzip, ".xz": lzma, ".bz2": bz2}[suffix].compress
    content = compress("\n".join(PASSAGES * 99).encode())
    assert f"a.txt{suffix}" in refusal(write(tmp_path / f"a.txt{suffix}", content[: len(content) // 2]))
    assert f"b.txt{suffix}" in refusal(write(tmp_path / f"b.txt{suffix}", b"this is not compressed"))


# --- rows ---


def test_blank_and_null_rows_are_dropped_and_counted(tmp_path):
    blank = ["", "  \t", "\u3000\u3000", "\u200b\ufeff", "\xa0"]
    rows = [{"text": text} for text in ["a", *blank, None, float("nan"), "b"]] + [{"other": 1}]
    documents, counts = read(write(tmp_path / "a.jsonl", json_lines(rows) + "\n"))
    assert documents == ["a", "b"]
    assert counts == CorpusCounts(files=1, documents=2, blank=6, null=3)
    assert str(counts) == "2 documents from 1 file, 9 dropped (6 blank, 3 null)"


def test_strings_that_look_like_nothing_stay_text(tmp_path):
    words = ["NA", "null", "None", "nan", "#N/A", "1.5"]
    assert read(write(tmp_path / "a.csv", as_csv([["text"], *([word] for word in words)])))[0] == words


def test_columns_that_nobody_asked_for_may_hold_anything(tmp_path):
    rows = [{"text": "a", "tags": []}, {"text": "b", "tags": [{"k": 1}]}, {"text": "c", "extra": 1}, {"text": None}]
    files = [write(tmp_path / f"s{number}.jsonl", json_lines([row])) for number, row in enumerate(rows)]
    dataset, counts = load_documents(train_file=files)
    assert dataset["text"][:] == ["a", "b", "c"]
    assert str(counts) == "3 documents from 4 files, 1 dropped (1 null)"


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "lines.json", "a.csv", "a.tsv", "a.parquet"])
def test_missing_column_lists_those_present(tmp_path, name):
    if name == "a.parquet":
        pq.write_table(pa.table({"id": [1], "text": ["a"]}), tmp_path / name)
    else:
        write(tmp_path / name, CONTENT[name])
    assert "no column 'body'; columns present: id, text" in refusal(tmp_path / name, text_column_name="body")


@pytest.mark.parametrize("indent", [None, 2])
def test_nested_json_is_refused_as_missing_the_column(tmp_path, indent):
    path = write(tmp_path / "a.json", json.dumps({"data": [{"text": "a"}]}, indent=indent))
    assert "no column 'text'; columns present: data" in refusal(path)


@pytest.mark.parametrize(
    "value, name", [(3, "a number"), (["a"], "a list"), ({"a": 1}, "an object"), (True, "boolean")]
)
def test_text_that_is_no_string_names_file_and_line(tmp_path, value, name):
    path = write(tmp_path / "a.jsonl", json_lines([{"text": "a"}, {"text": value}]))
    message = refusal(path)
    assert f"{path}, line 2:" in message and name in message


def test_parquet_text_column_must_hold_text(tmp_path):
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "a.parquet")
    assert "row 1" in refusal(tmp_path / "a.parquet")


@pytest.mark.parametrize("bad", ['{"text": "cut off', '"a string"', "[1]", "[" * 100_000, "text"])
def test_malformed_json_line_names_file_and_line(tmp_path, bad):
    path = write(tmp_path / "a.jsonl", '{"text": "a"}\n\n' + bad)
    assert f"{path}, line 3:" in refusal(path)


@pytest.mark.parametrize(
    "text, line", [('[{"text": "a"},\n{"text": }]', 2), ('{"text": "a"}\n{"text"', 2), ('{"te', 1)]
)
def test_malformed_json_file_names_the_line(tmp_path, text, line):
    assert f"line {line}:" in refusal(write(tmp_path / "a.json", text))


def test_half_a_surrogate_pair_in_json_is_bad_text(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "\\ud83d\\ude00"}\n{"text": "cut \\ud83d"}\n')
    assert "line 2" in refusal(path)
    assert read(path, encoding_errors="replace") == (
        ["😀", "cut \ufffd"],
        CorpusCounts(files=1, documents=2, undecodable=1),
    )


def test_csv_fields_may_be_long_and_hold_line_ends(tmp_path):
    text = "first\nsecond\r\n" + "x" * 200_000
    documents, _ = read(write(tmp_path / "a.csv", as_csv([["text"], [text]])))
    assert documents == [text]


@pytest.mark.parametrize("row", ["1,a text, with a comma", '1,"never closed\n2,b', '1,"closed" early'])
def test_csv_row_that_would_lose_text_names_its_line(tmp_path, row):
    assert "line 3:" in refusal(write(tmp_path / "a.csv", f"id,text\n0,fine\n{row}\n3,c\n"))


def test_csv_row_without_its_last_fields_is_null(tmp_path):
    assert read(write(tmp_path / "a.csv", "id,text\n1,a,,\n2\n\n"))[1] == CorpusCounts(1, 1, blank=1, null=1)


def test_title_is_put_before_a_text_that_does_not_begin_with_it(tmp_path):
    rows = [("T", "text"), ("Text", "Text begins"), (None, "none"), (" ", "blank"), ("T", "")]
    path = write(tmp_path / "a.jsonl", json_lines({"title": title, "text": text} for title, text in rows))
    assert read(path, title_column_name="title")[0] == ["T text", "Text begins", "none", "blank"]
    assert "no column 'head'" in refusal(path, title_column_name="head")


def test_documents_are_read_lazily(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "a"}\nbroken\n')
    assert next(read_documents([path])) == "a"


# --- datasets ---


@pytest.mark.parametrize("content", ["", "\n \n\u3000\n"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.json", "a.csv"])
@pytest.mark.parametrize("streaming", [False, True])
def test_nothing_usable_is_an_error_that_names_the_file(tmp_path, content, name, streaming):
    path = write(tmp_path / name, content)
    with pytest.raises(InputError, match=r"a\.\w+.*: (0 usable passages \(\d blank, 0 null\)|no column)"):
        load_documents(train_file=path, streaming=streaming)


def test_input_error_is_not_buried_in_an_error_of_datasets(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "a"}\n{"text": 1}\n')
    with pytest.raises(InputError, match="line 2"):
        load_documents(train_file=path)


def test_second_call_reuses_the_cache_with_the_same_counts(tmp_path, monkeypatch):
    path = write(tmp_path / "a.txt", "a\n\nb\n")
    first, counts = load_documents(train_file=str(path))
    monkeypatch.setattr("retrieval_pretraining.corpus.read_documents", None)  # reading again would fail
    second, counts_again = load_documents(train_file=[path])
    assert second.cache_files == first.cache_files and second["text"][:] == ["a", "b"]
    assert counts_again == counts == CorpusCounts(files=1, documents=2, blank=1)


def test_changed_file_or_option_is_read_again(tmp_path):
    path = write(tmp_path / "a.txt", "a\nb\n")
    assert load_documents(train_file=path)[0]["text"][:] == ["a", "b"]
    assert load_documents(train_file=path, max_samples=1)[0]["text"][:] == ["a"]
    write(path, "c\nd\n")  # of the same size
    os.utime(path, ns=(0, 0))
    assert load_documents(train_file=path)[0]["text"][:] == ["c", "d"]


def test_counts_survive_the_loss_of_their_file(tmp_path):
    path = write(tmp_path / "a.txt", "a\n\nb\n")
    load_documents(train_file=path, cache_dir=tmp_path / "cache")
    for file in (tmp_path / "cache" / "retrieval_pretraining").iterdir():
        file.unlink()
    _, counts = load_documents(train_file=path, cache_dir=tmp_path / "cache")
    assert counts == CorpusCounts(files=1, documents=2, blank=1)


def test_streaming_reads_on_demand_and_shards_by_file(tmp_path):
    write(tmp_path / "a.jsonl", '{"text": "a"}\nbroken\n')
    write(tmp_path / "b.jsonl", '{"text": "b"}\n')
    stream, counts = load_documents(train_file=tmp_path, streaming=True)
    assert next(iter(stream)) == {"text": "a"}
    assert str(counts) == "documents streamed from 2 files, not counted"
    assert [row["text"] for row in stream.shard(2, 1)] == ["b"]
    with pytest.raises(InputError, match="line 2"):
        list(stream)


def test_stream_ends_after_max_samples(tmp_path):
    stream, _ = load_documents(train_file=write(tmp_path / "a.txt", "a\nb\nc\n"), streaming=True, max_samples=2)
    assert [row["text"] for row in stream] == ["a", "b"]


def test_workers_share_a_stream_without_repeats(tmp_path):
    from torch.utils.data import DataLoader

    for number in range(3):
        write(tmp_path / f"{number}.txt", "\n".join(PASSAGES[number::3]))
    stream, _ = load_documents(train_file=tmp_path, streaming=True)
    seen = [text for batch in DataLoader(stream, batch_size=4, num_workers=2) for text in batch["text"]]
    assert sorted(seen) == sorted(PASSAGES)


@pytest.mark.parametrize("streaming", [False, True])
def test_hub_dataset_is_cleaned_like_files(tmp_path, streaming):
    # `load_dataset` takes a local folder for a dataset: no network is needed to try the path.
    rows = {"title": ["T", None, "U", "V"], "body": ["a", " ", None, "b"], "other": [1, 2, 3, 4]}
    pq.write_table(pa.table(rows), tmp_path / "train.parquet")
    options = {"dataset_name": str(tmp_path), "text_column_name": "body", "streaming": streaming}
    dataset, counts = load_documents(title_column_name="title", **options)
    assert list(dataset) == [{"text": "T a"}, {"text": "V b"}]
    if not streaming:
        assert counts == CorpusCounts(documents=2, blank=1, null=1)
    assert list(load_documents(max_samples=1, **options)[0]) == [{"text": "a"}]
    with pytest.raises(InputError, match="no column 'text'; columns present: title, body, other"):
        load_documents(dataset_name=str(tmp_path), streaming=streaming)


@pytest.mark.parametrize(
    "options", [{}, {"train_file": "a.txt", "dataset_name": "b"}, {"train_file": "a.txt", "max_samples": 0}]
)
def test_contradicting_options_are_refused(options):
    with pytest.raises(InputError, match="give"):
        load_documents(**options)


def test_unknown_split_of_a_dataset_is_an_input_error(tmp_path):
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "train.parquet")
    with pytest.raises(InputError, match="split test"):
        load_documents(dataset_name=str(tmp_path), split="test")
