"""The text of tokens by a folder of transformers, on the page of `rollring view`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollring.errors import InvalidArgumentError
from rollring.view._text import Tokenizer, load, pieces
from view_pages import line, page_of_file, written

transformers: Any = pytest.importorskip("transformers")
TEXT = "Größe: 3 € 😀</s>, ja"


@pytest.fixture
def byt5(tmp_path: Path) -> Path:
    """A tokenizer of Python alone, without a tokenizer.json: tokens are bytes of UTF-8."""
    folder = tmp_path / "byt5"
    transformers.ByT5Tokenizer().save_pretrained(folder)
    assert not (folder / "tokenizer.json").exists()
    return folder


@pytest.fixture
def wordpiece(tmp_path: Path) -> Path:
    """A vocabulary and its configuration, as BERT's models had them."""
    folder = tmp_path / "bert"
    folder.mkdir()
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "the",
        "answer",
        "is",
        "for",
        "##ty",
        ".",
    ]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def shown(tokenizer: Tokenizer, ids: list[int], folder: Path) -> list[str]:
    """The text of each token on the page."""
    path = written(
        folder / "f.jsonl",
        [line("g", 0, group_size=1, token_ids=ids, logprobs=None, loss_mask=None)],
    )
    with page_of_file(path, tokenizer=tokenizer) as page:
        where = {"group": page.group_of("g"), "member": 0}
        texts = page.ask("slice", **where)["texts"]
        preview = page.ask("group", group=where["group"])["members"][0]["preview"]
        assert preview == "".join(pieces(tokenizer, ids[3:], 0, len(ids) - 3) or [])
        assert page.ask("state")["decoded"] is True
        found: list[str] = texts
    return found


def test_a_tokenizer_of_python_alone(byt5: Path, tmp_path: Path) -> None:
    made = transformers.ByT5Tokenizer()
    ids = made(TEXT, add_special_tokens=False)["input_ids"]
    texts = shown(load(str(byt5)), ids, tmp_path)
    assert "".join(texts) == TEXT
    assert texts[:6] == ["G", "r", "", "ö", "", "ß"]
    assert "😀" in texts and "</s>" in texts  # special tokens are shown, too


def test_a_vocabulary_of_bert(wordpiece: Path, tmp_path: Path) -> None:
    texts = shown(load(str(wordpiece)), [2, 5, 6, 7, 8, 9, 10, 3], tmp_path)
    # Its decoder takes the space before a full stop away.
    assert texts == ["[CLS]", " the", " answer", " is", " for", "ty", ".", " [SEP]"]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "is not a folder of transformers"),
        ({"tokenizer_config.json": "{"}, "is not a folder of transformers"),
        ({"tokenizer_config.json": '{"tokenizer_class": "NoSuch"}'}, "is not a folder of"),
        ({"tokenizer.json": "{}"}, "tokenizer.json is not a tokenizer"),
    ],
)
def test_a_folder_that_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], said: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "model"
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content, encoding="utf-8")
    with pytest.raises(InvalidArgumentError, match=said):
        load(str(folder))
