"""Mined pairs on the Hub: a dataset with a card of its own, which `load_dataset` reads."""

import json
import shlex

import pytest
import yaml
from documents_for_tests import chinese_documents, write_rows
from hub_runs import MINE, PUSH, SECRET_PATH, TOKEN


def mine(workshop, folder, name: str, *flags, output: str = "pairs", **options):
    documents = folder / "papers.jsonl"
    if not documents.exists():
        rows = [{"text": row["text"]} for row in chinese_documents(12)]  # without ids: they are called by their place
        write_rows(documents, [*rows, {"text": None}, {"text": 7}])
    argv = ["mine_pairs.py", "--train_file", documents, "--output_dir", folder / output]
    return workshop.run(MINE, argv=[*argv, "--push_to_hub", "True", "--hub_dataset_id", name, *flags], **options)


@pytest.fixture(scope="module")
def dataset(hub, workshop, folder):
    outcome = mine(workshop, folder, "me/mined", "--hub_private_repo", "True", "--license", "cc-by-4.0")
    assert outcome.status == 0, outcome.err
    assert f"pushed: {hub.url}/datasets/me/mined/commit/" in outcome.out
    return hub.repository("me/mined", "datasets")


def test_one_commit_holds_pairs_counts_and_card(dataset):
    assert dataset.private
    (commit,) = dataset.pushed()
    assert commit.files.keys() - {".gitattributes"} == {"README.md", "counts.json", "pairs.parquet"}
    assert commit.files["pairs.parquet"].lfs
    for name, file in commit.files.items():
        assert SECRET_PATH.encode() not in file.content and TOKEN.encode() not in file.content, name


def test_the_card_says_what_is_known_and_nothing_else(dataset):
    files = dataset.at("main").files
    card, counts = files["README.md"].content.decode(), json.loads(files["counts.json"].content)
    metadata = yaml.safe_load(card.split("---\n")[1])
    assert metadata["configs"] == [{"config_name": "default", "data_files": "pairs.parquet"}]
    assert metadata["license"] == "cc-by-4.0" and metadata["size_categories"] == ["n<1K"]
    assert "gur" in metadata["tags"] and "language" not in metadata
    assert f"{counts['pairs']:,} pairs (`text`, `text_pair`) from 12 documents" in card
    assert "| strategy | lcs |" in card and '"document_id": "papers.jsonl:1"' in card and '"text_pair": ' in card


def test_load_dataset_reads_it(dataset, stranger, tmp_path):
    code = (
        "import datasets\n"
        "rows = datasets.load_dataset('me/mined')\n"
        "print(list(rows), rows['train'].column_names, len(rows['train']))\n"
    )
    printed = stranger.check(code, HF_TOKEN=TOKEN)
    number = json.loads(dataset.at("main").files["counts.json"].content)["pairs"]
    columns = ["text", "text_pair", "shared_span", "document_id", "strategy"]
    assert printed.splitlines()[-1] == f"['train'] {columns} {number}"
    refused = stranger.run(code.replace("'me/mined'", f"'me/mined', cache_dir={str(tmp_path)!r}"))
    assert refused.status != 0 and "authentication" in refused.err.splitlines()[-1]  # it is private


def test_a_finished_folder_is_pushed_without_mining_again(hub, workshop, folder, dataset):
    outcome = mine(workshop, folder, "me/mined", "--license", "cc-by-4.0")
    assert outcome.status == 0 and "nothing to do" in outcome.out and len(dataset.pushed()) == 1
    outcome = mine(workshop, folder, "me/mined-too", "--license", "cc0-1.0", "--hub_create_pr", "True")
    assert outcome.status == 0, outcome.err
    (commit,) = hub.repository("me/mined-too", "datasets").pushed()
    assert commit.branch == "refs/pr/1" and b"license: cc0-1.0" in commit.files["README.md"].content


def test_no_licence_is_made_up_and_an_edited_card_stays(hub, workshop, folder):
    outcome = mine(workshop, folder, "me/plain", "--output_format", "jsonl", output="plain")
    assert outcome.status == 0, outcome.err
    files = hub.repository("me/plain", "datasets").at("main").files
    assert "pairs.jsonl" in files and b"license" not in files["README.md"].content.split(b"---")[1]
    card = folder / "plain/README.md"
    card.write_text(card.read_text(encoding="utf-8") + "\nMine.\n", encoding="utf-8")
    assert mine(workshop, folder, "me/plain", "--output_format", "jsonl", output="plain").status == 0
    assert hub.repository("me/plain", "datasets").at("main").files["README.md"].content.endswith(b"\nMine.\n")


def test_a_failure_at_the_end_keeps_the_pairs_and_gives_the_command(hub, workshop, folder):
    hub.fail("POST", "datasets/me/refused/commit/", 403, times=9)
    outcome = mine(workshop, folder, "me/refused", output="refused")
    hub.faults.clear()
    assert outcome.status == 1 and "Traceback" not in outcome.err
    assert "me/refused was not pushed, but the pairs are whole in" in outcome.err
    words = shlex.split(outcome.err.strip().splitlines()[-1])
    assert words[:3] == ["python", "-m", "retrieval_pretraining.hub"]
    assert workshop.run(PUSH, argv=["hub", *words[3:]]).status == 0
    assert "pairs.parquet" in hub.repository("me/refused", "datasets").at("main").files


def test_a_folder_of_something_else_is_no_dataset(workshop, folder):
    outcome = workshop.run(PUSH, argv=["hub", folder / "backbone", "--hub_dataset_id", "me/nothing"])
    assert outcome.status == 2 and "give a folder that mine_pairs.py wrote" in outcome.err
