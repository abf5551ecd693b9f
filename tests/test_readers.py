import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from retrieval_pretraining.corpus import CorpusCounts, load_documents, read_documents, read_raw_documents
from retrieval_pretraining.errors import InputError


def write(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def skim(*files, **options):
    counts = CorpusCounts()
    return list(read_documents(files, on_bad_line="skip", counts=counts, **options)), counts


# --- bad lines ---

DEEP = "[" * 100_000
BAD_JSON = ['{"text": "cut off', "text", DEEP, '"a string"', "[1]", "null", '{"text": 3}', '{"text": ["a"]}']


@pytest.mark.parametrize("bad", BAD_JSON)
def test_a_bad_json_line_is_skipped_and_counted_if_wanted(tmp_path, bad):
    path = write(tmp_path / "docs.jsonl", f'{{"text": "a"}}\n\n{bad}\n{{"text": "b"}}\n')
    documents, counts = skim(path)
    assert documents == ["a", "b"]
    assert (counts.documents, counts.blank, counts.null, counts.bad) == (2, 1, 0, 1)
    assert counts.bad_places[0].startswith("docs.jsonl, line 3: ")
    with pytest.raises(InputError, match="line 3"):
        list(read_documents([path]))


def test_counts_show_the_first_places_of_bad_lines_without_their_data(tmp_path):
    path = write(tmp_path / "docs.jsonl", '{"text": "a"}\nsecret\n["secret"]\n{"text": 7}\n{"secret\n')
    counts = skim(path)[1]
    assert str(counts) == (
        "1 document from 1 file, 0 dropped, 4 bad lines skipped (docs.jsonl, line 2: not valid JSON; docs.jsonl, "
        "line 3: a list, not an object; docs.jsonl, line 4: column 'text' holds a number where text is needed; ...)"
    )
    one = skim(write(path, '{"text": "a"}\nsecret\n'))[1]
    assert str(one).endswith("1 bad line skipped (docs.jsonl, line 2: not valid JSON)")


def test_items_of_a_json_array_that_are_no_objects_are_skipped(tmp_path):
    documents, counts = skim(write(tmp_path / "a.json", json.dumps([{"text": "a"}, 3, {"text": "b"}])))
    assert documents == ["a", "b"] and counts.bad_places == ["a.json, item 2: a number, not an object"]


@pytest.mark.parametrize("name, comma", [("a.csv", ","), ("a.tsv", "\t")])
@pytest.mark.parametrize(
    "bad, reason", [('1,"closed" early', "broken quotes"), ("1,a text, with a comma", "3 fields under a header of 2")]
)
def test_a_bad_csv_row_is_skipped_and_reading_goes_on_behind_it(tmp_path, name, comma, bad, reason):
    content = f"id,text\n0,fine\n{bad}\n3,c\n".replace(",", comma)
    documents, counts = skim(write(tmp_path / name, content))
    assert documents == ["fine", "c"] and counts.bad == 1 and counts.bad_places == [f"{name}, line 3: {reason}"]


def test_lines_that_an_open_quote_took_with_it_are_counted(tmp_path):
    documents, counts = skim(write(tmp_path / "a.csv", 'id,text\n0,a\n1,"open\n2,b\n3,"c"\n4,d\n'))
    assert documents == ["a", "d"]
    assert counts.bad == 3 and counts.bad_places == ["a.csv, line 3: broken quotes"]


def test_an_open_quote_in_the_last_line_costs_that_line_only(tmp_path):
    documents, counts = skim(write(tmp_path / "a.csv", 'id,text\n0,a\n1,"open\n'))
    assert documents == ["a"] and counts.bad == 1


@pytest.mark.parametrize(
    "name, content, place",
    [
        ("a.csv", 'id,text\n0,a\n1,"open\n2,b\n3,c\n', "line 3"),  # the rest of the file is inside the quote
        ("a.csv", 'id,"te"xt\n0,a\n', "line 1"),
        ("a.csv", "id,body\n0,a\n", "no column 'text'"),
        ("a.json", '[{"text": "a"},\n{"text": }]', "line 2"),
        ("a.jsonl.gz", b"not compressed", "a.jsonl.gz"),
        ("a.parquet", b"not parquet", "a.parquet"),
    ],
)
def test_what_is_wrong_with_a_whole_file_is_an_error_even_if_lines_are_skipped(tmp_path, name, content, place):
    with pytest.raises(InputError, match=place):
        skim(write(tmp_path / name, content))


@pytest.mark.parametrize("streaming", [False, True])
def test_nothing_but_bad_lines_is_an_error_that_says_how_many(tmp_path, streaming):
    path = write(tmp_path / "a.jsonl", "x\ny\n")
    with pytest.raises(InputError, match=r"0 usable passages \(0 blank, 0 null, 2 bad: a.jsonl, line 1: not valid"):
        load_documents(train_file=path, on_bad_line="skip", streaming=streaming, cache_dir=tmp_path / "cache")


def test_a_parquet_column_of_numbers_has_only_bad_rows(tmp_path):
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "a.parquet")
    documents, counts = skim(tmp_path / "a.parquet")
    assert documents == [] and counts.bad == 2 and counts.bad_places[0].startswith("a.parquet, row 1: column 'text'")


