"""Filling in, titles and query expansion: what was learnt comes out, the same after saving and loading."""

import pytest
import torch
from tokenizers_for_tests import SENTENCES, bert_tokenizer, t5_tokenizer
from toy_models import encoder_config, gur_config, toy_t5
from transformers import BertModel

from modeling_gur import GURForConditionalGeneration, GURForPreTraining, GURModel
from retrieval_pretraining.encoding import pad_right
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.generation import expand_query, fill_in, generate_titles
from retrieval_pretraining.mask_prompts import Prompt, prompt_ids
from retrieval_pretraining.passages import sentinel_ids

DOCUMENTS = ["A dog is chasing the cat through the garden.", "疫苗训练免疫系统对抗病毒。"]

# text around masks, context, what the masks held
LEARNT = [
    (("The ", " sat on the ", "."), "", ["cat", "mat"]),
    (("", " motor ", " sensor ", ""), "", ["The", "without a", "today"]),
    (("今天天气", "，我们去公园。"), "", ["很好"]),
    (("", ""), DOCUMENTS[0], ["The dog"]),
    (("", ""), DOCUMENTS[1], ["疫苗"]),
    (("", " cat ", ""), DOCUMENTS[0], ["A", "and a dog"]),
    (("", " motor control ", ""), "", ["permanent magnet", "needs a model"]),
    (("motor control ", ""), "", ["needs a good model"]),
    (("", " motor control"), "", ["Sensorless"]),
]


@pytest.fixture(scope="module")
def tokenizer():
    return t5_tokenizer()


@pytest.fixture(scope="module")
def model(tokenizer):
    """A pre-training model that knows the examples above by heart, loaded as one that generates."""
    torch.manual_seed(0)
    model = GURForPreTraining(gur_config(vocab_size=len(tokenizer), contrastive_loss_weight=0.0))
    sentinels = sentinel_ids(tokenizer)
    prompts = [prompt_ids(Prompt(pieces, context), tokenizer, sentinels, 64) for pieces, context, _ in LEARNT]
    targets = []
    for _, _, spans in LEARNT:
        cut = [[sentinel, *tokenizer(span)["input_ids"][:-1]] for sentinel, span in zip(sentinels, spans)]
        targets.append([token for span in cut for token in span] + [tokenizer.eos_token_id])
    ids, mask = pad_right(prompts, 0, "cpu")
    labels, real = pad_right(targets, 0, "cpu")
    labels[real == 0] = -100
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        loss = model(ids, mask, labels).loss
        if loss < 0.02:
            break
        loss.backward()
        optimizer.step()
    assert loss < 0.05
    writer = GURForConditionalGeneration(model.config)
    writer.load_state_dict(model.state_dict())
    return writer


@pytest.fixture(scope="module")
def untrained(tokenizer):
    torch.manual_seed(0)
    return GURForConditionalGeneration(gur_config(vocab_size=len(tokenizer))).eval()


@pytest.mark.parametrize("num_beams", [1, 4])
def test_masks_are_filled_with_what_they_held(model, tokenizer, num_beams):
    texts = ["The [MASK] sat on the [MASK].", "今天天气[MASK]，我们去公园。"]
    (cat,), (weather,) = fill_in(model, tokenizer, texts, num_beams=num_beams)
    assert (cat.text, cat.spans) == ("The cat sat on the mat.", ("cat", "mat"))
    assert weather.text == "今天天气很好，我们去公园。"
    other = [texts[0].replace("[MASK]", "___")]
    assert fill_in(model, tokenizer, other, mask="___", num_beams=num_beams)[0][0].text == cat.text


def test_keywords_are_kept_and_the_rest_is_written(model, tokenizer):
    ((result,),) = fill_in(model, tokenizer, [["motor", "sensor"]])
    assert result.text == "The motor without a sensor today"
    results = fill_in(model, tokenizer, [["motor", "SENSOR ß"]], num_prompts=5, num_results=8)[0]
    for result in results:
        assert "motor" in result.text and "SENSOR ß" in result.text


