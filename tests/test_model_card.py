"""The card of a model: metadata that the Hub takes, text that says what was done, snippets that run as they stand."""

import ast
import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from fresh_process import in_fresh_process
from gur_runs import gur, make_inputs
from huggingface_hub import ModelCard
from report_results import full
from toy_models import gur_config, retromae_config

from modeling_gur import GURForPreTraining
from modeling_retromae import RetroMAEForMaskedLM, RetroMAEForPreTraining
from retrieval_pretraining import card_plots, objectives
from retrieval_pretraining.arguments import DataArguments, ModelArguments, PretrainingArguments, parse_arguments
from retrieval_pretraining.card_arguments import CardArguments
from retrieval_pretraining.card_metadata import check_card, hub_id, license_fields, without_nothing
from retrieval_pretraining.card_results import update_model_card
from retrieval_pretraining.co2 import CO2Tracker
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.hub_files import model_files
from retrieval_pretraining.model_card import model_card, write_model_card

ROOT = Path(__file__).parents[1]
MEASURED = {
    "passages": 60,
    "max_seq_length": 64,
    "steps": 4,
    "seconds": 3725.0,
    "train": {"train_encoder_mlm_loss": 3.5, "train_loss": 3.5},
    "eval": {"eval_encoder_mlm_loss": 3.25},
    "retrieval_name": "toy",
    "retrieval": {"before": {"ndcg@10": 0.25}, "after": {"ndcg@10": 0.5}},
    "bm25": {"ndcg@10": 0.75},
    "log_history": [{"step": 1, "encoder_mlm_loss": 4.0}, {"step": 2, "encoder_mlm_loss": 3.0}],
}


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def models():
    config = retromae_config()
    return {
        "retromae": RetroMAEForPreTraining(config),
        "dupmae": RetroMAEForPreTraining(retromae_config(bow_loss_weight=0.1)),
        "mlm": RetroMAEForMaskedLM(config),
        "gur": GURForPreTraining(gur_config()),
    }


def objective(kind="retromae", *, base="google-bert/bert-base-uncased", text=None, card=None, **flags):
    data = DataArguments(**({"train_file": ["text.txt"]} if text is None else text))
    model = ModelArguments(model_name_or_path=base, objective=kind)
    args = PretrainingArguments(output_dir="out", use_cpu=True, **flags)
    return objectives.OBJECTIVES[kind](objectives.Run(model, data, args, card=card or CardArguments()))


def head(text: str) -> dict:
    return yaml.safe_load(text.split("---\n")[1])


# --- Metadata -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["retromae", "dupmae", "mlm", "gur"])
def test_the_least_that_is_known_makes_a_card_that_passes(models, kind):
    text = model_card("out", models[kind], objective(kind), {"passages": None, "max_seq_length": 64})
    data = check_card(text)
    assert kind in data["tags"] and len(set(data["tags"])) == len(data["tags"])
    assert data["base_model"] == "google-bert/bert-base-uncased"
    assert not {"datasets", "language", "license", "model-index", "co2_eq_emissions"} & data.keys()
    assert "Nothing was measured yet." in text and "None" not in text


@pytest.mark.parametrize("base", ["./dir with space", "/models/bert", "~/bert", "local-model", "local/model", "a//b"])
def test_what_lies_on_this_machine_is_no_base_model(models, base):
    Path("local/model").mkdir(parents=True)
    Path("local-model").mkdir()
    text = model_card("out", models["retromae"], objective(base=base), MEASURED)
    assert "base_model" not in head(text) and "/models" not in text


def test_datasets_are_those_of_the_hub_alone(models):
    Path("mine").mkdir()
    files = [
        "a.txt",
        "/data/secret/*.txt",
        "hf://datasets/me/mine@main/x.jsonl",
        "s3://user:password@bucket/b.txt?key=1",
    ]
    text = model_card("out", models["retromae"], objective(text={"train_file": files}), MEASURED)
    assert head(text)["datasets"] == ["me/mine"]
    assert "| text | a.txt, *.txt, hf://datasets/me/mine@main/x.jsonl, s3://bucket/b.txt |" in text
    for name, expected in (("mine", None), ("wikitext", ["wikitext"]), ("me/mine", ["me/mine"])):
        text = model_card("out", models["retromae"], objective(text={"dataset_name": name}), MEASURED)
        assert head(text).get("datasets") == expected


@pytest.mark.parametrize("name", ['so "called" model', "it's: a #model", "中文 模型", "a\nb", "{{ x }} \\ |"])
def test_any_name_of_the_folder(models, name):
    text = model_card(name, models["retromae"], objective(), MEASURED)
    assert check_card(text)["model-index"][0]["name"] == " ".join(name.split())
    for code in snippets(text):
        compile(code, "card", "exec")
        loaded = [node.args[0].value for node in ast.walk(ast.parse(code)) if is_loading(node)]
        assert loaded and set(loaded) == {name}


