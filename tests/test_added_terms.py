"""Terms of a domain: one token each in every kind of tokenizer, and all other text as before."""

import json

import pytest
from tokenizers_for_tests import (
    CHINESE,
    ENGLISH,
    SENTENCES,
    bert_tokenizer,
    roberta_tokenizer,
    t5_tokenizer,
    unigram_tokenizer,
)
from transformers import AutoTokenizer, RobertaTokenizer, T5Tokenizer, XLMRobertaTokenizer

from retrieval_pretraining.added_terms import add_terms, own_pieces, read_terms
from retrieval_pretraining.errors import InputError
from retrieval_pretraining.passages import encode_documents
from retrieval_pretraining.tokenizer_training import train_tokenizer

TERMS = ["endonuclease", "IL-2", "无传感器", "heat wall", "caféine"]


def model_of(tokenizer) -> dict:
    return json.loads(tokenizer.backend_tokenizer.to_str())["model"]


def roberta_of_its_own_class():
    model = model_of(roberta_tokenizer())
    return RobertaTokenizer(vocab=model["vocab"], merges=[tuple(merge) for merge in model["merges"]])


def t5_of_its_own_class():
    pieces = [tuple(piece) for piece in model_of(t5_tokenizer())["vocab"][:-20]]
    return T5Tokenizer(vocab=[*pieces, *((f"<extra_id_{number}>", 0.0) for number in reversed(range(100)))])


def xlm_roberta_of_its_own_class():
    pieces = [tuple(piece) for piece in model_of(unigram_tokenizer())["vocab"] if piece[0] != "<mask>"]
    return XLMRobertaTokenizer(vocab=[*pieces, ("<mask>", 0.0)])


def t5_of_ours():
    return train_tokenizer(SENTENCES, vocab_size=900, kind="t5")


KINDS = [
    bert_tokenizer,
    roberta_tokenizer,
    unigram_tokenizer,
    t5_tokenizer,
    t5_of_ours,
    roberta_of_its_own_class,
    t5_of_its_own_class,
    xlm_roberta_of_its_own_class,
]
every_kind = pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)


def tokens_of(tokenizer, text: str) -> list[str]:
    return tokenizer.convert_ids_to_tokens(tokenizer(text, add_special_tokens=False)["input_ids"])


@every_kind
def test_a_term_is_one_token_wherever_it_is_a_word(make):
    tokenizer = make()
    result = add_terms(tokenizer, TERMS)
    assert len(result.added) == 5 and not result.never_found
    ids = {term: len(tokenizer) + number for number, term in enumerate(TERMS)}
    for text, terms in {
        "the endonuclease of the cell": ["endonuclease"],
        "endonuclease, IL-2.": ["endonuclease", "IL-2"],
        "a (endonuclease) and\theat wall": ["endonuclease", "heat wall"],
        "caféine": ["caféine"],
        "使用无传感器控制": ["无传感器"],
        "the 无传感器 motor": ["无传感器"],
    }.items():
        found = [number for number in result.tokenizer(text)["input_ids"] if number >= len(tokenizer)]
        assert found == [ids[term] for term in terms], text


@every_kind
def test_a_term_takes_no_part_of_a_longer_word(make):
    tokenizer = make()
    more = add_terms(tokenizer, TERMS).tokenizer
    for text in ("endonucleases", "IL-22 and MIL-2", "the heat walls"):
        assert not {number for number in more(text)["input_ids"] if number >= len(tokenizer)}, text


@every_kind
def test_text_without_terms_keeps_its_tokens(make):
    tokenizer = make()
    more = add_terms(tokenizer, ["endonuclease", "永磁电机"]).tokenizer
    odd = ["  two  spaces ", "\ttabs\nand lines\n", "a\u00a0b\u3000c", "", " ", "我用BERT模型", "(x) , y"]
    for text in [*ENGLISH, *CHINESE, *odd]:
        assert more(text)["input_ids"] == tokenizer(text)["input_ids"], text
        assert more(text, text)["input_ids"] == tokenizer(text, text)["input_ids"], text


@every_kind
def test_a_term_comes_back_from_its_token(make):
    more = add_terms(make(), ["endonuclease", "无传感器"]).tokenizer
    spaces = "" if more.convert_tokens_to_ids("[CLS]") is None or "##s" not in more.get_vocab() else " "
    for text in ("the endonuclease of the cell", f"电{spaces}机{spaces}无传感器{spaces}控{spaces}制"):
        assert more.decode(more(text)["input_ids"], skip_special_tokens=True).strip() == text


@every_kind
def test_the_tokenizer_with_terms_loads_from_its_folder(make, tmp_path):
    tokenizer = make()
    more = add_terms(tokenizer, TERMS).tokenizer
    more.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = f"The endonuclease, 无传感器 and IL-2 {tokenizer.mask_token or '<extra_id_0>'} (heat wall)"
    for given in ((text,), (text, "IL-2")):
        assert dict(loaded(*given)) == dict(more(*given))
    ids = more(text)["input_ids"]
    assert loaded.decode(ids) == more.decode(ids)
    assert loaded.all_special_ids == tokenizer.all_special_ids and len(loaded) == len(tokenizer) + 5
    assert {*tokenizer.get_vocab().items()} < {*loaded.get_vocab().items()}