def test_a_title_is_what_a_mask_before_the_document_held(model, tokenizer):
    dog, vaccine = generate_titles(model, tokenizer, DOCUMENTS)
    assert dog[0].text == "The dog" and vaccine[0].text == "疫苗"
    options = dict(keywords=[["cat"], []], num_prompts=1, num_results=1)
    kept, free = generate_titles(model, tokenizer, DOCUMENTS, **options)
    assert (kept[0].text, kept[0].spans) == ("A cat and a dog", ("A", "and a dog"))
    assert free[0].text == "疫苗"


def test_a_query_is_expanded_before_behind_and_on_both_sides(model, tokenizer):
    (results,) = expand_query(model, tokenizer, ["motor control"], num_results=3, num_beams=4)
    assert {result.text for result in results} == {
        "permanent magnet motor control needs a model",
        "motor control needs a good model",
        "Sensorless motor control",
    }


def test_results_differ_are_ranked_and_hold_no_sentinels(untrained, tokenizer):
    for write in (generate_titles, expand_query):
        for results in write(untrained, tokenizer, SENTENCES[:3], num_results=6, max_new_tokens=6):
            assert 1 < len(results) <= 6 and len({result.text for result in results}) == len(results)
            scores = [result.score for result in results]
            assert scores == sorted(scores, reverse=True) and max(scores) < 0.0
            assert not any("extra_id" in result.text or "</s>" in result.text for result in results)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_the_score_is_the_log_probability_over_the_length_to_the_power_of_the_penalty(model, tokenizer, num_beams):
    prompt = Prompt(("The ", " sat on the ", "."))
    (result,) = fill_in(model, tokenizer, ["The [MASK] sat on the [MASK]."], num_beams=num_beams, length_penalty=0.6)[
        0
    ]
    sentinels = sentinel_ids(tokenizer)
    pieces = [tokenizer(span)["input_ids"][:-1] for span in result.spans]
    labels = torch.tensor([[sentinels[0], *pieces[0], sentinels[1], *pieces[1], tokenizer.eos_token_id]])
    ids = torch.tensor([prompt_ids(prompt, tokenizer, sentinels, 64).tolist()])
    with torch.no_grad():
        log_probabilities = model.eval()(ids, labels=labels).logits.log_softmax(-1)
    total = log_probabilities.gather(2, labels[:, :, None]).sum().item()
    assert result.score == pytest.approx(total / labels.shape[1] ** 0.6, abs=1e-5)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_scores_do_not_depend_on_the_batch(model, tokenizer, num_beams):
    texts = ["The [MASK] sat on the [MASK].", "今天天气[MASK]，我们去公园。", "[MASK] motor [MASK] sensor [MASK]"]
    together = fill_in(model, tokenizer, texts, num_beams=num_beams)
    for text, (result,) in zip(texts, together, strict=True):
        ((alone,),) = fill_in(model, tokenizer, [text], num_beams=num_beams)
        assert alone.text == result.text and alone.score == pytest.approx(result.score, abs=1e-5)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_text_is_the_same_after_saving_with_and_without_the_cache(untrained, tokenizer, num_beams, tmp_path):
    options = dict(num_beams=num_beams, num_results=1, max_new_tokens=10)

    def write(model):
        titles = generate_titles(model, tokenizer, DOCUMENTS, **options)
        return [[(title.text, round(title.score, 4)) for title in own] for own in titles]

    expected = write(untrained)
    pretraining = GURForPreTraining(untrained.config)
    pretraining.load_state_dict(untrained.state_dict())
    pretraining.save_pretrained(tmp_path)
    loaded = GURForConditionalGeneration.from_pretrained(tmp_path)
    assert write(loaded) == expected
    loaded.generation_config.use_cache = False
    assert write(loaded) == expected


def test_where_nothing_is_written_there_is_no_title_and_no_expansion(untrained, tokenizer, monkeypatch):
    ids = [token for token in range(len(tokenizer)) if token != tokenizer.eos_token_id]
    monkeypatch.setattr(untrained.generation_config, "suppress_tokens", ids)
    options = dict(num_results=1, num_beams=1)
    assert generate_titles(untrained, tokenizer, DOCUMENTS, **options) == [[], []]
    assert expand_query(untrained, tokenizer, ["motor"], **options) == [[]]
    ((result,),) = fill_in(untrained, tokenizer, ["The [MASK] sat."], **options)
    assert (result.text, result.spans) == ("The sat.", ("",))


