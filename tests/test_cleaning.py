"""Each step of cleaning, what it counts, and in which order they come."""

import unicodedata

import pytest

from retrieval_pretraining.cleaning import clean_documents
from retrieval_pretraining.cleaning_settings import CleaningSettings
from retrieval_pretraining.corpus_counts import CorpusCounts
from retrieval_pretraining.documents import Document
from retrieval_pretraining.errors import InputError

LINE = "今天天气很好，我们去公园散步。"


def clean(texts, **settings):
    """(texts that are left, counts)."""
    counts = CorpusCounts()
    documents = [
        text if isinstance(text, Document) else Document(text, None, str(number)) for number, text in enumerate(texts)
    ]
    kept = list(clean_documents(documents, CleaningSettings(**settings), counts))
    return [document.text for document in kept], counts


def test_without_settings_text_is_untouched():
    texts = ["<p>a</p>", "nul\x00", "a\u2028b", "ｗ", " ", "x" * 5000, "x" * 5000, "\u200b"]
    assert clean(texts) == (texts, CorpusCounts())


def test_scraped_text_is_cleaned_with_a_count_of_every_step():
    texts = [
        *[LINE] * 4,  # the same
        f"{LINE}  ",  # ... but for trailing space
        f"\u200b{LINE}\ufeff",  # ... but for what cannot be seen
        f"<p>{LINE}</p>",  # ... but for tags
        "哈" * 5000,
        "nul\x00 and\u2028a line",
        "another text",
    ]
    kept, counts = clean(
        texts,
        html_to_text=True,
        remove_control_characters=True,
        unicode_normalization="NFC",
        max_characters=4000,
        deduplicate_documents="exact",
    )
    assert kept == [LINE, "nul and\na line", "another text"]
    assert counts.dropped == {"duplicate": 6, "too long": 1}
    assert counts.changed == {"HTML": 1, "control characters": 2}
    assert str(counts).endswith("7 dropped (6 duplicate, 1 too long)")


@pytest.mark.parametrize(
    "form, text, expected",
    [
        ("NFC", "e\u0301ｗ，", "éｗ，"),
        ("NFKC", "e\u0301ｗ，\xa0①", "éw, 1"),
        (None, "e\u0301", "e\u0301"),
    ],
)
def test_unicode_is_normalised(form, text, expected):
    kept, counts = clean([text, "plain"], unicode_normalization=form)
    assert kept == [expected, "plain"]
    assert counts.changed == ({} if form is None else {form: 1})


def test_entities_are_decoded_before_what_they_stand_for_is_removed_and_normalised():
    kept, counts = clean(
        ["<p>&#65279;a&shy;b e&#769;</p>"],
        html_to_text=True,
        remove_control_characters=True,
        unicode_normalization="NFC",
    )
    assert kept == ["ab é"]
    assert counts.changed == {"HTML": 1, "control characters": 1, "NFC": 1}


def test_a_title_is_changed_as_a_text_is_and_never_a_reason_to_drop():
    documents = [
        Document("text", "<b>T</b>", "a"),
        Document("<i>other</i>", "<br>", "b"),
        Document("third", "短\x00", "c"),
    ]
    settings = CleaningSettings(
        html_to_text=True, remove_control_characters=True, min_characters=4, keep_scripts=["latin"]
    )
    counts = CorpusCounts()
    assert list(clean_documents(documents, settings, counts)) == [
        Document("text", "T", "a"),
        Document("other", None, "b"),
        Document("third", "短", "c"),
    ]
    assert counts.changed == {"HTML": 2, "control characters": 1} and counts.dropped == {}


def test_the_same_text_under_two_titles_is_one_document():
    documents = [Document(LINE, "one", "a"), Document(LINE, "two", "b")]
    assert clean(documents, deduplicate_documents="exact") == ([LINE], CorpusCounts(dropped={"duplicate": 1}))


def test_a_text_of_which_nothing_is_left_is_dropped():
    kept, counts = clean(["<br>", "<script>x</script>", "a"], html_to_text=True)
    assert kept == ["a"] and counts.dropped == {"blank when cleaned": 2}


