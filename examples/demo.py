"""What RetroMAE does to a `[CLS]` vector, in minutes on a CPU: `make demo`, or `python examples/demo.py`.

A small English model that has only ever seen MLM goes on training on the SciFact abstracts twice, for about the same
time: once as RetroMAE, once as plain MLM. Then each searches SciFact's queries with its raw `[CLS]` vectors.
"""

import copy
import os
import shutil
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

from retrieval_pretraining.arguments import DataArguments, ModelArguments, PretrainingArguments, parse_arguments
from retrieval_pretraining.objectives import RetroMAEObjective
from retrieval_pretraining.retrieval_data import load_retrieval_data
from retrieval_pretraining.retrieval_evaluation import bm25_run, evaluate_retrieval, format_table, retrieval_metrics
from run_pretrain import run

ROOT = Path(__file__).parents[1]
STARTER = "examples/starter-en"
MAX_SEQ_LENGTH = 128


def train(recipe: str) -> dict:
    """Runs a recipe, afresh each time; its results, with the folder of the plain encoder."""
    arguments = parse_arguments([ModelArguments, DataArguments, PretrainingArguments], [recipe])
    print(f"\n--- {recipe}", flush=True)
    shutil.rmtree(arguments[2].output_dir, ignore_errors=True)
    return {**run(*arguments), "encoder": f"{arguments[2].output_dir}/encoder", "output_dir": arguments[2].output_dir}


def main():
    os.chdir(ROOT)  # recipes name their files from there
    logging.disable_progress_bar()  # of loading 3 MB; training and searching keep theirs
    logging.set_verbosity_error()  # the MLM head is left out on purpose
    data = load_retrieval_data("examples/data/scifact")
    tokenizer = AutoTokenizer.from_pretrained(STARTER)
    starter = AutoModel.from_pretrained(STARTER, dtype=torch.float32)
    torch.manual_seed(0)
    random_weights = AutoModel.from_config(copy.deepcopy(starter.config)).float()

    print("BM25", flush=True)
    rows = [{"system": "BM25", "training": "-", **retrieval_metrics(bm25_run(data), data.qrels)}]

    def search(system: str, training: str, model):
        print(f"searching: {system}", flush=True)
        scores = evaluate_retrieval(model, tokenizer, data, max_seq_length=MAX_SEQ_LENGTH)
        rows.append({"system": system, "training": training, **scores})

    search("random weights", "none", random_weights)
    search("before", "MLM on other text", starter)
    mlm = train("recipes/demo_scifact_mlm.yaml")
    retromae = train("recipes/demo_scifact.yaml")
    for system, result in (("plain MLM", mlm), ("RetroMAE", retromae)):
        training = f"+ {result['steps']} steps, {result['seconds']:.0f} s"
        search(system, training, AutoModel.from_pretrained(result["encoder"]))

    size = f"{len(data.query_ids)} queries, {len(data.corpus_ids)} documents"
    print(f"\nSciFact, {size}, cosine of the raw [CLS] vectors:\n")
    print(format_table(rows, ["system", "training", "ndcg@10", "recall@100"]))
    print(
        "\nRetroMAE makes [CLS] a usable sentence vector, no more than that: a start for fine-tuning on pairs."
        "\nUntil then, BM25 is ahead."
    )
    print(RetroMAEObjective.how_to_load(retromae["output_dir"]))


if __name__ == "__main__":
    main()