def test_the_size_of_batches_changes_no_text(untrained, tokenizer):
    options = dict(num_results=2, max_new_tokens=6)
    texts = [f"{sentence} [MASK]" for sentence in SENTENCES[:7]]
    expected = fill_in(untrained, tokenizer, texts, batch_size=7, **options)
    found = fill_in(untrained, tokenizer, texts, batch_size=2, **options)
    assert [[each.text for each in own] for own in found] == [[each.text for each in own] for own in expected]


def test_dropout_is_off_and_the_model_stays_as_it_was(tokenizer):
    torch.manual_seed(0)
    model = GURForConditionalGeneration(gur_config(vocab_size=len(tokenizer), dropout_rate=0.5)).train()
    model.decoder.eval()
    flags = [module.training for module in model.modules()]
    first, second = (fill_in(model, tokenizer, ["a [MASK] b"], max_new_tokens=6) for _ in range(2))
    assert first == second and [module.training for module in model.modules()] == flags


def test_a_plain_t5_is_used_as_well(tokenizer):
    model = toy_t5()
    model.resize_token_embeddings(len(tokenizer))
    ((result,),) = fill_in(model, tokenizer, ["The [MASK] sat."], max_new_tokens=5)
    assert result.text.startswith("The ") and result.text.endswith("sat.")


@pytest.mark.parametrize(
    ("write", "texts", "options", "said"),
    [
        (fill_in, [], {}, "no texts; give at least one"),
        (fill_in, "The [MASK]", {}, "texts are one string"),
        (fill_in, ["The cat"], {}, r"texts\[0\] has no \[MASK\]"),
        (fill_in, ["a [MASK]", None], {}, r"texts\[1\] is of type NoneType; give a text or a list of keywords"),
        (fill_in, [["a", ""]], {}, r"texts\[0\] has an empty keyword"),
        (fill_in, [[]], {}, r"no texts\[0\]; give at least one"),
        (fill_in, ["a [MASK]"], {"mask": ""}, "mask is empty"),
        (fill_in, ["a [MASK]"], {"num_results": 0}, "num_results is 0; use 1 or more"),
        (fill_in, ["a [MASK]"], {"num_beams": 0}, "num_beams is 0"),
        (fill_in, ["a [MASK]"], {"num_prompts": 0}, "num_prompts is 0"),
        (fill_in, ["a [MASK]"], {"max_new_tokens": 0}, "max_new_tokens is 0"),
        (fill_in, ["a [MASK]"], {"batch_size": 0}, "batch_size is 0"),
        (fill_in, ["a [MASK]"], {"max_seq_length": 2}, "A prompt has 3 tokens, more than max_seq_length 2"),
        (generate_titles, [], {}, "no documents"),
        (generate_titles, ["a", " "], {}, r"documents\[1\] is empty"),
        (generate_titles, ["a"], {"keywords": [["b"], ["c"]]}, "1 documents and 2 lists of keywords"),
        (expand_query, [], {}, "no queries"),
        (expand_query, ["a", ""], {}, r"queries\[1\] has an empty keyword"),
    ],
)
def test_bad_input_is_an_error_in_a_sentence(untrained, tokenizer, write, texts, options, said):
    with pytest.raises(InputError, match=said):
        write(untrained, tokenizer, texts, **options)


def test_models_without_a_decoder_and_tokenizers_without_sentinels_are_refused(untrained, tokenizer):
    config = gur_config(vocab_size=len(tokenizer))
    for model in (GURModel(config), GURForPreTraining(config), BertModel(encoder_config())):
        with pytest.raises(InputError, match=f"{type(model).__name__} cannot write; load .* GURForConditionalGenera"):
            fill_in(model, tokenizer, ["a [MASK]"])
    with pytest.raises(InputError, match="has no eos token and no sentinels"):
        fill_in(untrained, bert_tokenizer(), ["a [MASK]"])
    with pytest.raises(InputError, match="not among the 99 tokens of the model; load the tokenizer of the same"):
        fill_in(GURForConditionalGeneration(gur_config()), tokenizer, ["a [MASK]"])
