"""How fast and how lean a pre-training step is, beside the textbook's way: one run, side by side, ratios printed.

    python benchmarks/pretrain_step.py                  # some minutes on a CPU
    python benchmarks/pretrain_step.py --quick          # seconds, to see that it works
    python benchmarks/pretrain_step.py --device cuda --dtype bfloat16 --hidden_size 768 --num_layers 12

All sides see the same weights, masks and labels, and take turns (A B C A B C ...). The run fails if their losses are
not equal. See benchmarks/README.md for what each side is.
"""

import argparse
import ctypes
import importlib.util
import json
import lzma
import multiprocessing
import os
import platform
import random
import statistics
import sys
import time
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from transformers import BertConfig, BertForMaskedLM

from configuration_retromae import RetroMAEConfig
from modeling_retromae import RetroMAEForPreTraining
from retrieval_pretraining.collators import RetroMAECollator
from retrieval_pretraining.passages import encode_documents
from retrieval_pretraining.tokenizer_training import train_tokenizer

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "examples" / "data" / "scifact" / "corpus.jsonl.xz"
SIDES = ("ours", "textbook", "published-like")
OBJECTIVES = {
    "RetroMAE": {},
    "RetroMAE, decoder_prediction_rate 0.4": {"decoder_prediction_rate": 0.4},
    "DupMAE, bow_loss_weight 0.1": {"decoder_query": "embedding", "bow_loss_weight": 0.1},
}
SIZES = {"hidden_size": 256, "num_layers": 4, "vocab_size": 30522, "batch_size": 16, "max_length": 256}
QUICK = {"hidden_size": 64, "num_layers": 2, "vocab_size": 2000, "batch_size": 4, "max_length": 64, "repeats": 1}
LEGEND = """\
ours            RetroMAECollator, RetroMAEForPreTraining
textbook        RetroMAEOracle of tests/reference: attention written out, scores and logits at every position
published-like  steps: what the published code would be on today's library, BertForMaskedLM with SDPA, an SDPA decoder
                layer, logits at every position; collation: loops over rows and words, as the published collators are
ratio           the column before it divided by ours: above 1, ours is the faster or the leaner
step            forward and backward, without optimizer; memory is what a step adds to the weights at its peak"""


def load_reference(name):
    """A module of tests/reference. They are no part of the installed package, so they are loaded by their path."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tests" / "reference" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


masking_oracle, textbook, published = map(load_reference, ("masking_oracle", "retromae_oracle", "retromae_oracle"))


def sdpa_layer(layer, query, context, visible, config):
    """The textbook's `bert_layer` with the attention of today's library."""
    projections = layer.attention.self
    states = (projections.query(query), projections.key(context), projections.value(context))
    heads = [part.unflatten(-1, (config.num_attention_heads, -1)).transpose(1, 2) for part in states]
    attended = F.scaled_dot_product_attention(*heads, attn_mask=visible.bool()[:, None]).transpose(1, 2).flatten(2)
    attended = layer.attention.output.LayerNorm(layer.attention.output.dense(attended) + query)
    return layer.output.LayerNorm(layer.output.dense(F.gelu(layer.intermediate.dense(attended))) + attended)


published.bert_layer = sdpa_layer  # in a second copy of the module, which loads apart from the textbook's


class PublishedLike(published.RetroMAEOracle):
    """The textbook's losses around transformers' own encoder and an SDPA decoder layer."""

    def encode(self, input_ids, attention_mask):
        return self.lm.bert(input_ids, attention_mask).last_hidden_state


def make_config(objective, args):
    encoder = BertConfig(
        vocab_size=args.vocab_size,
        hidden_size=args.hidden_size,
        num_hidden_layers=args.num_layers,
        num_attention_heads=max(1, args.hidden_size // 64),
        intermediate_size=4 * args.hidden_size,
        max_position_embeddings=max(512, args.max_length),
        initializer_range=0.08,  # logits that differ, so that equal losses mean something
        **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    )
    return RetroMAEConfig(encoder_config=encoder, **OBJECTIVES[objective])


def make_model(side, objective, args):
    """One side's model; all sides have the same weights."""
    torch.manual_seed(0)
    config = make_config(objective, args)
    ours = RetroMAEForPreTraining(config)
    if side == "ours":
        return ours.to(args.device).train()
    kind = PublishedLike if side == "published-like" else textbook.RetroMAEOracle
    options = {"decoder_query": config.decoder_query, "bow_loss_weight": config.bow_loss_weight}
    theirs = kind(BertForMaskedLM(config.encoder_config), **options)
    head, mine = theirs.lm.cls.predictions, ours.mlm_head
    pairs = [(theirs.lm.bert, ours.retromae.encoder), (theirs.decoder.layer, ours.decoder.layer)]
    pairs += [(head.transform.dense, mine.dense), (head.transform.LayerNorm, mine.LayerNorm)]
    for target, source in [*pairs, (head.decoder, mine.decoder)]:
        target.load_state_dict(source.state_dict())
    return theirs.to(args.device).train()


