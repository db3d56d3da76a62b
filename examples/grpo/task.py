"""The task: write the digits of the prompt in ascending order. Its reward is exact."""

from __future__ import annotations

import numpy as np

DIGITS = 10
ASK, PAD = 10, 11  # the token that ends a prompt, and one that means nothing
VOCABULARY = 12
TEXT = "0123456789>."


def prompts(seed: int, worker: int, first: int, count: int, length: int) -> np.ndarray:
    """Prompts ``first`` to ``first + count`` of a worker: i64[count, length + 1].

    They are a function of their number: a restarted worker makes the same ones.
    """
    made = np.full((count, length + 1), ASK, np.int64)
    for row in range(count):
        random = np.random.default_rng((seed, worker, first + row))
        made[row, :length] = random.integers(0, DIGITS, length)
    return made


def rewards(asked: np.ndarray, answers: np.ndarray) -> np.ndarray:
    """The share of places that hold the right digit: f64[count].

    Args:
        asked: i64[count, length + 1], from `prompts`.
        answers: i64[count, length].
    """
    right = np.sort(asked[:, :-1], axis=1)
    return (right == answers).mean(axis=1)


def text(tokens: np.ndarray) -> str:
    return "".join(TEXT[token] for token in tokens)
