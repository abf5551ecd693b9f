"""How pairs are mined: what can be set, and its checks. The names are those of the flags."""

from dataclasses import dataclass, field

from retrieval_pretraining.errors import InputError
from retrieval_pretraining.span_join import SpanRule

STRATEGIES = ("lcs", "title", "inverse_cloze", "crop", "random")
LEFTOVER_STRATEGIES = ("drop", "self", "join", "inverse_cloze")
LONGEST_SENTENCE = 2000
HEAVIEST_SENTENCE = 10 * LONGEST_SENTENCE


def _help(text: str, **more) -> dict:
    return {"help": text, **more}


@dataclass(frozen=True)
class MiningSettings:
    """How pairs are made."""

    strategy: str = field(
        default="lcs",
        metadata=_help(
            "lcs: sentences that share a heavy span; title: each sentence with the title; inverse_cloze: a sentence "
            "and what stands around it; crop: two random pieces; random: any two sentences.",
            choices=list(STRATEGIES),
        ),
    )
    leftover_strategy: str = field(
        default="drop",
        metadata=_help(
            "Sentences in no pair: drop; self: paired with themselves; join: added to a neighbour that is in a pair; "
            "inverse_cloze: paired with what stands around them.",
            choices=list(LEFTOVER_STRATEGIES),
        ),
    )
    max_pairs_per_sentence: int = field(
        default=2, metadata=_help("Pairs that a sentence is in, the title one more; 0: no limit.")
    )
    max_pairs_per_document: int = field(default=0, metadata=_help("Pairs of a document; 0: no limit."))
    min_span_weight: int = field(
        default=30,
        metadata=_help("Weight of a heavy span: 10 for a CJK letter, 3 for another letter, 1 for anything else."),
    )
    min_span_weight_short: int = field(default=20, metadata=_help("The same where one of the sentences is short."))
    max_short_sentence_weight: int = field(default=150, metadata=_help("Weight up to which a sentence is short."))
    title_needs_span: bool = field(
        default=True, metadata=_help("Strategy title: only sentences that share a heavy span with the title.")
    )
    max_document_frequency: float = field(
        default=1.0,
        metadata=_help(
            "Share of the documents above which a span is boilerplate and makes no pair, such as 0.01; reads twice."
        ),
    )
    min_sentence_length: int = field(default=2, metadata=_help("Characters; shorter sentences are left out."))
    max_sentence_length: int = field(default=512, metadata=_help("Characters; longer sentences are cut."))
    max_context_length: int = field(
        default=1024, metadata=_help("Characters of the surroundings (inverse_cloze) and of a piece (crop).")
    )
    sentence_language: str = field(
        default="en",
        metadata=_help("Whose abbreviations end no sentence: en, zh, de ..."),
    )
    deduplicate: bool = field(default=True, metadata=_help("The same two texts are a pair only once in the corpus."))

    def check(self):
        """Raises `InputError` for a value that makes no sense."""
        for name, choices in (("strategy", STRATEGIES), ("leftover_strategy", LEFTOVER_STRATEGIES)):
            if getattr(self, name) not in choices:
                raise InputError(f"--{name} is one of {', '.join(choices)}, not {getattr(self, name)}.")
        for name in ("max_pairs_per_sentence", "max_pairs_per_document"):
            if getattr(self, name) < 0:
                raise InputError(f"--{name} is 1 or more, or 0 for no limit, not {getattr(self, name)}.")
        for name in ("min_span_weight", "min_span_weight_short", "min_sentence_length"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name} is 1 or more, not {getattr(self, name)}.")
        if self.min_span_weight > HEAVIEST_SENTENCE:
            raise InputError(
                f"--min_span_weight is at most {HEAVIEST_SENTENCE}, for no sentence weighs more, "
                f"not {self.min_span_weight}."
            )
        if self.min_span_weight_short > self.min_span_weight:
            raise InputError(
                f"--min_span_weight_short {self.min_span_weight_short} is more than --min_span_weight "
                f"{self.min_span_weight}: short sentences need less, not more."
            )
        if not self.min_sentence_length <= self.max_sentence_length <= LONGEST_SENTENCE:
            raise InputError(
                f"--max_sentence_length lies from --min_sentence_length to {LONGEST_SENTENCE}, "
                f"not at {self.max_sentence_length}."
            )
        if self.max_context_length < self.max_sentence_length:
            raise InputError(f"--max_context_length is at least --max_sentence_length, not {self.max_context_length}.")
        if not 0.0 < self.max_document_frequency <= 1.0:
            raise InputError(
                f"--max_document_frequency is a share above 0 and at most 1, not {self.max_document_frequency}."
            )
        if self.max_document_frequency < 1.0 and not self.compares_spans:
            raise InputError(f"--max_document_frequency has no effect on --strategy {self.strategy}: leave it out.")
        if self.leftover_strategy != "drop" and self.strategy in ("inverse_cloze", "crop"):
            raise InputError(f"--leftover_strategy has no effect on --strategy {self.strategy}: leave it out.")

    @property
    def compares_spans(self) -> bool:
        return self.strategy == "lcs" or (self.strategy == "title" and self.title_needs_span)

    @property
    def span_rule(self) -> SpanRule:
        return SpanRule(self.min_span_weight, self.min_span_weight_short, self.max_short_sentence_weight)
