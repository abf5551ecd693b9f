"""What GUR makes of raw text alone, in minutes on a CPU: `make demo-gur`, or `python examples/demo_gur.py`.

Nothing is given but the SciFact abstracts: the tokenizer is trained on them, the weights start from their statistics,
the pairs are mined from them. The model then searches, beside BM25 and joined with it, names topics and fills in text.
"""

import os
import shutil
from pathlib import Path

from transformers import AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.utils import logging

from retrieval_pretraining.arguments import parse_arguments
from retrieval_pretraining.encoding import encode_texts
from retrieval_pretraining.generation import fill_in
from retrieval_pretraining.hybrid import fuse
from retrieval_pretraining.objectives import GURObjective
from retrieval_pretraining.retrieval_data import load_retrieval_data
from retrieval_pretraining.retrieval_evaluation import bm25_run, dense_run, format_table, retrieval_metrics
from retrieval_pretraining.significance import paired_comparison
from retrieval_pretraining.zero_shot import classify
from run_pretrain import ARGUMENTS, run

ROOT = Path(__file__).parents[1]
RECIPE = "recipes/demo_gur.yaml"
TOPICS = ["cancer", "infection and immunity", "heart and blood vessels", "brain and nerves", "stem cells", "genes"]
GAPS = [
    "Patients with breast [MASK] were treated.",
    "The role of T [MASK] in infection.",
    "[MASK] of stem cells in mice",
]


def main():
    os.chdir(ROOT)  # the recipe names its files from there
    logging.disable_progress_bar()  # of loading; training and searching keep theirs
    data = load_retrieval_data("examples/data/scifact")
    arguments = parse_arguments(ARGUMENTS, [RECIPE])
    folder = arguments[2].output_dir
    print(f"--- {RECIPE}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    result = run(*arguments)

    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    print("BM25, and both together", flush=True)
    bm25 = bm25_run(data)
    vectors = [encode_texts(model, tokenizer, texts) for texts in (data.query_texts, data.corpus_texts)]
    dense = dense_run(*vectors, data.query_ids, data.corpus_ids, top_k=1000)
    both = fuse([dense, bm25])
    rows = [
        {"system": "BM25", "training": "-", **retrieval_metrics(bm25, data.qrels)},
        {"system": "before", "training": "statistics of the text", **result["retrieval"]["before"]},
        {
            "system": "GUR",
            "training": f"+ {result['steps']} steps, {result['seconds']:.0f} s",
            **result["retrieval"]["after"],
        },
        {
            "system": "GUR with BM25",
            "training": "sum of z-scores",
            **retrieval_metrics(both, data.qrels),
        },
    ]
    joined, alone = (retrieval_metrics(each, data.qrels, per_query=True)["ndcg@10"] for each in (both, bm25))
    gain = paired_comparison(joined, alone)
    size = f"{len(data.query_ids)} queries, {len(data.corpus_ids)} documents"
    print(f"\nSciFact, {size}; nothing was learned from but the documents:\n")
    print(format_table(rows, ["system", "training", "ndcg@10", "recall@100"]))

    print(
        f"\nGUR with BM25 against BM25: {gain.difference:+.3f} nDCG@10, 95 % interval {gain.low:+.3f} to "
        f"{gain.high:+.3f} over the queries, p = {gain.p_value:.2g}."
    )

    texts = [data.corpus_texts[place] for place in (3, 500, 2000)]
    print("\nThe nearest of six topics:\n")
    for text, label in zip(texts, classify(model, tokenizer, texts, TOPICS).labels, strict=True):
        print(f"  {text[:80]}... -> {label}")
    writer = AutoModelForSeq2SeqLM.from_pretrained(folder)
    print("\nFilled in, by a decoder of one layer that is minutes old:\n")
    for text, found in zip(GAPS, fill_in(writer, tokenizer, GAPS, max_new_tokens=12), strict=True):
        print(f"  {text} -> {found[0].text if found else '(nothing)'}")
    print(GURObjective.how_to_load(folder))


if __name__ == "__main__":
    main()
