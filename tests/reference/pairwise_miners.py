"""Every pair of sentences compared, in two ways as quick as plain Python lets them be: what a miner is timed against.

`Table` is the textbook's table of common suffixes without its zeros. `Automaton` is a suffix automaton (Blumer et al.,
1985), built once for a sentence and then fed the others. Both find the weight of the heaviest common substring.
"""

from itertools import accumulate


class Sentence:
    """A text, normalised, and the weight of what stands before each of its characters."""

    def __init__(self, text, oracle):
        self.text = oracle.normalise(text)
        self.before = [0, *accumulate(map(oracle.character_weight, self.text))]


class Table:
    def __init__(self, one: Sentence):
        self.places = {}
        for place, character in enumerate(one.text):
            self.places.setdefault(character, []).append(place)

    def heaviest(self, other: Sentence) -> int:
        places, before, best, above = self.places, other.before, 0, {}
        for end, character in enumerate(other.text, 1):
            row = {}
            for place in places.get(character, ()):
                row[place] = length = above.get(place - 1, 0) + 1
                weight = before[end] - before[end - length]
                if weight > best:
                    best = weight
            above = row
        return best


class Automaton:
    def __init__(self, one: Sentence):
        self.following, self.link, self.length = [{}], [-1], [0]
        last = 0
        for character in one.text:
            last = self._extend(last, character)

    def _extend(self, last: int, character: str) -> int:
        """Adds a character behind the state of the whole text; the state of the longer text."""
        following, link, length = self.following, self.link, self.length
        new = self._add({}, 0, length[last] + 1)
        while last >= 0 and character not in following[last]:
            following[last][character] = new
            last = link[last]
        if last >= 0:
            target = following[last][character]
            if length[last] + 1 < length[target]:
                # `target` also stands for longer texts, which do not end here: those that do get a state of their own.
                copy = self._add(dict(following[target]), link[target], length[last] + 1)
                while last >= 0 and following[last].get(character) == target:
                    following[last][character] = copy
                    last = link[last]
                link[target] = target = copy
            link[new] = target
        return new

    def _add(self, following: dict, link: int, length: int) -> int:
        self.following.append(following)
        self.link.append(link)
        self.length.append(length)
        return len(self.link) - 1

    def heaviest(self, other: Sentence) -> int:
        following, link, length, before = self.following, self.link, self.length, other.before
        state = matched = best = 0
        for end, character in enumerate(other.text, 1):
            while state and character not in following[state]:
                state = link[state]
                matched = length[state]
            if character in following[state]:
                state = following[state][character]
                matched += 1
                # The longest match that ends here is the heaviest that does.
                weight = before[end] - before[end - matched]
                if weight > best:
                    best = weight
        return best


def all_pairs(documents, kind, oracle, *, full: int = 30, short: int = 20, short_sentence: int = 150):
    """{(document, one, other): weight of the heaviest common substring} of the pairs that the rule accepts.

    `documents` are lists of sentences, `kind` is `Table` or `Automaton`, `oracle` is the module `pair_mining_oracle`.
    """
    found = {}
    for number, texts in enumerate(documents):
        sentences = [Sentence(text, oracle) for text in texts]
        is_short = [oracle.weight(text) <= short_sentence for text in texts]
        for i, one in enumerate(sentences[:-1]):
            compared = kind(one)
            for j in range(i + 1, len(sentences)):
                weight = compared.heaviest(sentences[j])
                if weight >= (short if is_short[i] or is_short[j] else full):
                    found[number, texts[i], texts[j]] = weight
    return found
