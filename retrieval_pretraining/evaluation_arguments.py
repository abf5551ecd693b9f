"""What can be set for an evaluation. Lists that go with models have one value for all of them, or one a model."""

from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path

from retrieval_pretraining.arguments import _check_choice, _help
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.hybrid import FUSION_METHODS
from retrieval_pretraining.search import CHUNK_SCORES

POOLINGS = ("auto", "cls", "mean", "eos", "pooler_output")
DTYPES = ("float32", "bfloat16", "float16")


@dataclass
class EvaluationArguments:
    """Which systems are measured, on what, and how."""

    output_dir: str | None = field(
        default=None, metadata=_help("Where results.json, results.md and report.html are written.")
    )
    model_name_or_path: list[str] | None = field(
        default=None,
        metadata=_help(
            "Models: of this project, any AutoModel, or sentence-transformers folders; or names on the Hub."
        ),
    )
    bm25: bool = field(default=False, metadata=_help("BM25 as well, and what it gives together with each model."))
    # What is measured on
    eval_retrieval_dir: list[str] | None = field(
        default=None, metadata=_help("Folders in BEIR layout: corpus.jsonl, queries.jsonl, qrels/.")
    )
    eval_retrieval_split: str = field(default="test", metadata=_help("Which qrels of them."))
    eval_retrieval_max_queries: int | None = field(
        default=None, metadata=_help("Only so many queries, drawn at random. [default: all]")
    )
    eval_retrieval_max_documents: int | None = field(
        default=None,
        metadata=_help("Only so many documents: those that are judged, and random others. [default: all]"),
    )
    rerank_candidates: list[str] | None = field(
        default=None,
        metadata=_help(
            "Also measure how the models order candidates: bm25, for its best ones, or a file of candidates for each "
            "folder (a TREC run, tsv or jsonl)."
        ),
    )
    rerank_top_k: int = field(default=100, metadata=_help("Candidates of a query."))
    eval_classification_dir: list[str] | None = field(
        default=None, metadata=_help("Folders with train and test files of the columns text and label.")
    )
    label_template: list[str] = field(
        default_factory=lambda: ["{}"],
        metadata=_help("Zero-shot: what is made of the name of a label; the vectors of several are averaged."),
    )
    shots: list[str] = field(
        default_factory=lambda: ["10", "all"],
        metadata=_help("Few-shot: texts a class that a logistic regression learns from; all: the whole file."),
    )
    few_shot_seeds: int = field(default=5, metadata=_help("Draws of these texts."))
    eval_similarity_file: list[str] | None = field(
        default=None, metadata=_help("Files with the columns sentence1, sentence2, score.")
    )
    generation: bool = field(
        default=False,
        metadata=_help(
            "Also measure what GUR writes on each --eval_retrieval_dir: titles, masked spans, expanded queries (with "
            "--bm25 what they find, too)."
        ),
    )
    generation_max_documents: int = field(
        default=200, metadata=_help("Documents, drawn at random, that titles are written for and spans masked in.")
    )
    # How models encode
    model_revision: str | None = field(default=None, metadata=_help("Branch, tag or commit of the models on the Hub."))
    trust_remote_code: bool = field(
        default=False, metadata=_help("Run code that comes with a model; ours needs none where this package is.")
    )
    pooling: list[str] | None = field(
        default=None,
        metadata=_help("auto (what the checkpoint is made for), cls, mean, eos or pooler_output (the trained head)."),
    )
    query_prompt: list[str] | None = field(
        default=None, metadata=_help("Stands before each query; bge_en and bge_zh are the instructions of BGE.")
    )
    document_prompt: list[str] | None = field(default=None, metadata=_help("Stands before each document."))
    max_seq_length: int | None = field(
        default=None, metadata=_help("Tokens at which texts are cut. [default: the model's own, at most 512]")
    )
    chunk_size: int | None = field(
        default=None, metadata=_help("Also search documents as chunks of so many tokens. [default: not]")
    )
    chunk_score: list[str] = field(
        default_factory=lambda: ["max+mean"],
        metadata=_help("How chunks make the score of their document: max, mean, max+mean."),
    )
    lexical: bool = field(
        default=False,
        metadata=_help(
            "Also search by the words that the MLM head predicts from a text (DupMAE), alone and with the vectors."
        ),
    )
    lexical_top_n: int = field(default=128, metadata=_help("Words of each text that are kept for that."))
    batch_size: int = field(default=64, metadata=_help("Texts that are encoded at once."))
    dtype: str = field(default="float32", metadata=_help("Of the weights.", choices=list(DTYPES)))
    device: str | None = field(
        default=None, metadata=_help("cpu, cuda, cuda:1 ... [default: cuda where there is one]")
    )
    approximate_search: bool = field(
        default=False, metadata=_help("Search by faiss, for corpora that are too large for exact search.")
    )
    # What is beside them
    random_weights: bool = field(
        default=True, metadata=_help("A row for each architecture with random weights: what vectors cost nothing.")
    )
    hybrid: list[str] = field(
        default_factory=lambda: ["z_score"],
        metadata=_help("Sums of BM25 and a model, of z_score or reciprocal_rank; none for neither."),
    )
    bm25_weight: float = field(default=1.0, metadata=_help("Weight of BM25 in them; a model has 1."))
    bm25_k1: float = field(default=0.9, metadata=_help("BM25: saturation."))
    bm25_b: float = field(default=0.4, metadata=_help("BM25: normalisation of lengths."))
    bm25_language: str = field(
        default="auto", metadata=_help("BM25: en (stems), zh, or auto.", choices=["auto", "en", "zh"])
    )
    bm25_chinese_tokens: str = field(
        default="bigrams",
        metadata=_help("BM25: bigrams of characters, or words (pip install rjieba).", choices=["bigrams", "words"]),
    )
    baseline: str | None = field(
        default=None, metadata=_help("The system that the others are compared with. [default: BM25, or the first]")
    )
    save_runs: bool = field(default=False, metadata=_help("Keep the rankings as TREC run files."))
    save_query_scores: bool = field(
        default=False, metadata=_help("Keep every measure of every query and text, as query_scores.json.")
    )
    update_model_card: bool = field(
        default=False, metadata=_help("Write the results into the README.md of each model folder.")
    )
    seed: int = field(default=42, metadata=_help("Of samples, random weights and resampling."))

    def check(self):
        if self.output_dir is None:
            raise InputError("Give --output_dir: where the report is written.")
        if not self.model_name_or_path and not self.bm25:
            raise InputError("There is nothing to measure: give --model_name_or_path, --bm25, or both.")
        if not (self.eval_retrieval_dir or self.eval_classification_dir or self.eval_similarity_file):
            raise InputError(
                "There is nothing to measure on: give --eval_retrieval_dir, --eval_classification_dir or "
                "--eval_similarity_file."
            )
        self._check_models()
        self._check_numbers()
        self._check_effect()
        for name, allowed in (("hybrid", (*FUSION_METHODS, "none")), ("chunk_score", CHUNK_SCORES)):
            for value in getattr(self, name):
                _check_choice(name, value, allowed)
        for value in self.pooling or []:
            _check_choice("pooling", value, POOLINGS)
        _check_choice("dtype", self.dtype, DTYPES)
        _check_choice("bm25_language", self.bm25_language, ("auto", "en", "zh"))
        _check_choice("bm25_chinese_tokens", self.bm25_chinese_tokens, ("bigrams", "words"))
        if any("{}" not in template for template in self.label_template):
            raise InputError('--label_template holds {} where the label goes, such as "A text about {}."')
        if self.rerank_candidates and self.rerank_candidates != ["bm25"]:
            if len(self.rerank_candidates) != len(self.eval_retrieval_dir or []):
                raise InputError("--rerank_candidates is bm25, or one file for each --eval_retrieval_dir.")
        if self.generation and not (self.model_name_or_path and self.eval_retrieval_dir):
            raise InputError("--generation needs models and texts: --model_name_or_path and --eval_retrieval_dir.")
        if self.rerank_candidates and not self.model_name_or_path:
            raise InputError("--rerank_candidates needs a model that orders them: give --model_name_or_path.")
        if self.lexical and not (self.model_name_or_path and self.eval_retrieval_dir):
            raise InputError(
                "--lexical needs a model and texts to search: give --model_name_or_path and --eval_retrieval_dir."
            )

    def _check_effect(self):
        """What says how something is done that is not asked for."""
        needs = {"hybrid": "bm25", "bm25_weight": "bm25", "chunk_score": "chunk_size", "lexical_top_n": "lexical"}
        needs |= {"rerank_top_k": "rerank_candidates", "generation_max_documents": "generation"}
        for entry in fields(self):
            default = entry.default_factory() if entry.default is MISSING else entry.default
            needed = needs.get(entry.name)
            if needed and not getattr(self, needed) and getattr(self, entry.name) not in (default, ["none"]):
                raise InputError(f"--{entry.name} has no effect without --{needed}: give it, or leave this out.")

    def _check_models(self):
        models = self.model_name_or_path or []
        for model in models:
            if model.startswith((".", "/", "~")) and not Path(model).expanduser().exists():
                raise InputError(f"--model_name_or_path {model}: there is no such folder.")
        for name in ("pooling", "query_prompt", "document_prompt"):
            values = getattr(self, name)
            if values and len(values) not in (1, len(models)):
                raise InputError(
                    f"--{name} has {len(values)} values for {len(models)} models: give one, or one a model."
                )

    def _check_numbers(self):
        positive = ("eval_retrieval_max_queries", "eval_retrieval_max_documents", "rerank_top_k", "few_shot_seeds")
        for name in (*positive, "lexical_top_n", "batch_size", "chunk_size", "generation_max_documents"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InputError(f"--{name} is 1 or more, not {getattr(self, name)}.")
        for count in self.shots:
            if str(count) != "all" and not (str(count).isdecimal() and int(count) > 0):
                raise InputError(f"--shots are numbers of 1 or more, or all, not {count}.")
        if self.max_seq_length is not None and self.max_seq_length < 8:
            raise InputError(f"--max_seq_length {self.max_seq_length} leaves no room for text; use at least 8.")
        if self.bm25_weight < 0 or self.bm25_k1 < 0 or not 0 <= self.bm25_b <= 1:
            raise InputError("--bm25_weight and --bm25_k1 are 0 or more, --bm25_b lies from 0 to 1.")
        if self.seed < 0:
            raise InputError(f"--seed is 0 or more, not {self.seed}.")

    def bm25_options(self) -> dict:
        """What `bm25_run` and `describe_bm25` take."""
        names = ("k1", "b", "language", "chinese_tokens")
        return {name: getattr(self, f"bm25_{name}") for name in names}

    def of_model(self, name: str, number: int, default):
        """The value of a list for the model of this number."""
        values = getattr(self, name)
        return default if not values else values[0] if len(values) == 1 else values[number]