def test_bad_lines_are_counted_with_the_documents_in_the_cache(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "a"}\nx\n')
    options = {"train_file": path, "on_bad_line": "skip", "cache_dir": tmp_path / "cache"}
    counts = [load_documents(**options)[1] for _ in range(2)]
    places = ["a.jsonl, line 2: not valid JSON"]
    assert counts == [CorpusCounts(files=1, documents=1, bad=1, bad_places=places)] * 2
    with pytest.raises(InputError, match="line 2"):  # other options, other documents
        load_documents(**{**options, "on_bad_line": "error"})


def test_counts_that_were_cached_before_bad_lines_were_counted_still_load(tmp_path):
    path = write(tmp_path / "a.txt", "a\n\n")
    load_documents(train_file=path, cache_dir=tmp_path / "cache")
    (file,) = (tmp_path / "cache/retrieval_pretraining").iterdir()
    new = json.loads(file.read_text())
    file.write_text(json.dumps({name: new[name] for name in ("files", "documents", "blank", "null", "undecodable")}))
    _, counts = load_documents(train_file=path, cache_dir=tmp_path / "cache")
    assert counts == CorpusCounts(files=1, documents=1, blank=1)


@pytest.mark.parametrize("option", ["on_bad_line", "document_separator"])
def test_unknown_choice_is_refused_with_those_that_exist(tmp_path, option):
    with pytest.raises(InputError, match=f"{option} 'maybe' is not known; use .* or "):
        list(read_documents([write(tmp_path / "a.txt", "a")], **{option: "maybe"}))


# --- bad bytes ---


@pytest.mark.parametrize(
    "name, content",
    [
        ("a.txt", "一\n二\n坏\n四\n"),
        ("a.jsonl", '{"text": "一"}\n{"text": "二"}\n{"text": "坏"}\n{"text": "四"}\n'),
        ("a.json", '[{"text": "一"},\n{"text": "二"},\n{"text": "坏"},\n{"text": "四"}]'),
        ("a.csv", "text\n一\n二\n坏\n四\n"),
        ("a.tsv", "text\n一\n二\n坏\n四\n"),
    ],
)
def test_a_row_with_a_bad_byte_is_an_error_or_skipped_or_repaired(tmp_path, name, content):
    path = write(tmp_path / name, content.encode().replace("坏".encode(), b"\xffbad"))
    place = {"a.json": "item 3", "a.csv": "line 4", "a.tsv": "line 4"}.get(name, "line 3")
    line = "line 3" if name == "a.json" else place
    with pytest.raises(InputError, match=rf"{name}, {line}: holds bytes that are not utf-8; give the file's encoding"):
        list(read_documents([path]))
    documents, counts = skim(path)
    assert documents == ["一", "二", "四"]
    assert counts.bad == 1 and counts.bad_places == [f"{name}, {place}: bytes that are not utf-8"]
    documents, counts = skim(path, encoding_errors="replace")
    assert documents == ["一", "二", "\ufffdbad", "四"] and (counts.bad, counts.undecodable) == (0, 1)


@pytest.mark.parametrize("separator, left", [("line", ["a", "c", "d"]), ("blank_line", ["c\nd"]), ("file", [])])
def test_what_is_skipped_for_a_bad_byte_is_the_document(tmp_path, separator, left):
    documents, counts = skim(write(tmp_path / "a.txt", b"a\n\xff\n\nc\nd\n"), document_separator=separator)
    assert documents == left and counts.bad == 1


def test_a_bad_byte_in_a_column_that_nobody_asked_for_is_no_bad_row(tmp_path):
    for name, content in (("a.jsonl", b'{"other": "\xff", "text": "a"}\n'), ("a.csv", b"oth\xffer,text\n\xff,a\n")):
        documents, counts = skim(write(tmp_path / name, content))
        assert documents == ["a"] and counts.bad == 0


def test_a_column_whose_name_holds_a_bad_byte_can_be_printed(tmp_path):
    with pytest.raises(InputError, match="columns present: te\ufffdxt"):
        skim(write(tmp_path / "a.csv", b"te\xffxt\na\n"))