@pytest.mark.parametrize(
    "text, length", [("汉字", 2), ("汉" * 200, 200), (" ab\n", 2), ("a b", 3), ("\u200bab\ufeff", 2), ("𠀀𠀀", 2)]
)
def test_length_is_in_characters_whatever_the_script(text, length):
    assert clean([text], min_characters=length)[0] == [text]
    assert clean([text], max_characters=length)[0] == [text]
    assert clean([text], min_characters=length + 1) == ([], CorpusCounts(dropped={"too short": 1}))
    assert clean([text], max_characters=length - 1) == (
        ([], CorpusCounts(dropped={"too long": 1})) if length > 1 else ([text], CorpusCounts())
    )


def test_two_han_characters_are_kept_by_default_and_dropped_titles_of_them_are_counted():
    titles = ["电机", "控制", "永磁同步电机", "a"]
    assert clean(titles)[0] == titles
    assert clean(titles, min_characters=3) == (["永磁同步电机"], CorpusCounts(dropped={"too short": 3}))


def test_documents_in_other_scripts_are_dropped():
    texts = ["使用语言模型", "使用 BERT", "language model", "2026-11-30", "Привет"]
    kept, counts = clean(texts, keep_scripts=["han"])
    assert kept == ["使用语言模型"] and counts.dropped == {"in other scripts": 4}
    assert clean(texts, keep_scripts=["han"], min_script_share=0.3)[0] == texts[:2]
    assert clean(texts, keep_scripts=["han", "latin"])[0] == texts[:3]


def test_documents_in_other_languages_are_dropped():
    texts = [
        "Unsere Katze schläft den ganzen Tag auf dem Sofa und will nicht gestört werden.",
        "The cat sat on the mat and looked at the moon all night long.",
        "今天天气很好，我们去公园散步，看到很多人在放风筝。",
        "今日は天気がとてもいいので、公園へ散歩に行きました。",
    ]
    kept, counts = clean(texts, keep_languages=["zh"])
    assert kept == [texts[2]] and counts.dropped == {"in other languages": 3}
    assert clean(texts, keep_languages=["en", "ja"])[0] == [texts[1], texts[3]]
    assert clean(["\n".join(texts[2])], keep_languages=["zh"])[0]  # lines are no obstacle
    assert clean(["a b"], keep_languages=["en"], min_language_share=1.0)[0] == []


def test_near_duplicates_are_told_from_duplicates():
    text = "".join(chr(0x4E00 + 7 * number % 2000) for number in range(300))
    other = f"{text[:150]}甲乙{text[152:]}"
    kept, counts = clean([text, other, text, LINE], deduplicate_documents="near")
    assert kept == [text, LINE] and counts.dropped == {"near duplicate": 1, "duplicate": 1}
    assert clean([text, other, LINE], deduplicate_documents="near", near_duplicate_threshold=1.0)[0] == [
        text,
        other,
        LINE,
    ]
    assert clean([text, other, LINE], deduplicate_documents="exact")[0] == [text, other, LINE]


def test_a_document_that_is_dropped_does_not_stand_for_another():
    # The first is too long with its space, which the second has not.
    settings = {"max_characters": 4, "deduplicate_documents": "near"}
    assert clean(["a b c d", "abcd"], **settings) == (["abcd"], CorpusCounts(dropped={"too long": 1}))


def test_documents_come_one_by_one_and_the_same_each_time():
    def documents():
        yield Document("a", None, "1")
        raise AssertionError("read ahead")

    settings = CleaningSettings(deduplicate_documents="near", unicode_normalization="NFC")
    for _ in range(2):  # what one pass has seen, the next has not
        assert next(clean_documents(documents(), settings, CorpusCounts())).text == "a"


def test_a_setting_that_makes_no_sense_is_refused():
    with pytest.raises(InputError, match="--min_characters"):
        clean(["a"], min_characters=-1)


def test_cleaned_text_stays_as_it_is_when_cleaned_again():
    settings = {"html_to_text": True, "remove_control_characters": True, "unicode_normalization": "NFKC"}
    texts = ["<p>ａ\u200b&lt;b&gt;</p>", "e\u0301\r\n\u2028x", "\u0301", unicodedata.lookup("HANGUL SYLLABLE GAG")]
    kept, _ = clean(texts, **settings)
    again, counts = clean(kept, **settings)
    # But for "<b>", which is what an escaped tag means.
    assert again[1:] == kept[1:] and counts.changed == {}