def test_languages_stay_text(models):
    for languages in (["no"], ["en", "zh"], ["no", "on"]):
        text = model_card("out", models["retromae"], objective(card=CardArguments(language=languages)), MEASURED)
        assert head(text)["language"] == languages
        assert f"({', '.join(languages)})" in text


@pytest.mark.parametrize("written, meant", [("no", ["no"]), ("[no, en]", ["no", "en"]), ("zh", ["zh"])])
def test_norwegian_in_a_recipe_is_a_language(written, meant):
    Path("recipe.yaml").write_text(f"language: {written}\n")
    assert parse_arguments([CardArguments], ["recipe.yaml"])[0].language == meant


def test_licences():
    assert license_fields(None) == {}
    assert license_fields("Apache-2.0") == {"license": "apache-2.0"}
    assert license_fields("My Own, v2") == {"license": "other", "license_name": "my-own-v2"}


def test_what_is_not_a_number_is_left_out(models):
    measured = {**MEASURED, "train": {"train_encoder_mlm_loss": float("nan")}, "bm25": None}
    measured["retrieval"] = {
        "before": {"ndcg@10": 0.1, "mrr@10": 0.1},
        "after": {"ndcg@10": float("nan"), "mrr@10": 0.5},
    }
    text = model_card("out", models["retromae"], objective(), measured)
    (result,) = head(text)["model-index"][0]["results"]
    assert [(metric["type"], metric["value"]) for metric in result["metrics"]] == [("mrr@10", 0.5)]
    assert "nan" not in text and "| **this model** | – | 0.500 |" in text
    measured["retrieval"] = {"after": {"ndcg@10": float("inf")}}
    assert "model-index" not in head(model_card("out", models["retromae"], objective(), measured))
    assert without_nothing({"tags": [], "datasets": [None], "a": {"b": float("nan")}, "zero": 0, "no": False}) == {
        "zero": 0,
        "no": False,
    }


@pytest.mark.parametrize(
    "yaml_text, message",
    [
        ("tags: []", "tags []"),
        ("datasets:\n- null", "datasets.0 None"),
        ("model-index:\n- name: x\n  results: []", "model-index.0.results []"),
        ("license: [mit]", "license ['mit'], which is no text"),
        ("license: mine", "license 'mine', which the Hub lacks"),
        ("language: no", "language False, which is no text"),
        ("language: Chinese", "language 'Chinese', which is no ISO 639"),
        ("tags:\n- a: b", "which is no text"),
        ("base_model: ./a b", "base_model './a b', which is no name"),
        ("co2_eq_emissions:\n  emissions: .nan", "co2_eq_emissions.emissions nan"),
        ("a: 'b", "is not YAML"),
        ("just text", "is not a list"),
        ("model-index:\n- name: x\n  results:\n  - task: {type: y}", "cannot be read"),
    ],
)
def test_metadata_that_the_hub_refuses_is_refused_here(yaml_text, message):
    with pytest.raises(InputError, match=re.escape(message)):
        check_card(f"---\n{yaml_text}\n---\n\n# x\n")


def test_tags_with_colons_in_chinese_and_quoted_pass():
    tags = ["a: b", "中文", 'so "called"', "no"]
    text = f"---\n{yaml.safe_dump({'tags': tags}, allow_unicode=True)}---\n\n# x\n"
    assert check_card(text)["tags"] == tags
    with pytest.raises(InputError, match="has no metadata"):
        check_card("# x\n")


def test_names_of_the_hub():
    assert [hub_id(name) for name in ("me/mine", "bert", None, "", "a/b/c", "hf://me/mine/x", "gs://a/b")] == [
        *("me/mine", "bert", None, None, None, "me/mine", None)
    ]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"language": ["Chinese"]}, "--language Chinese is no code of ISO 639"),
        ({"license": " "}, "--license is empty"),
        ({"co2_country": "FRA"}, "no effect without --track_co2"),
        ({"co2_country": "France", "track_co2": True}, "three capital letters"),
    ],
)
def test_mistakes_are_found_before_the_run(options, message):
    with pytest.raises(InputError, match=message):
        CardArguments(**options).check()


# --- Text ---------------------------------------------------------------------------------------------------------


