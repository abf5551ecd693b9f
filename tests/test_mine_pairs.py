"""The door: documents in, a folder of pairs and one screen of counts out, and one clear line for every mistake."""

import csv
import gzip
import json
import re
import runpy
import sys
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from documents_for_tests import chinese_documents, write_rows

import mine_pairs
from retrieval_pretraining.pair_files import read_pairs

MOTOR = "永磁同步电机控制"
SENTENCES = [
    f"本文研究{MOTOR}方法。",
    "天气很好。",
    "围网选用包塑钢丝。",
    f"{MOTOR}需要模型。",
    "Something else entirely.",
    "The end of it.",
]
TEXT = "\n".join("".join(SENTENCES[begin : begin + 2]) for begin in (0, 2, 4))
CODE = "__import__('os').system('touch pwn')"


@pytest.fixture(autouse=True)
def private_place(tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def door(*flags, **named) -> int:
    named = [word for name, value in named.items() for word in (f"--{name}", str(value))]
    return mine_pairs.main([*map(str, flags), *named])


def pairs_of(folder: str, output_format: str = "parquet") -> list:
    return list(read_pairs(Path(folder) / f"pairs.{output_format}"))


def counts_of(folder: str) -> dict:
    return json.loads((Path(folder) / "counts.json").read_text(encoding="utf-8"))


def error_of(capsys) -> str:
    """What stands on the error stream besides progress bars: one line."""
    captured = capsys.readouterr()
    lines = [line for line in re.split(r"[\r\n]", captured.err) if line.strip() and "documents [" not in line]
    assert len(lines) == 1, captured.err
    assert captured.out == "" or lines[0].startswith("warning")
    return lines[0]


def written(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).glob("*") if path.suffix in (".parquet", ".jsonl", ".md"))


def test_the_command_of_the_manual(capsys):
    write_rows(Path("docs.jsonl"), [{"title": "A title", "text": TEXT}])
    command = (
        "--train_file docs.jsonl --output_dir out --strategy lcs --max_pairs_per_sentence 2 --min_span_weight 30 "
        "--min_span_weight_short 20 --output_format jsonl"
    )
    assert door(*command.split()) == 0
    (line,) = Path("out/pairs.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(line) == {
        "text": SENTENCES[0],
        "text_pair": SENTENCES[3],
        "shared_span": MOTOR,
        "document_id": "docs.jsonl:1",
        "strategy": "lcs",
    }
    counts = counts_of("out")
    assert (counts["documents"], counts["titles"], counts["sentences"]) == (1, 1, 6)
    assert (counts["candidates"], counts["pairs"], counts["left_over"]) == (1, 1, 5)
    assert counts["settings"]["min_span_weight"] == 30


def test_a_malformed_row_is_data_and_is_counted(capsys):
    good = json.dumps({"text": TEXT}, ensure_ascii=False)
    rows = [good, CODE, json.dumps({"text": f"{CODE}\nsee {CODE}"}), json.dumps({"text": {"a": CODE}})]
    Path("docs.jsonl").write_text("\n".join(rows), encoding="utf-8")
    for folder in ("one", "two"):
        assert door(train_file="docs.jsonl", output_dir=folder) == 0
    pairs = pairs_of("one")
    assert [(pair.text, pair.text_pair) for pair in pairs] == [
        (SENTENCES[0], SENTENCES[3]),
        (CODE, f"see {CODE}"),
    ]
    assert pairs == pairs_of("two"), "same seed, same pairs"
    assert counts_of("one")["dropped"]["documents_bad_line"] == 2
    assert counts_of("one")["bad_places"] == [
        "docs.jsonl, line 2: not valid JSON",
        "docs.jsonl, line 4: column 'text' holds an object where text is needed",
    ]
    assert not Path("pwn").exists()
    assert "2 unreadable, skipped: docs.jsonl, line 2: not valid JSON" in capsys.readouterr().out
    assert door(train_file="docs.jsonl", output_dir="three", on_bad_line="error") == 2
    assert error_of(capsys).startswith("error: docs.jsonl, line 2: is not valid JSON")


def test_every_format_gives_the_same_pairs():
    rows = chinese_documents(12)
    write_rows(Path("a.jsonl"), rows)
    Path("a.json").write_text(json.dumps(rows), encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(rows), "a.parquet")
    with open("a.csv", "w", encoding="gb18030", newline="") as file:
        csv.writer(file).writerows([list(rows[0]), *(row.values() for row in rows)])
    Path("a.jsonl.gz").write_bytes(gzip.compress(Path("a.jsonl").read_bytes()))
    Path("a.txt").write_text("\n\n".join(row["text"] for row in rows), encoding="utf-8")
    texts = []
    for name in ("a.jsonl", "a.json", "a.parquet", "a.csv", "a.jsonl.gz", "a.txt"):
        encoding = "gb18030" if name == "a.csv" else "utf-8"
        output = f"out {name}"
        assert door(train_file=name, output_dir=output, encoding=encoding, document_separator="blank_line") == 0
        texts.append([pair[:3] for pair in pairs_of(output)])
    assert len(texts[0]) > 20 and all(some == texts[0] for some in texts)


