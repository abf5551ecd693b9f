"""Cleaning where documents are read: the same at every door, part of every cache key, refused where it cannot be."""

import json
from dataclasses import replace
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from documents_for_tests import chinese_documents, write_rows
from tokenizers_for_tests import SENTENCES, bert_tokenizer
from toy_models import encoder_config
from transformers import BertForMaskedLM

import mine_pairs
import run_pretrain
from retrieval_pretraining import mined_pairs
from retrieval_pretraining.cleaning_settings import CleaningSettings
from retrieval_pretraining.corpus import iterate_documents, load_documents, read_documents, read_raw_documents
from retrieval_pretraining.corpus_cache import corpus_fingerprint
from retrieval_pretraining.corpus_counts import CorpusCounts
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.mined_pairs import load_mined_pairs, mine_to_folder
from retrieval_pretraining.mining_settings import MiningSettings
from retrieval_pretraining.pair_corpus import load_mined_documents, load_pairs
from retrieval_pretraining.pair_files import read_pairs
from retrieval_pretraining.shared_corpus import SharedCorpus, Stretch

EXACT = CleaningSettings(deduplicate_documents="exact")
TITLED = CleaningSettings(html_to_text=True, min_characters=2)


@pytest.fixture(autouse=True)
def private_place(tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


def texts_file(*texts: str, name: str = "a.txt") -> str:
    Path(name).write_text("\n".join(texts), encoding="utf-8")
    return name


# --- Reading ------------------------------------------------------------------------------------------------------


def test_every_way_of_reading_files_cleans_and_counts_alike():
    file = texts_file("<b>one</b>", "x", "", "two", "two")
    cleaning = replace(TITLED, deduplicate_documents="exact")
    expected = CorpusCounts(
        files=1, documents=2, blank=1, changed={"HTML": 1}, dropped={"too short": 1, "duplicate": 1}
    )
    counts = [CorpusCounts() for _ in range(3)]
    read = [
        list(read_documents([file], cleaning=cleaning, counts=counts[0])),
        [document.text for document in read_raw_documents([file], cleaning=cleaning, counts=counts[1])],
        [document.text for document in iterate_documents(train_file=file, cleaning=cleaning, counts=counts[2])],
    ]
    dataset, loaded = load_documents(train_file=file, cleaning=cleaning)
    assert [*read, dataset["text"][:]] == [["one", "two"]] * 4
    assert [*counts, loaded] == [expected] * 4
    assert str(loaded) == "2 documents from 1 file, 3 dropped (1 blank, 1 too short, 1 duplicate)"


def test_characters_are_counted_by_script_in_what_is_left():
    counts = CorpusCounts()
    rows = [{"title": "题", "text": "<b>汉字</b> ab1"}, {"text": "汉字 ab1"}, {"text": "x"}]
    list(iterate_documents(train_file=write_rows(Path("a.jsonl"), rows), cleaning=TITLED, counts=counts))
    assert counts.characters == {"Han": 5, "Latin": 4, "digits": 2, "other": 2}


def test_a_title_is_cleaned_before_it_is_put_before_the_text():
    file = write_rows(Path("a.jsonl"), [{"title": "<i>T</i>", "text": "<p>text</p>"}, {"title": "<br>", "text": "no"}])
    dataset, _ = load_documents(train_file=file, title_column_name="title", cleaning=TITLED)
    assert dataset["text"][:] == ["T text", "no"]


def test_so_many_documents_are_used_as_are_left():
    file = texts_file("a", "two", "b", "three", "four")
    for documents in (
        [document.text for document in iterate_documents(train_file=file, cleaning=TITLED, max_samples=2)],
        load_documents(train_file=file, cleaning=TITLED, max_samples=2)[0]["text"][:],
    ):
        assert documents == ["two", "three"]


def test_duplicates_are_found_over_all_files_and_once_a_reading():
    Path("in").mkdir()
    texts_file("one", "two", name="in/a.txt"), texts_file("two", "three", name="in/b.txt")
    for _ in range(2):
        documents = list(iterate_documents(train_file="in", cleaning=EXACT))
        assert [document.document_id for document in documents] == ["a.txt:1", "a.txt:2", "b.txt:2"]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_hub_dataset_is_cleaned_as_files_are(tmp_path, streaming):
    # `load_dataset` takes a local folder for a dataset: no network is needed to try the path.
    pq.write_table(
        pa.table({"text": ["<b>one</b>", "x", None, "two"], "title": ["<i>T</i>", "", "", None]}), "a.parquet"
    )
    options = {"dataset_name": str(tmp_path), "cleaning": TITLED}
    dataset, counts = load_documents(title_column_name="title", streaming=streaming, **options)
    assert [row["text"] for row in dataset] == ["T one", "two"]
    if not streaming:
        expected = CorpusCounts(documents=2, null=1, changed={"HTML": 1}, dropped={"too short": 1})
        again = CorpusCounts()
        list(iterate_documents(counts=again, **options))
        assert counts == again == load_documents(title_column_name="title", **options)[1] == expected


def test_nothing_left_is_an_error_that_says_why():
    file = texts_file("a", "", "b")
    for streaming in (False, True):
        with pytest.raises(InputError, match=r"a.txt: 0 usable passages \(1 blank, 0 null, 2 too short\)"):
            load_documents(train_file=file, cleaning=TITLED, streaming=streaming)
    with pytest.raises(InputError, match="2 too short"):
        list(iterate_documents(train_file=file, cleaning=TITLED))


# --- Caches -------------------------------------------------------------------------------------------------------


def test_other_settings_are_another_text_and_the_same_ones_are_not_read_again(monkeypatch):
    file = texts_file("<b>one</b>", "x", "one")
    loaded = [load_documents(train_file=file, cleaning=cleaning) for cleaning in (None, TITLED, EXACT)]
    assert [dataset["text"][:] for dataset, _ in loaded] == [
        ["<b>one</b>", "x", "one"],
        ["one", "one"],
        ["<b>one</b>", "x", "one"],
    ]
    monkeypatch.setattr("retrieval_pretraining.corpus.read_documents", None)  # reading again would fail
    again = [load_documents(train_file=file, cleaning=cleaning) for cleaning in (None, TITLED, EXACT)]
    assert [counts for _, counts in again] == [counts for _, counts in loaded]
    assert [counts.characters for _, counts in again] == [counts.characters for _, counts in loaded]


def test_the_fingerprint_of_a_corpus_is_as_before_where_nothing_is_cleaned():
    file = texts_file("one")
    plain = corpus_fingerprint(train_file=file)
    assert corpus_fingerprint(train_file=file, cleaning=CleaningSettings()) == plain
    prints = [corpus_fingerprint(train_file=file, cleaning=cleaning) for cleaning in (TITLED, EXACT)]
    assert plain != prints[0] != prints[1] != plain
    assert json.loads(json.dumps(prints)) == prints


# --- Streams and tasks --------------------------------------------------------------------------------------------


def test_a_stream_is_cleaned_document_by_document():
    stream, _ = load_documents(train_file=texts_file("<b>one</b>", "x", "two"), cleaning=TITLED, streaming=True)
    for _ in range(2):
        assert [row["text"] for row in stream] == ["one", "two"]


@pytest.mark.parametrize("kind", ["exact", "near"])
def test_duplicates_of_a_stream_are_refused(kind):
    settings = CleaningSettings(deduplicate_documents=kind)
    with pytest.raises(InputError, match=r"--deduplicate_documents compares .* leave out --streaming"):
        load_documents(train_file=texts_file("a"), cleaning=settings, streaming=True)


def test_tasks_that_share_a_corpus_clean_it_and_refuse_duplicates():
    source = {"train_file": texts_file("<b>one</b>", "x", "one"), "cleaning": TITLED}
    corpus, counts = SharedCorpus.from_source(source), CorpusCounts()
    assert [document.text for document in corpus.read(Stretch(0, 1), counts)] == ["one", "one"]
    assert counts.dropped == {"too short": 1} and counts.changed == {"HTML": 1}
    fingerprint = corpus.fingerprint()
    assert json.loads(json.dumps(fingerprint)) == fingerprint
    plain = SharedCorpus.from_source({**source, "cleaning": CleaningSettings()})
    assert "cleaning" not in plain.fingerprint() and fingerprint["cleaning"]["min_characters"] == 2
    with pytest.raises(InputError, match="deduplicate_documents cannot be shared by tasks"):
        SharedCorpus.from_source({**source, "cleaning": EXACT})


# --- Mining -------------------------------------------------------------------------------------------------------


def mined(folder: str, source: dict, **options):
    return mine_to_folder(source, folder, MiningSettings(**options), show_progress=False)


def test_the_pairs_are_those_of_the_cleaned_text(monkeypatch):
    monkeypatch.setattr(mined_pairs, "PART_CHARACTERS", 200)
    rows = chinese_documents(12)
    # A copy far behind its original, in another part.
    dirty = [{**row, "text": f"<p>{row['text']}</p>"} for row in rows] + [{"id": "copy", "text": rows[0]["text"]}]
    cleaning = CleaningSettings(html_to_text=True, deduplicate_documents="near")
    source = {"train_file": write_rows(Path("dirty.jsonl"), dirty), "cleaning": cleaning}
    expected = mined("clean", {"train_file": write_rows(Path("clean.jsonl"), rows)}, max_document_frequency=0.5)
    one = mined("one", source, max_document_frequency=0.5)
    two = mine_to_folder(source, "two", MiningSettings(max_document_frequency=0.5), num_workers=2, show_progress=False)
    pairs = [list(read_pairs(each.file)) for each in (expected, one, two)]
    assert pairs[0] and pairs[0] == pairs[1] == pairs[2]
    assert one.counts == two.counts
    assert one.counts["documents"] == 12 and one.counts["dropped"]["documents_duplicate"] == 1
    assert one.counts["documents_changed"] == {"HTML": 12}
    assert one.counts["characters"] == expected.counts["characters"]
    assert one.counts["settings"]["html_to_text"] is True
    assert "html_to_text" not in expected.counts["settings"]


def test_pairs_of_uncleaned_text_are_not_taken_for_those_of_cleaned_text():
    source = {"train_file": write_rows(Path("docs.jsonl"), chinese_documents(3))}
    mined("out", source)
    assert mined("out", {**source, "cleaning": CleaningSettings()}).was_there
    with pytest.raises(InputError, match=r"holds pairs that were mined otherwise \(corpus changed\)"):
        mined("out", {**source, "cleaning": EXACT})
    said = []
    for cleaning in (None, EXACT, EXACT):
        load_mined_pairs({**source, "cleaning": cleaning}, MiningSettings(), say=said.append, show_progress=False)
    assert [line.split(" (")[0].split(" ", 2)[2] for line in said] == [
        "mined",
        "mined",
        "found in the cache, nothing was mined",
    ]


def test_who_trains_on_mined_pairs_learns_what_was_read():
    rows = chinese_documents(4)
    source = {"train_file": write_rows(Path("docs.jsonl"), [*rows, rows[0], {"text": " "}]), "cleaning": EXACT}
    for _ in range(2):  # mined, and found in the cache
        counts = CorpusCounts()
        load_pairs(source, MiningSettings(), strategies=["lcs", "random"], counts=counts, say=str, show_progress=False)
        assert counts == CorpusCounts(files=1, documents=4, blank=1, dropped={"duplicate": 1})
        assert counts.characters["Han"] > 100
        documents, read = load_mined_documents(source)
        assert len(documents) == 4 and read == counts


def test_pairs_that_are_given_are_not_cleaned_in_silence():
    file = write_rows(Path("pairs.jsonl"), [{"text": "a", "text_pair": "b"}])
    load_pairs({"train_file": file, "cleaning": CleaningSettings()}, MiningSettings(), say=str)
    with pytest.raises(InputError, match="--deduplicate_documents: the text has pairs of its own"):
        load_pairs({"train_file": file, "cleaning": EXACT}, MiningSettings(), say=str)


# --- The doors ----------------------------------------------------------------------------------------------------


def test_mine_pairs_cleans_and_shows_it_on_its_screen(capsys):
    rows = chinese_documents(3)
    write_rows(Path("docs.jsonl"), [*rows, rows[1], {"text": "一"}, {"text": "<p>二三</p>"}])
    flags = "--train_file docs.jsonl --output_dir out --html_to_text --min_characters 2 --deduplicate_documents exact"
    assert mine_pairs.main(flags.split()) == 0
    documents, characters = (" ".join(line.split()) for line in capsys.readouterr().out.splitlines()[:2])
    assert documents == "documents 4 1 duplicate, dropped, 1 too short, dropped, 1 changed (HTML)"
    assert characters.startswith("characters ") and "Han" in characters
    card = Path("out/README.md").read_text(encoding="utf-8")
    assert "| deduplicate_documents | exact |" in card and "1 duplicate, dropped" in card
    assert mine_pairs.main(flags.split()) == 0  # there already
    assert "nothing to do" in capsys.readouterr().out


@pytest.mark.parametrize(
    "flag, message",
    [("--min_characters -1", "--min_characters is 1 or more"), ("--keep_scripts klingon", "is no script of Unicode")],
)
def test_a_mistake_is_one_sentence_at_both_doors(capsys, flag, message):
    texts_file("a")
    common = ["--train_file", "a.txt", "--output_dir", "out", *flag.split()]
    assert mine_pairs.main(common) == 2
    assert run_pretrain.main([*common, "--config_name", "bert", "--tokenizer_vocab_size", "99"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2 and all(line.startswith("error: --") and message in line for line in errors)


@pytest.fixture(scope="module")
def backbone(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("backbone")
    torch.manual_seed(0)
    BertForMaskedLM(encoder_config(vocab_size=len(bert_tokenizer()))).save_pretrained(folder)
    bert_tokenizer().save_pretrained(folder)
    return folder


def test_run_pretrain_cleans_shows_one_screen_and_says_so_on_the_card(backbone, capsys):
    texts_file(*SENTENCES[:10], f"<p>{SENTENCES[0]}</p>", "短")
    command = ["--model_name_or_path", str(backbone), "--train_file", "a.txt", "--output_dir", "out", "--use_cpu"]
    command += ["--max_steps", "1", "--save_strategy", "no", "--disable_tqdm", "True"]
    cleaning = "--html_to_text --min_characters 2 --deduplicate_documents near".split()
    assert run_pretrain.main(command + cleaning) == 0
    printed = capsys.readouterr().out
    assert "text: 10 documents from 1 file, 2 dropped (1 duplicate, 1 too short)" in printed
    screen = printed[printed.index("10 documents kept") :].splitlines()
    assert screen[1:3] == ["2 dropped: 1 duplicate, 1 too short", "changed: 1 HTML"]
    assert screen[3].split() == ["characters", "tokens"]
    assert screen[4].startswith("Han ") and any(line.startswith("tokens a passage: ") for line in screen)
    assert printed.count("documents kept") == 1
    card = Path("out/README.md").read_text(encoding="utf-8")
    assert "| cleaned | html_to_text, min_characters 2, deduplicate_documents near |" in card
    kept = json.loads(Path("out/_run_arguments.json").read_text())
    assert kept["min_characters"] == 2 and kept["deduplicate_documents"] == "near"


def test_a_resumed_run_says_that_the_text_is_cleaned_otherwise(backbone, capsys):
    texts_file(*SENTENCES[:10])
    command = ["--model_name_or_path", str(backbone), "--train_file", "a.txt", "--output_dir", "out", "--use_cpu"]
    command += ["--disable_tqdm", "True"]
    assert run_pretrain.main([*command, "--max_steps", "1", "--save_steps", "1"]) == 0
    capsys.readouterr()
    command += ["--resume_from_checkpoint", "True", "--max_steps", "2", "--unicode_normalization", "NFC"]
    assert run_pretrain.main(command) == 0
    assert "warning: resumed with another unicode_normalization: None -> NFC" in capsys.readouterr().out


def test_run_pretrain_shows_the_documents_of_mined_pairs_and_none_where_pairs_are_given(capsys):
    rows = chinese_documents(6)
    write_rows(Path("docs.jsonl"), [*rows, rows[0]])
    write_rows(Path("pairs.jsonl"), [{"text": row["text"][:20], "text_pair": row["text"][20:40]} for row in rows])
    tiny = "d_model=32,d_kv=16,d_ff=48,num_layers=1,num_decoder_layers=1,num_heads=2"
    command = [
        "--objective",
        "gur",
        "--config_name",
        "t5",
        "--config_overrides",
        tiny,
        "--tokenizer_vocab_size",
        "900",
    ]
    command += ["--use_cpu", "--max_steps", "1", "--max_seq_length", "16", "--save_strategy", "no"]
    command += ["--disable_tqdm", "True", "--per_device_train_batch_size", "4"]
    flags = ["--train_file", "docs.jsonl", "--output_dir", "mined", "--deduplicate_documents", "exact"]
    assert run_pretrain.main([*command, *flags]) == 0
    screen = capsys.readouterr().out
    assert "6 documents kept\n1 dropped: 1 duplicate\n" in screen and "tokens a text: " in screen
    assert run_pretrain.main([*command, "--train_file", "pairs.jsonl", "--output_dir", "given"]) == 0
    screen = capsys.readouterr().out
    assert "documents kept" not in screen and "tokens a text: " in screen
