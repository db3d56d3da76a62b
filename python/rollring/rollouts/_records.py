"""One row of a file as the fields of a record: the keys that other programs write, and ours."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._arrays import NUMPY_DTYPES, array_of
from .._file_record import FileRecord
from ._files import FORMATS, refused
from ._meant import KeyWatch
from ._text import Tokenizer
from ._values import FIELDS, Values

_WHOLE = ("tokens", "token_ids", "input_ids")
_GENERATED = ("completion_ids", "response_ids")
_OF_GENERATED = {
    "completion_mask": "loss_mask",
    "response_mask": "loss_mask",
    "completion_logprobs": "logprobs",
    "response_logprobs": "logprobs",
}
_PADDED = ("loss_mask", "logprobs", "ref_logprobs", "advantages", "token_rewards")
_REALS = ("reward", "topk_logprobs", "logprobs", "ref_logprobs", "advantages", "token_rewards")
_IDS = ("example_id", "prompt_id")
# Pairs of a prompt and the generated part, as text or messages: of most programs, and of verl.
_TEXTS = (("prompt", "completion"), ("prompt", "response"), ("input", "output"))
_OF_TOKENS = {
    "messages": "token_ids",
    "prompt": "prompt_ids",
    "completion": "completion_ids",
    "response": "response_ids",
    "input": "prompt_ids",
    "output": "completion_ids",
    "text": "token_ids",
    "conversation": "token_ids",
}


class Records:
    """Makes fields of rows.

    Args:
        tokenizer: As `Tokenizer` takes it; None: rows that are text are refused.
        rewards: Keys whose sum is the reward of rows without one.
        columns: Keys that are the ring's own columns.
    """

    def __init__(self, tokenizer: Any, rewards: Sequence[str], columns: Sequence[str] = ()) -> None:
        self._fields = FIELDS.union(columns)
        self._tokenizer = Tokenizer(tokenizer) if tokenizer is not None else None
        self._rewards = tuple(rewards)
        self.watch = KeyWatch(self._fields)

    def fields(self, place: str, row: dict[str, Any], *, columns: bool = True) -> dict[str, Any]:
        """The fields of a row; without ``columns`` those that a census needs, and maybe others.

        Raises:
            BadRecordError: It is not a record. All keys that are missing are named.
        """
        row = {key: value for key, value in row.items() if value is not None}
        made = {key: value for key, value in row.items() if key in self._fields}
        used = set(made)
        values = Values(place)
        if "traces" in row and "task" in row:
            raise refused(
                place,
                "an episode of verifiers: rollring.integrations.verifiers.records makes records of "
                "it",
            )
        values.header(made)
        text = None
        missing = self._take_tokens(values, row, made, used)
        if not missing:
            self._take_score(values, row, made, used)
        elif text := _conversation(row, used):
            self._take_scores(values, row, made, used)
            _name_by_text(row, made, text[0])
        _name(place, row, made)
        promises = made.get("status", "completed") in {"completed", "truncated"}
        if text and promises and (columns or self._tokenizer is None):
            self._take_text(place, made, text, missing)
            missing = ""
        elif text:
            missing = ""
        _check_keys(values, row, made, missing if promises else "")
        if columns:
            values.columns(made)
        extra = {key: value for key, value in row.items() if key not in used}
        if extra:
            made["extra"] = extra
            if columns and not text:
                self.watch.judge(extra, made)
        return made

    def _take_tokens(
        self, values: Values, row: dict[str, Any], made: dict[str, Any], used: set[str]
    ) -> str:
        """Fills token_ids of keys that hold tokens; returns the name of the missing part."""
        whole = [key for key in _WHOLE if key in row]
        generated = [key for key in _GENERATED if key in row]
        both = whole if len(whole) > 1 else generated if len(generated) > 1 else []
        if whole == ["input_ids"] and generated:
            both = [*whole, *generated]
        if both:
            values.bad(both[1], f"and '{both[0]}' are both present")
        if whole:
            values.token_ids(whole[0], row[whole[0]])
            made["token_ids"] = row[whole[0]]
            used.add(whole[0])
            return ""
        for key in (*generated, *(["prompt_ids"] if "prompt_ids" in row else [])):
            values.token_ids(key, row[key])
        if not generated:
            return "'completion_ids'" if "prompt_ids" in row else "'token_ids'"
        if "prompt_ids" not in row:
            return "'prompt_ids'"
        self._join(values, row, made, used)
        return ""

    def _join(
        self, values: Values, row: dict[str, Any], made: dict[str, Any], used: set[str]
    ) -> None:
        """A prompt and the generated part, with columns of the latter alone."""
        (generated,) = (key for key in _GENERATED if key in row)
        prompt, answer = list(row["prompt_ids"]), list(row[generated])
        if made.setdefault("n_prompt", len(prompt)) != len(prompt):
            values.bad(
                "n_prompt",
                f"is {made['n_prompt']}, but 'prompt_ids' has {len(prompt)} tokens",
            )
        made["token_ids"] = prompt + answer
        used.update(("prompt_ids", generated))
        for key, column in _OF_GENERATED.items():
            if key in row:
                if column in made:
                    values.bad(key, f"and '{column}' are both present")
                values.generated(key, column, row[key], len(answer))
                made[column] = row[key]
                used.add(key)
        for column in _PADDED:
            rows = made.get(column)
            if isinstance(rows, (list, tuple, np.ndarray)) and len(rows) == len(answer):
                made[column] = [0] * len(prompt) + list(rows)

    def _take_score(
        self, values: Values, row: dict[str, Any], made: dict[str, Any], used: set[str]
    ) -> None:
        """The reward of a row of tokens without one."""
        score = row.get("score")
        if "reward" in row or isinstance(score, bool) or not isinstance(score, (int, float)):
            return
        values.real("score", score)
        made["reward"] = score
        used.add("score")
        self.watch.see_score()

    def _take_scores(
        self, values: Values, row: dict[str, Any], made: dict[str, Any], used: set[str]
    ) -> None:
        """The fields that verl, verifiers and TRL have beside the text."""
        keys = self._rewards or [key for key in row if "reward" in key and key != "reward"]
        if "reward" not in made and "score" in row and not self._rewards:
            values.real("score", row["score"])
            made["reward"] = row["score"]
            used.add("score")
        elif "reward" not in made:
            scores = [row[key] for key in keys if isinstance(row.get(key), (int, float))]
            if good := [float(score) for score in scores if score == score]:
                made["reward"] = sum(good)
        if "step" in row and "visit" not in made:
            values.visit("step", row["step"])
            made["visit"] = row["step"]
            used.add("step")
        if row.get("is_truncated"):
            made.setdefault("status", "truncated")
        if row.get("error") and not row.get("completion"):
            made.setdefault("status", "failed")

    def _take_text(self, place: str, made: dict[str, Any], text: Any, missing: str) -> None:
        if self._tokenizer is None:
            raise refused(
                place,
                f"{missing} is missing: the record is text: name a tokenizer that makes tokens of "
                f"it (tokenizer=, --tokenizer PATH)",
            )
        try:
            made.update(self._tokenizer.columns(*text))
        except Exception as error:  # also any error of a chat template
            raise refused(place, f"its text cannot be made into tokens: {error}") from error


def _check_keys(values: Values, row: dict[str, Any], made: dict[str, Any], missing: str) -> None:
    """All missing keys are reported at once. ``missing``: that of the tokens."""
    begun = missing and (
        len(row.get("prompt_ids", ())) > 0 or any(key in row for key in _GENERATED)
    )
    if "instance_id" in made or begun:
        names = [missing] if missing else []
    else:
        if "token_ids" in made:
            values.prompt(made)
        names = ["'instance_id'", missing] if missing else ["'instance_id'"]
    if not names:
        return
    hint = _meant(row) if missing == "'token_ids'" else ""
    if not missing and len(made.get("token_ids", ())):
        hint = "or 'n_prompt', which names the prompt"
    verb = "are" if len(names) > 1 else "is"
    values.lacks(f"{', '.join(names)} {verb} missing{f' ({hint})' if hint else ''}: {FORMATS}")


def _meant(row: dict[str, Any]) -> str:
    """Tokens under a key of text: a sentence with the right key."""
    for key, name in _OF_TOKENS.items():
        if _is_list_of(row.get(key), int):
            return f"'{key}' holds token ids: did you mean '{name}'?"
    return ""


def _is_list_of(value: Any, kind: type) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], kind)


def _conversation(row: dict[str, Any], used: set[str]) -> tuple[Any, Any] | None:
    """The prompt and the generated part, as text or messages."""
    for prompt, answer in _TEXTS:
        if _is_list_of(row.get(prompt), int) or _is_list_of(row.get(answer), int):
            continue  # token ids under a key of text
        if prompt in row and answer in row:
            used.update((prompt, answer))
            return row[prompt], row[answer]
        if prompt in row and row.get("error"):  # verifiers: it failed before an answer
            used.add(prompt)
            return row[prompt], []
    messages = row.get("messages")
    if isinstance(messages, list) and all(isinstance(one, dict) for one in messages):
        roles = [one.get("role") for one in messages]
        first = roles.index("assistant") if "assistant" in roles else len(roles)
        return messages[:first], messages[first:]
    return None


def _name_by_text(row: dict[str, Any], made: dict[str, Any], prompt: Any) -> None:
    if "instance_id" in made or any(key in row for key in _IDS):
        return
    said = json.dumps(prompt, sort_keys=True, default=str).encode()
    made["instance_id"] = f"prompt/{hashlib.blake2b(said, digest_size=8).hexdigest()}"


def _name(place: str, row: dict[str, Any], made: dict[str, Any]) -> None:
    """instance_id of a row without one: another key's, or one made of the prompt's tokens."""
    if "instance_id" in made:
        return
    for key in _IDS:
        if key in row:
            if isinstance(row[key], bool) or not isinstance(row[key], (int, str)) or row[key] == "":
                raise refused(place, f"'{key}' is neither text nor an integer")
            made["instance_id"] = str(row[key])
            return
    n_prompt = made.get("n_prompt") or 0
    if n_prompt and len(made.get("token_ids", ())) >= n_prompt:
        made["instance_id"] = f"prompt/{_sum_of(made['token_ids'][:n_prompt]):016x}"


def _sum_of(token_ids: Any) -> int:
    """As the program `rollring` has it (cli/formats/token_keys.cpp)."""
    tokens = np.asarray(token_ids).astype(np.uint32).astype(np.uint64) + np.uint64(1)
    factors = np.ones(len(tokens), np.uint64)
    factors[1:] = np.uint64(0x9E3779B97F4A7C15)
    powers = np.multiply.accumulate(factors)[::-1]
    return int(np.add.reduce(tokens * powers, dtype=np.uint64))


def pushed(place: str, fields: dict[str, Any]) -> FileRecord:
    """Fields of a row as `Producer.push` takes them."""
    made = FileRecord(place, fields | {"origin": 1})  # written back as JSON lines
    for column in ("user", "images"):
        if column in made:
            made[column] = json.dumps(made[column], separators=(",", ":")).encode()
    for name, value in made.items():
        is_array = isinstance(value, dict) and set(value) == {"dtype", "shape", "base64"}
        if is_array and value["dtype"] in NUMPY_DTYPES:
            made[name] = array_of(value)
    for name in _REALS:
        if name in made:
            made[name] = _numbers(made[name])
    return made


def _numbers(value: Any) -> Any:
    """With numbers for the texts by which JSON without such numbers says NaN and infinity."""
    if isinstance(value, str):
        return float(value)
    if isinstance(value, list) and not {str, list}.isdisjoint(map(type, value)):
        return [_numbers(one) for one in value]
    return value
