"""What a model card states that the run does not know: licence and language; and whether CO2 is measured."""

import re
from dataclasses import dataclass, field

from .card_metadata import LANGUAGE
from .errors import InputError
from .extras import import_extra


@dataclass
class CardArguments:
    """The model card."""

    license: str | None = field(
        default=None,
        metadata={
            "help": "Licence of the model, such as apache-2.0; is written into the card. Mind that of the text."
        },
    )
    language: list[str] | None = field(
        default=None, metadata={"help": "Language or languages of the text, such as zh en; are written into the card."}
    )
    track_co2: bool = field(
        default=False,
        metadata={"help": 'Estimates the CO2 of the training for the card; needs `pip install "retromae-gur[co2]"`.'},
    )
    co2_country: str | None = field(
        default=None,
        metadata={
            "help": "The country whose electricity it is, such as FRA. [default: codecarbon asks the network where "
            "this machine is]"
        },
    )

    def check(self):
        for language in self.language or []:
            if not re.fullmatch(LANGUAGE, language):
                raise InputError(
                    f"--language {language} is no code of ISO 639, which the Hub wants: two or three small letters, "
                    "such as zh, or multilingual, or code."
                )
        if self.license is not None and not self.license.strip():
            raise InputError("--license is empty: give one such as apache-2.0, or leave it out.")
        if self.co2_country is not None:
            if not self.track_co2:
                raise InputError("--co2_country has no effect without --track_co2 True.")
            if not re.fullmatch("[A-Z]{3}", self.co2_country):
                raise InputError(f"--co2_country {self.co2_country}: give three capital letters, such as FRA.")
        if self.track_co2:
            import_extra("codecarbon", "co2")
