"""How good are the vectors? Any models and BM25, side by side, on any retrieval data; then a report to look at.

    python run_evaluation.py --eval_retrieval_dir data/mine --model_name_or_path outputs/gur --bm25 --output_dir report
    python run_evaluation.py --eval_retrieval_dir A B --model_name_or_path before after --bm25 --output_dir report
    python run_evaluation.py recipes/evaluate.yaml --output_dir report             # a recipe is a whole run

`report/report.html` is the page to look at, `results.md` the tables, `results.json` all that it takes to repeat or to
go on with. A folder of retrieval data is in BEIR layout: corpus.jsonl, queries.jsonl, qrels/test.tsv. Classification
(`--eval_classification_dir`), similarity (`--eval_similarity_file`), reranking (`--rerank_candidates bm25`) and what
GUR writes (`--generation`) go into the same report. `--help` lists what can be set.
"""

import sys
from pathlib import Path

from retrieval_pretraining.arguments import parse_arguments
from retrieval_pretraining.card_results import update_model_card
from retrieval_pretraining.door import exit_status
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.evaluation import evaluate
from retrieval_pretraining.evaluation_arguments import EvaluationArguments
from retrieval_pretraining.report_page import write_report
from retrieval_pretraining.report_tables import format_results
from retrieval_pretraining.results_file import provenance


def run(args: EvaluationArguments) -> dict:
    """One evaluation; returns the results that were written. Called by `main`, the demos and experiments."""
    args.check()
    output = Path(args.output_dir)
    if output.exists() and not output.is_dir():
        raise InputError(f"--output_dir {output} is a file: give a folder.")
    found = evaluate(args)
    results = found.as_dict(**provenance())
    print(f"\n{format_results(results)}")
    files = write_report(results, output)
    print(f"\nThe report is in {output}: {', '.join(path.name for path in files.values())}.")
    if args.save_runs:
        found.write_runs(output / "runs")
    if args.save_query_scores:
        found.write_query_scores(output / "query_scores.json")
    if args.update_model_card:
        for system in results["systems"]:
            folder = Path(system.get("model_name_or_path", ""))
            if system["kind"] == "dense" and not system["random_weights"] and folder.is_dir():
                print(f"Written into {update_model_card(folder, results, system['name'])}.")
    return results


def main(arguments: list[str] | None = None) -> int:
    """The command line: returns the exit status."""
    return exit_status(lambda: run(*parse_arguments([EvaluationArguments], arguments)))


if __name__ == "__main__":
    sys.exit(main())