def test_half_a_surrogate_pair_is_skipped_with_its_row(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "\\ud83d\\ude00"}\n{"text": "cut \\ud83d"}\n')
    documents, counts = skim(path)
    assert documents == ["😀"]
    assert counts.bad_places == ["a.jsonl, line 2: half of a \\uD800-\\uDFFF pair"]


def test_a_wrong_encoding_is_no_matter_of_bad_lines(tmp_path):
    path = write(tmp_path / "a.txt", "中文文本\nascii\n".encode("gb18030") * 20)
    with pytest.raises(InputError, match=r"line 19: is the 10th line with bytes that are not utf-8; give"):
        skim(path)
    assert len(skim(path, encoding="gb18030")[0]) == 40
    # Many bad lines among good ones are damage.
    lines = [("好".encode() if number % 2 else b"\xff") for number in range(60)]
    documents, counts = skim(write(tmp_path / "b.txt", b"\n".join(lines)))
    assert len(documents) == counts.bad == 30


# --- compressed files ---


def zst(content: bytes) -> bytes:
    return pa.compress(content, codec="zstd", asbytes=True)


@pytest.mark.parametrize("kind", ["txt", "jsonl", "csv"])
def test_zst_is_read_like_any_other_packed_file(tmp_path, kind):
    content = {"txt": "一\nb\n", "csv": "text\n一\nb\n", "jsonl": '{"text": "一"}\n{"text": "b"}\n'}[kind].encode()
    assert skim(write(tmp_path / f"a.{kind}.zst", zst(content)))[0] == ["一", "b"]
    assert skim(write(tmp_path / "folder" / f"b.{kind}.zst", zst(content) + zst(content)))[0][:2] == ["一", "b"]


def test_a_cut_off_zst_file_is_named(tmp_path):
    packed = zst("\n".join(map(str, range(50_000))).encode())
    for content in (packed[: len(packed) // 2], b"not packed at all"):
        with pytest.raises(InputError, match=r"a.txt.zst: cannot be read beyond line \d+ .*; is the file whole\?"):
            skim(write(tmp_path / "a.txt.zst", content))


def test_a_zst_file_is_streamed(tmp_path):
    packed = zst(b"first\n" + b"x\n" * 2_000_000)
    path = write(tmp_path / "a.txt.zst", packed[: len(packed) - 10])  # its end is missing
    assert next(read_documents([path])) == "first"


# --- large documents ---


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv", "a.parquet"])
def test_a_very_long_document_is_one_document(tmp_path, name):
    text = "词语 word " * 100_000  # a million characters
    if name == "a.parquet":
        pq.write_table(pa.table({"text": [text, "short"]}), tmp_path / name)
    else:
        content = {"a.txt": f"{text}\nshort\n", "a.csv": f"text\n{text}\nshort\n"}
        rows = "".join(json.dumps({"text": each}) + "\n" for each in (text, "short"))
        write(tmp_path / name, content.get(name, rows))
    assert skim(tmp_path / name)[0] == [text, "short"]


# --- what a document of a text file is ---

PARAGRAPHS = "\n\u3000\nfirst line\nsecond  line\r\n\n\n \t\nthird\n\nfourth"


@pytest.mark.parametrize(
    "separator, expected",
    [
        ("line", {3: "first line", 4: "second  line", 8: "third", 10: "fourth"}),
        ("blank_line", {3: "first line\nsecond  line", 8: "third", 10: "fourth"}),
        ("file", {1: PARAGRAPHS}),
    ],
)
def test_documents_of_a_text_file_are_lines_paragraphs_or_the_file(tmp_path, separator, expected):
    path = write(tmp_path / "a.txt", PARAGRAPHS)
    options = {"document_separator": separator}
    documents = list(read_raw_documents([path], **options))
    assert {int(document.document_id.split(":")[1]): document.text for document in documents} == expected
    assert list(read_documents([path], **options)) == list(expected.values())
    dataset, _ = load_documents(train_file=path, cache_dir=tmp_path / "cache", **options)
    assert dataset["text"][:] == list(expected.values())


@pytest.mark.parametrize("separator", ["blank_line", "file"])
@pytest.mark.parametrize("content", ["", "\n \n\u3000\n"])
def test_a_text_file_without_text_has_no_document_however_it_is_cut(tmp_path, separator, content):
    path = write(tmp_path / "a.txt", content)
    assert list(read_documents([path], document_separator=separator)) == []
    with pytest.raises(InputError, match="0 usable passages"):
        load_documents(train_file=path, document_separator=separator, cache_dir=tmp_path / "cache")


def test_the_separator_changes_nothing_but_text_files(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "a"}\n\n{"text": "b"}\n')
    assert list(read_documents([path], document_separator="file")) == ["a", "b"]