def test_a_recipe_is_a_whole_run_and_flags_win():
    write_rows(Path("docs.jsonl"), chinese_documents(5, sentences=20))
    recipe = "train_file: docs.jsonl\noutput_dir: out\nstrategy: random\nmax_pairs_per_document: 3\nseed: 7\n"
    Path("run.yaml").write_text(recipe)
    assert door("run.yaml", max_pairs_per_document=2) == 0
    assert len(pairs_of("out")) == 10 and {pair.strategy for pair in pairs_of("out")} == {"random"}
    assert door("run.yaml", max_pairs_per_document=2, output_dir="same") == 0
    assert door("run.yaml", max_pairs_per_document=2, output_dir="other", seed=8) == 0
    assert pairs_of("same") == pairs_of("out") != pairs_of("other")


def test_the_screen_shows_counts_and_marked_spans(capsys):
    write_rows(
        Path("docs.jsonl"),
        [
            {"title": "T", "text": f"{TEXT}\n一\n{SENTENCES[1]}\n{'长' * 600}"},
            {"text": f"İİİ THE Permanent Magnet\nthe permanent magnet {'x ' * 90}"},
            {"text": " "},
            {"text": None},
            {"text": "\n".join(f"{MOTOR}{character}" for character in "甲乙丙丁")},
        ],
    )
    assert door(train_file="docs.jsonl", output_dir="out", max_pairs_per_sentence=1) == 0
    screen = capsys.readouterr().out.splitlines()
    assert [" ".join(line.split()) for line in screen[:6]] == [
        "documents 3 1 blank ones dropped, 1 without text dropped",
        "characters 957 679 Han, 161 Latin, 117 other",
        "sentences 14 1 titles besides, 1 too long, cut, 1 too short, dropped, 1 repeated in their document, dropped",
        "candidates 9 4 dropped, a sentence being used up",
        "pairs 5",
        "left over 5 5 sentences in no pair, dropped",
    ]
    assert screen[7:9] == [f"  本文研究[{MOTOR}]方法。", f"  [{MOTOR}]需要模型。"]
    assert screen[13] == "  İİİ [THE Permanent Magnet]"
    assert screen[14].startswith("  [the permanent magnet] x x") and screen[14].endswith("x...")
    assert len(screen[13]) < 120
    assert screen[-4].startswith("The pairs are in out/pairs.parquet.")
    assert screen[-1] == '  pairs = load_dataset("out", split="train")'


@pytest.mark.parametrize("output_format", ["parquet", "jsonl"])
def test_the_folder_is_a_dataset(output_format, tmp_path):
    write_rows(Path("docs.jsonl"), chinese_documents(20))
    assert door(train_file="docs.jsonl", output_dir="out", output_format=output_format) == 0
    data = datasets.load_dataset(str(tmp_path / "out"), split="train")
    pairs = pairs_of("out", output_format)
    assert data.column_names == list(pairs[0]._fields) and list(data) == [pair._asdict() for pair in pairs]
    card = Path("out/README.md").read_text(encoding="utf-8")
    assert f"{len(pairs):,} pairs" in card and "| min_span_weight | 30 |" in card


def test_the_same_command_again_does_nothing_and_says_so(capsys):
    write_rows(Path("docs.jsonl"), chinese_documents(5))
    flags = {"train_file": "docs.jsonl", "output_dir": "out"}
    assert door(**flags) == 0
    first = capsys.readouterr().out
    Path("out/README.md").unlink()  # as if it had been stopped before that
    assert door(**flags) == 0
    said, again = capsys.readouterr().out.split("\n", 1)
    assert said == "out/pairs.parquet was mined before from the same text with the same settings: nothing to do."
    assert again == first and Path("out/README.md").exists()


def test_overwriting_gives_what_a_new_folder_would():
    write_rows(Path("docs.jsonl"), chinese_documents(5))
    assert door(train_file="docs.jsonl", output_dir="out", output_format="jsonl") == 0
    assert door(train_file="docs.jsonl", output_dir="out", seed=1, overwrite_output_dir=True) == 0
    assert door(train_file="docs.jsonl", output_dir="new", seed=1) == 0
    assert {path.name: path.read_bytes() for path in Path("out").iterdir()} == {
        path.name: path.read_bytes() for path in Path("new").iterdir()
    }


def test_a_readme_of_somebody_else_stays():
    write_rows(Path("docs.jsonl"), chinese_documents(2))
    Path("README.md").write_text("# My project\n")
    assert door(train_file="docs.jsonl", output_dir=".") == 0
    assert Path("README.md").read_text() == "# My project\n"


def test_the_script_ends_with_the_status(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["mine_pairs.py", "--train_file", "no.txt", "--output_dir", "out"])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(mine_pairs.__file__, run_name="__main__")
    assert caught.value.code == 2
    assert error_of(capsys) == "error: no.txt: no such file or folder; check the path"


# --- no pair ---


