"""Token ids of text, by a tokenizer of transformers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._files import needed

Messages = Sequence[dict[str, Any]]


class Tokenizer:
    """Makes a prompt and the generated part into tokens.

    Args:
        tokenizer: A folder or a name for ``AutoTokenizer.from_pretrained``, or a tokenizer.
    """

    def __init__(self, tokenizer: Any) -> None:
        if isinstance(tokenizer, str):
            transformers = needed(
                "transformers", f"the tokenizer {tokenizer}", "transformers jinja2"
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(tokenizer)
        self._tokenizer = tokenizer

    def columns(self, prompt: str | Messages, answer: str | Messages) -> dict[str, Any]:
        """``token_ids``, ``n_prompt`` and ``loss_mask``: the assistant's words are trained on.

        Raises:
            ValueError: The chat template cannot show which tokens those are.
        """
        if isinstance(prompt, str):
            if not isinstance(answer, str):
                raise ValueError("the prompt is text, and the completion is messages")
            pieces = [(prompt, False), (answer, True)]
        elif isinstance(answer, str):
            pieces = [(self._render(prompt, True), False), (answer, True)]
        else:
            pieces = self._conversation([*prompt, *answer], len(prompt))
        token_ids: list[int] = []
        mask: list[int] = []
        for index, (text, trained) in enumerate(pieces):
            # A prompt in plain text begins as the tokenizer begins all text.
            plain_start = index == 0 and isinstance(prompt, str)
            ids = self._tokenizer.encode(text, add_special_tokens=plain_start) if text else []
            token_ids += ids
            mask += [int(trained)] * len(ids)
        if not token_ids and any(text for text, _ in pieces):
            kind = type(self._tokenizer).__name__
            raise ValueError(f"the tokenizer ({kind}) makes no token of it: is it the model's?")
        n_prompt = mask.index(1) if 1 in mask else len(mask)
        return {"token_ids": token_ids, "n_prompt": n_prompt, "loss_mask": mask}

    def _render(self, messages: Messages, generate: bool) -> str:
        if not messages:
            return ""
        return str(
            self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=generate
            )
        )

    def _conversation(self, messages: Messages, first: int) -> list[tuple[str, bool]]:
        """Pieces of the conversation's text: whether each is the assistant's, from ``first`` on."""
        pieces: list[tuple[str, bool]] = []
        done = ""
        for i, message in enumerate(messages):
            if message.get("role") != "assistant" or i < first:
                continue
            head = self._render(messages[:i], True)
            whole = self._render(messages[: i + 1], False)
            if not (head.startswith(done) and whole.startswith(head)):
                raise ValueError(
                    f"the tokenizer's chat template writes earlier messages differently once "
                    f"message {i} follows: its tokens cannot be told from theirs"
                )
            pieces += [(head[len(done) :], False), (whole[len(head) :], True)]
            done = whole
        rest = self._render(messages, False)
        if rest.startswith(done):
            pieces.append((rest[len(done) :], False))
        return pieces
