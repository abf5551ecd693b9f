"""What the experiments need beside the data sets themselves: labelled pairs, and queries to tune on.

    python recipes/experiments/prepare_data.py --data_dir my_data --output_dir outputs/experiment_data
    python run_experiments.py recipes/experiments/retromae_en.yaml --data_dir my_data outputs/experiment_data

None of it has anything to do with the test queries:

    acl_titles/         BEIR layout, to tune on: 1,000 titles of the ACL Anthology find their abstracts among all
    acl_pairs.jsonl     the other titles and their abstracts, to fine-tune on, {"text", "text_pair"} a line
    zhwiki_qa_dev/      BEIR layout, to tune on: the development questions of zhwiki_qa
    zh_pairs.jsonl      those questions whose passage is not the answer to a test question, then titles of LCTT with
                        the first characters of their articles
"""

import argparse
import json
import lzma
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

DEVELOPMENT_TITLES = 1_000
ARTICLE_CHARACTERS = 500


def read_lines(path: Path) -> Iterator[dict]:
    """The objects of a jsonl file, packed or not."""
    with (lzma.open if path.suffix == ".xz" else open)(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def write_lines(path: Path, rows: Iterable[dict]) -> int:
    """One object a line; how many there were."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with open(path, "w", encoding="utf-8") as file:
        for count, row in enumerate(rows, start=1):  # noqa: B007
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(f"{path}: {count:,}")
    return count


def write_qrels(path: Path, pairs: Iterable[tuple[str, str]]):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["query-id\tcorpus-id\tscore", *(f"{query}\t{document}\t1" for query, document in pairs)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_qrels(path: Path) -> list[tuple[str, str]]:
    """(query, document) of the relevant ones."""
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
    return [(query, document) for query, document, grade in rows if int(grade) > 0]


def documents_of(folder: Path) -> list[dict]:
    """The documents of raw text with both title and text, in the order of its parts."""
    return [row for part in sorted(folder.glob("part*")) for row in read_lines(part) if row["title"] and row["text"]]


def prepare_english(data: Path, output: Path):
    """Titles and abstracts of the ACL Anthology; the two sides of a pair are never one text."""
    documents = documents_of(data / "raw_en_acl")
    tuned_on = documents[:DEVELOPMENT_TITLES]
    corpus = ({"_id": f"d{i}", "text": row["text"]} for i, row in enumerate(documents))
    write_lines(output / "acl_titles" / "corpus.jsonl", corpus)
    queries = ({"_id": f"q{i}", "text": row["title"]} for i, row in enumerate(tuned_on))
    write_lines(output / "acl_titles" / "queries.jsonl", queries)
    write_qrels(output / "acl_titles" / "qrels" / "test.tsv", ((f"q{i}", f"d{i}") for i in range(len(tuned_on))))
    rest = documents[DEVELOPMENT_TITLES:]
    write_lines(output / "acl_pairs.jsonl", ({"text": row["title"], "text_pair": row["text"]} for row in rest))


def prepare_chinese(data: Path, output: Path):
    """The development questions of zhwiki_qa, and LCTT."""
    source, target = data / "zhwiki_qa", output / "zhwiki_qa_dev"
    passages = {row["_id"]: row for row in read_lines(source / "corpus.jsonl")}
    questions = {row["_id"]: row["text"] for row in read_lines(source / "queries_dev.jsonl")}
    judged = read_qrels(source / "qrels" / "dev.tsv")
    write_lines(target / "corpus.jsonl", passages.values())
    write_lines(target / "queries.jsonl", ({"_id": name, "text": text} for name, text in questions.items()))
    write_qrels(target / "qrels" / "test.tsv", judged)
    answers = {document for _, document in read_qrels(source / "qrels" / "test.tsv")}
    pairs = [
        {"text": questions[query], "text_pair": passages[document]["text"]}
        for query, document in judged
        if document not in answers
    ]
    articles = documents_of(data / "raw_zh_lctt")
    pairs += [{"text": row["title"], "text_pair": row["text"][:ARTICLE_CHARACTERS]} for row in articles]
    write_lines(output / "zh_pairs.jsonl", pairs)


def main() -> int:
    """The command line: returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", default="data", help="where the data sets lie")
    parser.add_argument("--output_dir", default="outputs/experiment_data")
    args = parser.parse_args()
    data, output = Path(args.data_dir), Path(args.output_dir)
    status = 0
    for needed, prepare in (("raw_en_acl", prepare_english), ("zhwiki_qa", prepare_chinese)):
        if (data / needed).is_dir():
            prepare(data, output)
        else:
            print(f"error: {data / needed} is not there; --data_dir says where the data lie.", file=sys.stderr)
            status = 2
    return status


if __name__ == "__main__":
    sys.exit(main())