def test_a_decoder_that_nothing_trained_is_not_offered(models):
    model = GURForPreTraining(gur_config(lm_loss_weight=0.0))
    scratch, counted = (model_card("out", model, objective("gur", base=base), MEASURED) for base in (None, "me/gur"))
    own_choice = objective("gur", base="t5-small")  # T5's decoder writes
    own_choice.run.gur.lm_loss_weight = 0.0
    taken = model_card("out", model, own_choice, MEASURED)
    assert "writes" not in counted and "text2text-generation" not in head(counted)["tags"]
    trained = model_card("out", models["gur"], objective("gur", base=None), MEASURED)
    for card in (taken, trained):
        assert "writes" in card and "writer.generate" in card and "text2text-generation" in head(card)["tags"]
    assert "writes" not in scratch and "generate" not in scratch and "AutoModelForSeq2SeqLM" not in scratch
    assert "Its decoder was not trained." in scratch and "text2text-generation" not in head(scratch)["tags"]
    assert "GUR without its language model" in scratch and "fills in masked spans" not in scratch
    assert "| how pairs were mined | lcs, if the text had none |" in scratch
    mined = objective("gur")
    mined.run.gur.pair_strategies = ["crop", "title"]
    assert "| how pairs were mined | crop, title, if the text had none |" in model_card("out", model, mined, MEASURED)
    assert "searches and classifies" in scratch and "\n\n\n" not in scratch


def test_the_stage_is_in_plain_words(models):
    retromae, gur_card = (model_card("out", models[kind], objective(kind), MEASURED) for kind in ("retromae", "gur"))
    assert "pre-trained only.** It has seen no labels and no questions, and needs fine-tuning" in retromae
    assert "with no fine-tuning, on text like" in " ".join(gur_card.split())
    for card in (retromae, gur_card):
        assert "for order, not value" in card and "| prompts | none |" in card and "| weights | float32 |" in card


@pytest.mark.parametrize(
    "kind, cited",
    [
        ("retromae", {"2205.12035"}),
        ("dupmae", {"2205.12035", "2211.08769"}),
        ("mlm", {"1810.04805"}),
        ("gur", {"2306.10056"}),
    ],
)
def test_only_the_objective_that_was_used_is_cited(models, kind, cited):
    card = model_card("out", models[kind], objective(kind), MEASURED)
    assert set(re.findall(r"\d{4}\.\d{5}", card.split("## Citation")[1])) == cited


def test_the_facts_of_a_run(models):
    of_run = objective("dupmae", gradient_accumulation_steps=2, card=CardArguments(license="mit", language=["en"]))
    of_run.token_count = "1,234"
    measured = {**MEASURED, "documents": 70, "resumed_at": 2, "co2_grams": 12.34, "cleaning": "a | b"}
    card = model_card("out", models["dupmae"], of_run, measured)
    facts = (
        "losses | 1 x encoder_mlm_loss, 1 x decoder_mlm_loss, 0.1 x bag_of_words_loss",
        "documents | 70",
        "batch | 16",
    )
    facts += (
        "passages | 60",
        "tokens | 1,234",
        "time | 1 h 2 min 5 s, from step 2 on",
        "precision | float32",
        "steps | 4",
    )
    facts += (
        "masked for the encoder | 0.3 of the tokens",
        "hidden from the decoder | 0.5 of the tokens",
        "language | en",
    )
    for fact in (*facts, "cleaned | a \\| b", "CO2 | 12.3 g (estimate of codecarbon)"):
        assert f"| {fact} |" in card, fact
    assert re.search(r"\| hardware \| .+, 1 process \|", card)
    assert head(card)["co2_eq_emissions"]["emissions"] == 12.34 and head(card)["license"] == "mit"


def test_results_stand_beside_bm25_and_the_base_model(models):
    card = model_card("out", models["retromae"], objective(), MEASURED)
    assert "| BM25 | 0.750 |\n| before this training | 0.250 |\n| **this model** | 0.500 |" in card
    assert "it is behind BM25 here" in card and "| encoder_mlm_loss | 3.5000 | 3.2500 |" in card


def test_a_push_while_training_has_rows_of_the_log_and_no_results(models):
    rows = {"loss": 4.0, "encoder_mlm_loss": 3.0, "grad_norm": 1.0, "step": 2, "epoch": 0.1}
    measured = {"passages": 60, "max_seq_length": 64, "steps": 2, "seconds": 1.0, "train": rows}
    card = model_card("out", models["retromae"], objective(), {**measured, "retrieval": {"before": {"ndcg@10": 0.2}}})
    assert (
        "| encoder_mlm_loss | 3.0000 |" in card and "last steps" in card and "| before this training | 0.200 |" in card
    )
    assert "model-index" not in head(card)
    assert "Nothing was measured" in model_card("out", models["retromae"], objective(), {**measured, "train": {}})