def train_step(model, batch, args):
    model.zero_grad(set_to_none=True)
    with torch.autocast(args.device, torch.bfloat16, enabled=args.dtype == "bfloat16"):
        output = model(**batch)
    output["loss"].backward()
    if args.device == "cuda":
        torch.cuda.synchronize()
    return output


def medians(functions, repeats):
    """Seconds of each function, the median of several; the functions take turns."""
    seconds = {name: [] for name in functions}
    for name in list(functions) * repeats:
        start = time.perf_counter()
        functions[name]()
        seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def scifact_passages(args):
    """A tokenizer trained on SciFact's abstracts, and a batch of its passages with the lengths as they fall."""
    with lzma.open(CORPUS, "rt", encoding="utf-8") as file:
        documents = [json.loads(line) for _, line in zip(range(300 if args.quick else 10_000), file)]
    texts = [f"{document['title']} {document['text']}" for document in documents]
    tokenizer = train_tokenizer(texts, vocab_size=args.vocab_size)
    random.Random(0).shuffle(texts)
    encoded = encode_documents(texts[: args.batch_size], tokenizer, max_seq_length=args.max_length)
    rows = [dict(zip(("input_ids", "word_ids"), row)) for row in zip(encoded["input_ids"], encoded["word_ids"])]
    return tokenizer, random.Random(0).sample(rows, args.batch_size)


def synthetic_text(length, tokenizer, rng):
    """A text of the full length with words of one to four pieces."""
    pieces = rng.choices([1, 2, 3, 4], weights=[60, 20, 12, 8], k=length)
    words = [word for word, count in enumerate(pieces) for _ in range(count)][: length - 2]
    ids = [rng.randrange(5, len(tokenizer)) for _ in words]
    return {"input_ids": [tokenizer.cls_token_id, *ids, tokenizer.sep_token_id], "word_ids": [-1, *words, -1]}


def make_batch(objective, passages, tokenizer, args):
    batch = RetroMAECollator(tokenizer, make_config(objective, args))(passages)
    if "bag_of_words" in batch:  # the tokenizer may have found fewer tokens than the model has
        batch["bag_of_words"] = F.pad(batch["bag_of_words"], (0, args.vocab_size - len(tokenizer)))
    return {name: tensor.to(args.device) for name, tensor in batch.items()}


def collation(tokenizer, args):
    count, length = (8, 128) if args.quick else (64, 512)
    rng = random.Random(0)
    texts = [synthetic_text(length, tokenizer, rng) for _ in range(count)]
    collator = RetroMAECollator(tokenizer, RetroMAEConfig())
    ids = {"mask_token_id": tokenizer.mask_token_id, "pad_token_id": tokenizer.pad_token_id}
    collator(texts)
    seconds = {"ours": [], "published-like": []}
    for _ in range(1 if args.quick else 2):
        # The loops take seconds, ours milliseconds: ours is timed ten times before each of them.
        seconds["ours"].append(medians({"ours": lambda: collator(texts)}, 10)["ours"])
        start = time.perf_counter()
        masking_oracle.collate_like_published(texts, **ids, vocab_size=len(tokenizer), rng=rng)
        seconds["published-like"].append(time.perf_counter() - start)
    return f"collation, {count} texts x {length} tokens (s)", {s: statistics.median(t) for s, t in seconds.items()}


def equal_losses(objective, models, batch, args):
    """Prints how far the sides are apart, after one step each; false if too far."""
    outputs = {side: train_step(model, batch, args) for side, model in models.items()}
    ours, *others = (getattr(model, "lm", model).get_input_embeddings().weight.grad for model in models.values())
    names, equal = [name for name in outputs["ours"] if name.endswith("loss")], True
    for side, gradient in zip(SIDES[1:], others):
        loss = max((outputs["ours"][name] - outputs[side][name]).abs().item() for name in names)
        apart = ((ours - gradient).norm() / gradient.norm()).item()
        equal &= loss <= args.tolerance and apart <= 10 * args.tolerance
        print(f"  {objective} - {side}: losses differ by {loss:.1e}, the embeddings' gradients by {apart:.1e}")
    return equal


