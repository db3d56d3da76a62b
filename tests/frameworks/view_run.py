"""Rollouts for the page in a browser: sums in words, which a small tokenizer knows."""
import json
import random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers


def tokenizer(folder):
    """Bytes as GPT-2 has them, without merges: each byte is a token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(alphabet)}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    path = folder / "tokenizer.json"
    made.save(str(path))
    return path


class Words:
    """A tokenizer whose tokens are words, as in most models: for pictures that read well."""

    def __init__(self, texts):
        found = []
        for text in texts:
            found += self.split(text)
        self.words = sorted(set(found))
        self.numbers = {word: number for number, word in enumerate(self.words)}

    @staticmethod
    def split(text):
        pieces = text.split(" ")
        return [pieces[0], *(f" {piece}" for piece in pieces[1:])]

    def ids(self, text):
        return [self.numbers[word] for word in self.split(text)]

    def save(self, folder):
        coded = {"".join(_letters(word)): number for word, number in self.numbers.items()}
        made = Tokenizer(models.WordLevel(vocab=coded, unk_token=next(iter(coded))))
        made.decoder = decoders.ByteLevel()
        path = folder / "tokenizer.json"
        made.save(str(path))
        return path


def _letters(word):
    """GPT-2's letters of bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    extra = [byte for byte in range(256) if byte not in plain]
    table = {byte: chr(byte) for byte in plain}
    table |= {byte: chr(256 + number) for number, byte in enumerate(extra)}
    return (table[byte] for byte in word.encode())


def sum_of(number, member):
    """(prompt, completion, right?) of a question."""
    dice = random.Random(f"{number}/{member}")
    ask = random.Random(number)
    apples, bags, eaten = ask.randint(3, 9), ask.randint(3, 9), ask.randint(1, 8)
    said = apples * bags - eaten + dice.choice([0, 0, 0, 1, -2])
    prompt = (f"A shop packs {apples} apples in each of {bags} bags , and {eaten} of them are "
              "eaten . How many are left ?")
    thought = dice.choice([
        f"First I count all apples : {apples} times {bags} is {apples * bags} .",
        f"There are {bags} bags with {apples} apples each , so {apples * bags} in all .",
        f"We multiply . {bags} bags of {apples} apples make {apples * bags} apples .",
    ])
    check = dice.choice(["", " Let me check that again . The product is right .",
                         " Wait , do I have to take the eaten ones away ? Yes ."])
    end = (f" Then {eaten} are eaten , so {apples * bags} minus {eaten} is {said} ."
           f" The answer is {said} .")
    return prompt, thought + check + end, said == apples * bags - eaten


def record_of(words, number, member, size=8):
    """Fields of `Producer.push`."""
    prompt, completion, right = sum_of(number, member)
    given, made = words.ids(prompt), words.ids(completion)
    dice = random.Random(f"{number}.{member}")
    return {
        "token_ids": given + made,
        "n_prompt": len(given),
        "loss_mask": [0] * len(given) + [1] * len(made),
        "logprobs": [0.0] * len(given) + [-dice.expovariate(2.5) for _ in made],
        "reward": float(right),
        "repetition_id": member,
        "group_size": size,
        "source": "sums",
    }


def all_words(numbers, members):
    return Words(text for number in numbers for member in members
                 for text in sum_of(number, member)[:2])


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path