def test_one_sentence_a_document_is_a_warning_that_says_what_a_document_is(capsys):
    Path("a.txt").write_text("One sentence.\nAnother sentence.\n")
    assert door(train_file="a.txt", output_dir="out") == 0
    assert error_of(capsys) == (
        "warning: no pair: no document has two sentences. Each line of a txt file is one; "
        "--document_separator blank_line or file makes larger ones."
    )
    assert pairs_of("out") == []
    assert door(train_file="a.txt", output_dir="file", document_separator="file") == 0
    assert len(pairs_of("file")) == 1


def test_no_heavy_span_is_a_warning(capsys):
    write_rows(Path("docs.jsonl"), [{"text": "天气很好。围网选用。"}])
    assert door(train_file="docs.jsonl", output_dir="out") == 0
    assert error_of(capsys).startswith("warning: no pair: no two sentences of a document share a span")


# --- mistakes: status 2, one sentence, nothing written and nothing lost ---


@pytest.mark.parametrize(
    "flags, message",
    [
        ({"output_dir": None}, "Give --output_dir: where the pairs are written."),
        ({"train_file": None}, "Give either --train_file (files, folders or globs) or --dataset_name (on the Hub)."),
        ({"dataset_name": "x"}, "Give either --train_file (files, folders or globs) or --dataset_name (on the Hub)."),
        ({"train_file": "no.jsonl"}, "no.jsonl: no such file or folder; check the path"),
        ({"train_file": "docs.pdf"}, "docs.pdf: "),
        (
            {"train_file": "."},
            "--output_dir out lies in --train_file ., so the pairs would be read as text: give another",
        ),
        (
            {"max_pair_per_sentence": 3},
            "There is no option --max_pair_per_sentence; did you mean --max_pairs_per_sentence?",
        ),
        ({"strategy": "lsc"}, "Argument --strategy: invalid choice: 'lsc' (choose from "),
        ({"output_format": "csv"}, "Argument --output_format"),
        ({"num_workers": 0}, "--num_workers is 1 or more, not 0."),
        ({"num_workers": "two"}, "Argument --num_workers"),
        ({"max_train_samples": 0}, "--max_train_samples is 1 or more, not 0."),
        ({"min_span_weight": 10}, "--min_span_weight_short 20 is more than --min_span_weight 10"),
        ({"max_document_frequency": 2}, "--max_document_frequency is a share above 0 and at most 1, not 2.0."),
    ],
)
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_mistake_in_the_command_is_one_sentence(capsys, flags, message, overwrite):
    write_rows(Path("docs.jsonl"), chinese_documents(2))
    Path("docs.pdf").write_text("x")
    assert door(train_file="docs.jsonl", output_dir="out") == 0
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    capsys.readouterr()
    flags = {"train_file": "docs.jsonl", "output_dir": "out", "overwrite_output_dir": overwrite, **flags}
    assert door(**{name: value for name, value in flags.items() if value is not None}) == 2
    assert error_of(capsys).startswith(f"error: {message}")
    assert {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    "rows, flags, message",
    [
        ([{"body": "x"}], {}, "docs.jsonl: no column 'text'; columns present: body; name one of them with"),
        ([{"text": "x"}], {"title_column_name": "head"}, "docs.jsonl: no column 'head'; columns present: text"),
        ([{"text": "x"}], {"id_column_name": "key"}, "docs.jsonl: no column 'key'; columns present: text"),
        ([{"text": " "}, {"text": None}], {}, "docs.jsonl: 0 usable passages (1 blank, 1 null); give a corpus"),
        ([], {}, "docs.jsonl: 0 usable passages (0 blank, 0 null); give a corpus"),
        (
            [{"text": "文"}],
            {"encoding": "ascii"},
            "docs.jsonl: 0 usable passages (0 blank, 0 null, 1 bad: docs.jsonl, line 1: bytes that are not ascii)",
        ),
        (
            [{"text": "文"}],
            {"encoding": "ascii", "on_bad_line": "error"},
            "docs.jsonl, line 1: holds bytes that are not ascii; give",
        ),
        ([{"text": "x"}], {"encoding": "klingon"}, "encoding 'klingon' is not known; try utf-8, gb18030 or utf-16"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_mistake_in_the_text_is_one_sentence(capsys, rows, flags, message, workers):
    write_rows(Path("docs.jsonl"), rows)
    assert door(train_file="docs.jsonl", output_dir="out", num_workers=workers, **flags) == 2
    assert error_of(capsys).startswith(f"error: {message}")
    assert written("out") == []


def test_a_folder_in_use_and_one_that_cannot_be_made_are_one_sentence(capsys):
    write_rows(Path("docs.jsonl"), chinese_documents(2))
    assert door(train_file="docs.jsonl", output_dir="out") == 0
    capsys.readouterr()
    assert door(train_file="docs.jsonl", output_dir="out", seed=1) == 2
    assert error_of(capsys) == (
        "error: --output_dir out holds pairs that were mined otherwise (seed changed): give another --output_dir, "
        "or --overwrite_output_dir True."
    )
    assert door(train_file="docs.jsonl", output_dir="docs.jsonl/out") == 2
    assert error_of(capsys).startswith("error: --output_dir docs.jsonl/out cannot be written to:")