# --- Images -------------------------------------------------------------------------------------------------------


def test_the_images_are_written_shown_and_pushed(models, tmp_path):
    pytest.importorskip("matplotlib")
    model = models["retromae"]
    model.save_pretrained("out")
    path = write_model_card("out", model, objective(), MEASURED)
    shown = re.findall(r"!\[[^\]]+\]\((.+?)\)", path.read_text(encoding="utf-8"))
    assert sorted(shown) == ["images/losses.png", "images/retrieval.png"]
    Path("out/images/mine.png").write_bytes(b"of the user")
    pushed = model_files("out")
    assert {*shown} < pushed.keys() and "images/mine.png" not in pushed
    assert all(Path("out", name).read_bytes().startswith(b"\x89PNG") for name in shown)
    first = Path("out/images/losses.png").read_bytes()
    write_model_card("out", model, objective(), MEASURED)
    assert Path("out/images/losses.png").read_bytes() == first
    write_model_card("out", model, objective(), {**MEASURED, "log_history": []})
    assert not Path("out/images/losses.png").exists()


def test_a_card_without_matplotlib_has_no_images(models, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert card_plots.write_plots("out", MEASURED) == {}
    Path("out").mkdir()
    assert "![" not in write_model_card("out", models["retromae"], objective(), MEASURED).read_text(encoding="utf-8")


# --- Evaluations --------------------------------------------------------------------------------------------------


def test_an_evaluation_and_the_card_keep_each_other(models):
    Path("out").mkdir()
    path = write_model_card("out", models["retromae"], objective(), MEASURED)
    before = path.read_text(encoding="utf-8")
    update_model_card("out", full(), "after")
    evaluated = path.read_text(encoding="utf-8")
    assert before.split("---\n", 2)[2].rstrip() in evaluated and "## Evaluation" in evaluated
    check_card(evaluated)
    again = write_model_card("out", models["retromae"], objective(), MEASURED).read_text(encoding="utf-8")
    assert again == evaluated
    names = [result.dataset_name for result in ModelCard(again).data.eval_results]
    assert names[0] == "toy" and "scifact" in names


def test_scores_of_earlier_weights_are_said_to_be_so(models):
    Path("out").mkdir()
    path = write_model_card("out", models["retromae"], objective(), MEASURED)
    update_model_card("out", full(), "after")
    for _ in range(2):
        write_model_card("out", models["retromae"], objective(), {**MEASURED, "steps": 8})
    card = path.read_text(encoding="utf-8")
    assert card.count("Measured before the training went on") == card.count("## Evaluation") == 1
    # Steps are the same the second time, and the scores of the first have not come back.
    assert [result.dataset_name for result in ModelCard(card).data.eval_results] == ["toy"]
    update_model_card("out", full(), "after")
    assert "Measured before" not in path.read_text(encoding="utf-8")


# --- CO2 ----------------------------------------------------------------------------------------------------------


def test_a_failing_estimate_of_co2_is_one_line(monkeypatch):
    said = []
    monkeypatch.setitem(sys.modules, "codecarbon", None)
    tracker = CO2Tracker("FRA", said.append)
    assert tracker.stop() is None and len(said) == 1 and said[0].startswith("without CO2: ")


def is_loading(node) -> bool:
    if not isinstance(node, ast.Call):
        return False
    return getattr(node.func, "attr", getattr(node.func, "id", "")) in ("from_pretrained", "SentenceTransformer")


# --- Snippets -----------------------------------------------------------------------------------------------------


def snippets(card: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", card, flags=re.DOTALL)


def test_the_snippets_of_gur_run_as_they_stand_without_this_project(tmp_path):
    """Those of RetroMAE: tests/test_run_pretrain.py."""
    version = pytest.importorskip("sentence_transformers").__version__
    shared = make_inputs(tmp_path / "shared")
    assert gur(shared, tmp_path / "me/my-gur") == 0
    card = (tmp_path / "me/my-gur/README.md").read_text(encoding="utf-8")
    first, second, third = snippets(card.replace('"my-gur"', '"me/my-gur"'))
    with_sentence_transformers = int(version.split(".")[0]) >= 6
    code = f"{first}\nfirst = vectors\n" * with_sentence_transformers + second
    code += "\nassert abs(vectors.numpy() - first).max() < 1e-5\n" * with_sentence_transformers
    code += f"\none = filled\n{third}\nimport json; print(json.dumps([list(one.shape), list(filled.shape)]))"
    shapes = json.loads(in_fresh_process(code, tmp_path / "me/my-gur", tmp_path).splitlines()[-1])
    assert [shape[0] for shape in shapes] == [1, 1]