def step_memory(side, objective, passages, tokenizer, args):
    """MB that one step adds at its peak; None where the system does not tell. Runs in a fresh process."""
    torch.set_num_threads(args.threads)
    model, batch = make_model(side, objective, args), make_batch(objective, passages, tokenizer, args)
    # A small step first, so that libraries and their buffers are no part of the difference.
    small = [{name: values[:16] for name, values in passage.items()} for passage in passages]
    train_step(model, make_batch(objective, small, tokenizer, args), args)
    model.zero_grad(set_to_none=True)
    if args.device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        train_step(model, batch, args)
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    except (OSError, AttributeError, TypeError):  # not a Linux with glibc
        return None

    def resident_mb(field):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024

    before = resident_mb("VmRSS")
    train_step(model, batch, args)
    return resident_mb("VmHWM") - before


def peak_memory(*inputs, repeats):
    """Median MB of each side, each measurement in a process of its own."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return {}
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["modeling_retromae", "transformers.models.bert.modeling_bert"])  # once for all
    found = {side: [] for side in SIDES}
    for side in SIDES * repeats:
        with context.Pool(1) as pool:
            found[side].append(pool.apply(step_memory, (side, *inputs)))
    return {side: None if None in values else statistics.median(values) for side, values in found.items()}


def machine(args):
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    cpu = next((line.split(": ")[1] for line in lines if line.startswith("model name")), platform.machine())
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    gpu = f", {torch.cuda.get_device_name()}" if args.device == "cuda" else ""
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    return f"{cpu}, {os.cpu_count()} cores{load}{gpu}; {args.threads} threads; {versions}; {time.strftime('%Y-%m-%d')}"


def table(rows):
    lines = [["", "ours", "textbook", "ratio", "published-like", "ratio"]]
    for name, values in rows:
        digits, line = 0 if name.endswith("(MB)") else 3, [name]
        for side in SIDES:
            known = values.get(side) is not None
            line.append(f"{values[side]:.{digits}f}" if known else "-")
            if side != "ours":
                line.append(f"{values[side] / values['ours']:.2f}" if known else "-")
        lines.append(line)
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join(
        line[0].ljust(widths[0]) + "".join(f"  {cell:>{width}}" for cell, width in zip(line[1:], widths[1:]))
        for line in lines
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {**SIZES, "repeats": 5, "threads": torch.get_num_threads()}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32", help="bfloat16 is autocast")
    parser.add_argument("--quick", action="store_true", help="a toy size and one repeat: its numbers mean nothing")
    args = parser.parse_args()
    if args.quick:
        vars(args).update(QUICK)
    args.tolerance = 1e-4 if args.dtype == "float32" else 5e-2
    torch.set_num_threads(args.threads)

    tokenizer, passages = scifact_passages(args)
    print(machine(args))
    lengths = [len(passage["input_ids"]) for passage in passages]
    print(f"hidden {args.hidden_size}, {args.num_layers} layers, vocabulary {args.vocab_size}, {args.dtype};", end=" ")
    print(f"{len(lengths)} passages of SciFact, {min(lengths)} to {max(lengths)} tokens, {sum(lengths)} in all")
    print("Equal numbers:")
    rows, memory_rows, equal = [collation(tokenizer, args)], [], True
    for objective in OBJECTIVES:
        inputs = (objective, passages, tokenizer, args)
        models, batch = {side: make_model(side, objective, args) for side in SIDES}, make_batch(*inputs)
        equal &= equal_losses(objective, models, batch, args)
        steps = {side: partial(train_step, model, batch, args) for side, model in models.items()}
        rows.append((f"{objective}: step (s)", medians(steps, args.repeats)))
        del models, batch, steps
        memory_rows.append((f"{objective}: memory (MB)", peak_memory(*inputs, repeats=1 if args.quick else 3)))
    print(f"\n{table(rows + memory_rows)}\n\n{LEGEND}")
    if not equal:
        sys.exit("The sides do not compute the same: see 'Equal numbers' above.")


if __name__ == "__main__":
    main()
