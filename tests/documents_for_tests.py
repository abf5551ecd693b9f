"""Documents whose sentences share pieces, in scripts that are easy to get wrong; and a corpus of them."""

import json
import random
from pathlib import Path

ALPHABETS = [
    "的一是在不了有和人这中大为上个国我以要他",
    "abcdeABCDE  fgh",
    "🙂👍，。a中",
    "ＡＢＣａｂｃ中文ab",
    "İßΣσς𠀀𝐀あカ한글 ab",
    "0123-./ab",
]


def random_sentences(generator: random.Random) -> list[str]:
    """One document: different sentences without white space at their ends."""
    alphabet = generator.choice(ALPHABETS) + generator.choice(ALPHABETS) * generator.randint(0, 1)

    def piece(low: int, high: int) -> str:
        return "".join(generator.choices(alphabet, k=generator.randint(low, high)))

    pool = [piece(2, 14) for _ in range(generator.randint(1, 4))]
    sentences = {}
    for _ in range(generator.randint(2, 7)):
        pieces = [
            generator.choice(pool) if generator.random() < 0.5 else piece(1, 6) for _ in range(generator.randint(1, 3))
        ]
        sentence = "".join(pieces).strip()
        if len(sentence) > 1:
            sentences.setdefault(sentence.lower(), sentence)
    return list(sentences.values())


def chinese_documents(number: int, *, seed: int = 0, sentences: int = 8) -> list[dict[str, str]]:
    """Rows of a corpus; about every second sentence shares a span of six characters with another one."""
    generator = random.Random(seed)
    characters = [chr(code) for code in range(0x4E00, 0x4E00 + 800)]
    rows = []
    for index in range(number):
        texts = ["".join(generator.choices(characters, k=generator.randint(10, 20))) for _ in range(sentences)]
        for place in range(1, sentences):
            if generator.random() < 0.5:
                texts[place] += texts[generator.randrange(place)][2:8]
        rows.append({"id": f"d{index}", "text": "。".join(texts) + "。"})
    return rows


def write_rows(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path
