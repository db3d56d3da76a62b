"""Two of `vllm serve` that generate while versions come: every token has the label of the version
that it is of.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

pytest.importorskip("vllm")

from vllm_tiny import Tensors, labels, sender, spans  # noqa: E402

from rollring.integrations.vllm.trainer import FleetClient, HTTPClient  # noqa: E402

VERSIONS = 4
THREADS = 2  # for each server
LENGTH = 64
CLOSE = 1e-3  # of logits: the engine's are of other kernels


class Load:
    """Asks servers for tokens, one request after the other, until it is told to end."""

    def __init__(self, servers: Any) -> None:
        self.answers: list[tuple[list[int], dict[str, Any]]] = []
        self._ends = threading.Event()
        self._failed: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._ask, args=(server, [number + 3, 17, 5 * place + 7]))
            for number, server in enumerate(servers)
            for place in range(THREADS)
        ]

    def _ask(self, server: Any, prompt: list[int]) -> None:
        try:
            while not self._ends.is_set():
                self.answers.append((prompt, server.ask(prompt, LENGTH)))
        except BaseException as error:
            self._failed.append(error)

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()
        assert not self._failed

    def wait_for(self, more: int) -> None:
        """Until ``more`` further requests were answered."""
        wanted = len(self.answers) + more
        while len(self.answers) < wanted and not self._failed:
            self._ends.wait(0.01)


def is_of(model: Any, prompt: list[int], tokens: list[int], start: int, end: int) -> bool:
    """Whether the model of a version finds each of these tokens the likeliest one, or as likely."""
    with torch.no_grad():
        logits = model(torch.tensor([prompt + tokens])).logits[0].float()
    logits = logits[len(prompt) + start - 1 : len(prompt) + end - 1]
    chosen = logits.gather(1, torch.tensor(tokens[start:end])[:, None])[:, 0]
    return bool((chosen >= logits.max(dim=1).values - CLOSE).all())


@pytest.mark.skipif(not labels(), reason="this vLLM does not label tokens")
@pytest.mark.parametrize(
    ("pause", "staging"),
    [
        ("keep", "out_of_place"),
        ("keep", "in_place"),
        ("wait", "out_of_place"),
        ("abort", "in_place"),
    ],
)
def test_labels_are_exact(ring: str, trained: Any, servers: Any, pause: str, staging: str) -> None:
    states: dict[str, dict[str, Any]] = {}
    client = FleetClient([HTTPClient(server.url) for server in servers])
    source = Tensors({name: one.detach() for name, one in trained.model.named_parameters()})
    trainer = sender(ring, client, source, pause=pause, staging=staging)

    def send() -> None:
        trained.step()
        trainer.send_weights()
        states[str(trainer.version)] = {
            name: one.clone() for name, one in trained.model.state_dict().items()
        }

    send()
    with Load(servers) as load:
        for _ in range(VERSIONS):
            load.wait_for(2 * THREADS)
            send()
        load.wait_for(2 * THREADS)
    trainer.shutdown()
    check_labels(trained.model, states, load.answers)
    answered = [spans(choice) for _, choice in load.answers]
    assert {version for each in answered for version, _, _ in each} == set(states)
    if pause == "keep":
        assert max(map(len, answered)) > 1  # went on with another version
    else:
        assert max(map(len, answered)) == 1
    cut = [choice for _, choice in load.answers if len(choice["token_ids"]) < LENGTH]
    assert bool(cut) == (pause == "abort")
    assert all(choice["finish_reason"] == "abort" for choice in cut)


def check_labels(
    model: Any, states: dict[str, dict[str, Any]], answers: list[tuple[list[int], dict[str, Any]]]
) -> None:
    """Each token is of its label's version, and of no other one that was sent."""
    kept = {name: one.clone() for name, one in model.state_dict().items()}
    try:
        for version, state in states.items():
            model.load_state_dict(state)
            for prompt, choice in answers:
                tokens = choice["token_ids"]
                for label, start, end in spans(choice):
                    if label == version:
                        assert is_of(model, prompt, tokens, start, end), (label, start, end)
                    elif end - start >= 8:  # fewer could agree by chance
                        assert not is_of(model, prompt, tokens, start, end), (label, version)
    finally:
        model.load_state_dict(kept)
