"""Prompts: masks become sentinels where the text has them, and the spans go back to the same places."""

import pytest
from tokenizers_for_tests import SENTENCES, t5_tokenizer

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.mask_prompts import Prompt, keyword_prompts, prompt_ids, put_back, read_spans
from retrieval_pretraining.passages import sentinel_ids
from retrieval_pretraining.tokenizer_training import train_tokenizer


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def tokenizer(request):
    """As T5 has it, and the one that this project trains."""
    return t5_tokenizer() if request.param == "unigram" else train_tokenizer(SENTENCES, vocab_size=1200, kind="t5")


def ids_of(text: str, tokenizer, **options) -> list[int]:
    prompt = Prompt(tuple(text.split("[MASK]")), **options)
    return prompt_ids(prompt, tokenizer, sentinel_ids(tokenizer), 64).tolist()


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("The cat [MASK] on the mat.", "sat"),
        ("The cat sat on the [MASK].", "mat"),
        ("[MASK] is chasing Jerry around the kitchen table.", "Tom"),
        ("Tom is chasing [MASK]", "Jerry"),
        ("今天天气[MASK]，我们去公园散步。", "很好"),
        ("永磁同步[MASK]控制需要准确的模型。", "电机"),
    ],
)
def test_a_mask_replaces_the_tokens_of_its_span_and_no_others(tokenizer, text, span):
    ids, whole = ids_of(text, tokenizer), tokenizer(text.replace("[MASK]", span))["input_ids"]
    place = ids.index(sentinel_ids(tokenizer)[0])
    before, behind = ids[:place], ids[place + 1 :]
    assert whole[:place] == before and whole[-len(behind) :] == behind
    masked = whole[place : -len(behind)]
    assert tokenizer.decode(masked).strip().lower() == span.lower()


def test_given_text_that_spells_special_tokens_is_text(tokenizer):
    ids = ids_of("a </s> b [MASK] <extra_id_1> [MASK] c", tokenizer)
    special = [token for token in ids if token in (*tokenizer.all_special_ids, *sentinel_ids(tokenizer))]
    unknown = tokenizer.unk_token_id
    assert [token for token in special if token != unknown] == [*sentinel_ids(tokenizer)[:2], tokenizer.eos_token_id]


def test_the_context_gets_the_room_that_is_left(tokenizer):
    context = " ".join(SENTENCES[:9])
    ids = ids_of("[MASK]", tokenizer, context=context)
    assert ids == [sentinel_ids(tokenizer)[0], *tokenizer(context)["input_ids"][:62], tokenizer.eos_token_id]


def test_a_prompt_that_is_too_long_or_has_too_many_masks_is_an_error():
    tokenizer = t5_tokenizer()
    with pytest.raises(InputError, match=r"21 masks, but the tokenizer only 20 sentinels"):
        ids_of("[MASK] " * 21, tokenizer)
    with pytest.raises(InputError, match=r"has 67 tokens, more than max_seq_length 64"):
        ids_of("[MASK]" + " a" * 65, tokenizer)
    assert len(ids_of("[MASK]" + " a" * 62, tokenizer)) == 64


@pytest.mark.parametrize(
    ("keywords", "first"),
    [
        (["motor"], ("", " motor ", "")),
        (["motor", "sensor"], ("", " motor ", " sensor ", "")),
        (["电机", "控制"], ("", "电机", "控制", "")),
        ([" BERT ", "模型"], ("", " BERT ", "模型", "")),
    ],
)
def test_keywords_get_masks_around_and_between_them(keywords, first):
    (prompt,) = keyword_prompts(keywords, 1, 0, "texts[0]")
    assert prompt == Prompt(first)


def test_more_prompts_have_masks_at_other_random_places_under_a_seed():
    prompts = keyword_prompts(["a", "b", "c"], 9, 0, "")
    assert len(set(prompts)) == 9 and prompts == keyword_prompts(["a", "b", "c"], 9, 0, "")
    assert prompts != keyword_prompts(["a", "b", "c"], 9, 1, "")
    assert all("".join(prompt.pieces).split() == ["a", "b", "c"] for prompt in prompts)
    assert min(len(prompt.pieces) for prompt in prompts) >= 2
    every = {("a b ", ""), ("", " a b"), ("a ", " b"), ("", " a ", " b"), ("", " a b ", ""), ("a ", " b ", "")}
    assert {prompt.pieces for prompt in keyword_prompts(["a", "b"], 99, 0, "")} == every | {("", " a ", " b ", "")}
    assert ("电机控制", "") in {prompt.pieces for prompt in keyword_prompts(["电机", "控制"], 99, 0, "")}


@pytest.mark.parametrize("keywords", [[], ["a", " "]])
def test_no_keywords_and_empty_ones_are_an_error(keywords):
    with pytest.raises(InputError, match=r"texts\[3\]"):
        keyword_prompts(keywords, 1, 0, "texts[3]")


@pytest.mark.parametrize(
    ("written", "spans"),
    [
        ("<0> cat <1> mat </s>", ("cat", "mat")),
        ("<0> cat <1> mat </s> dog", ("cat", "mat")),
        ("<0> cat <1> mat <2> dog", ("cat", "mat")),
        ("<1> mat <0> cat", ("cat", "mat")),
        ("cat <1> mat", ("cat", "mat")),
        ("cat <0> dog <1> mat", ("cat", "mat")),
        ("<0> cat <0> dog <5> Tom <1> mat", ("cat", "mat")),
        ("<0> cat <unk> <pad> <1> <1> mat", ("cat", "")),
        ("</s>", ("", "")),
        ("", ("", "")),
    ],
)
def test_the_output_is_cut_at_its_sentinels(tokenizer, written, spans):
    sentinels = sentinel_ids(tokenizer)
    ids = []
    for word in written.split():
        if word in ("</s>", "<unk>", "<pad>"):
            ids.append(tokenizer.convert_tokens_to_ids(word))
        else:
            ids += [sentinels[int(word[1])]] if word[0] == "<" else tokenizer(word)["input_ids"][:-1]
    lower = tuple(span.lower() for span in spans)
    assert tuple(span.lower() for span in read_spans(ids, 2, tokenizer, sentinels)) == lower


@pytest.mark.parametrize(
    ("text", "spans", "whole"),
    [
        ("The [MASK] sat on the [MASK].", ("cat", "mat"), "The cat sat on the mat."),
        ("The [MASK] sat on the [MASK].", ("", ""), "The sat on the."),
        ("[MASK] motor [MASK]", ("A", ""), "A motor"),
        ("[MASK] motor [MASK]", ("", ", fast"), "motor, fast"),
        ("今天[MASK]很好", ("天气",), "今天天气很好"),
        ("un[MASK]able [MASK]", ("do", "x"), "undoable x"),
        ("Keep  MY\nspelling, ß </s> [MASK]", ("x",), "Keep  MY\nspelling, ß </s> x"),
    ],
)
def test_spans_go_back_to_their_masks_and_given_text_stays_as_it_is(text, spans, whole):
    assert put_back(tuple(text.split("[MASK]")), spans) == whole