@every_kind
def test_a_term_is_a_word_of_its_own_for_whole_word_masking(make):
    tokenizer = make()
    more = add_terms(tokenizer, TERMS).tokenizer
    encoded = encode_documents(["the heat wall of IL-2 cells, 电机无传感器控制"], more, max_seq_length=64)
    ids, words = encoded["input_ids"][0], encoded["word_ids"][0]
    terms = [position for position, number in enumerate(ids) if number >= len(tokenizer)]
    assert len(terms) == 3
    for position in terms:
        assert words[position] >= 0 and words.count(words[position]) == 1


def test_a_tokenizer_of_lower_case_finds_a_term_in_any_case():
    for tokenizer in (bert_tokenizer(), t5_of_ours()):
        result = add_terms(tokenizer, ["BRCA1", "brca1", "Sjögren"])
        assert result.repeated == 1 and len(result.added) == 2
        for text in ("the BRCA1", "the brca1", "the Brca1"):
            assert result.tokenizer(text)["input_ids"] == result.tokenizer("the BRCA1")["input_ids"]
            assert len(tokenizer) in result.tokenizer(text)["input_ids"]
        assert len(tokenizer) + 1 in result.tokenizer("with SJÖGREN ...")["input_ids"]


def test_an_english_term_is_found_between_chinese_letters():
    for make in KINDS:
        if "roberta" in make.__name__ and "xlm" not in make.__name__:
            continue  # bytes do not show where a script ends
        tokenizer = make()
        more = add_terms(tokenizer, ["endonuclease"]).tokenizer
        assert tokens_of(more, "使用endonuclease控制").count("endonuclease") == 1, make.__name__
        assert "\ufdd0" not in more.decode(more("使用endonuclease控制")["input_ids"])


def test_terms_that_are_one_token_already_are_left_out():
    for make in KINDS:
        tokenizer = make()
        result = add_terms(tokenizer, ["the", "endonuclease", "的"])
        known = sum(len(own_pieces(tokenizer, word)) == 1 for word in ("the", "的"))
        assert result.known == known >= 1 and len(result.added) == 3 - known, make.__name__


def test_nothing_new_gives_the_same_tokenizer():
    result = add_terms(bert_tokenizer(), ["the", "cat"])
    assert result.tokenizer is bert_tokenizer() and result.known == 2 and not result.added


@every_kind
def test_the_given_tokenizer_stays_as_it_was(make):
    tokenizer = make()
    before = len(tokenizer), tokenizer("the endonuclease")["input_ids"]
    add_terms(tokenizer, TERMS)
    assert before == (len(tokenizer), tokenizer("the endonuclease")["input_ids"])


def test_padding_set_by_an_earlier_call_does_not_count_as_pieces():
    tokenizer = train_tokenizer(SENTENCES, vocab_size=700)
    tokenizer.backend_tokenizer.enable_padding(length=32)
    tokenizer.backend_tokenizer.enable_truncation(2)
    result = add_terms(tokenizer, ["endonuclease", "the"])
    assert result.added == ["endonuclease"] and result.known == 1 and not result.never_found


def test_a_term_that_is_not_found_even_alone_is_named():
    # The special token in it is found first.
    result = add_terms(roberta_tokenizer(), ["endonuclease", "endo<mask>nuclease"])
    assert result.never_found == ("endo<mask>nuclease",)


@pytest.mark.parametrize("term", ["\u200b", "\u0301"])
def test_a_term_of_which_normalisation_leaves_nothing_is_refused(term):
    with pytest.raises(InputError, match="leaves nothing"):
        add_terms(bert_tokenizer(), [term])


# --- The file ---


def test_blank_lines_repetitions_and_a_mark_at_the_begin_are_no_terms(tmp_path):
    path = tmp_path / "terms.txt"
    path.write_bytes("\ufeffheat  wall\r\n\r\n  IL-2 \n\u3000\n无传感器\nheat wall\n".encode())
    terms = read_terms(path)
    assert terms.terms == ["heat wall", "IL-2", "无传感器"] and (terms.blank, terms.repeated) == (2, 1)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "holds no term"),
        (b" \n\t\n\xe3\x80\x80\n", "holds no term"),
        (b"good\n\xff\xfe\n", "line 2: is not UTF-8"),
        (b"good\n" + b"word " * 30, "line 2: has 149 characters"),
        (b"good\n+++\n", "line 2: .* no letter"),
    ],
)
def test_a_file_without_terms_is_refused_with_its_line(tmp_path, content, message):
    path = tmp_path / "terms.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"terms.txt.*{message}"):
        read_terms(path)


def test_a_missing_file_is_named(tmp_path):
    for path in (tmp_path / "none.txt", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            read_terms(path)
