"""Images of records, as the page of `rollring view` gets them."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rollring as rr
from rollring.view import _images
from view_pages import Page, line, page_of_file, page_of_ring, until, written


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = b"".join(b"\0" + bytes(width) for _ in range(height))
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def images_of(page: Page) -> list[dict[str, Any]]:
    """Of the first member of the only group."""
    where = {"group": page.ask("groups")["groups"][0]["id"], "member": 0}
    facts = page.ask("turns", **where)
    where |= {"serial": facts["serial"]}
    return [page.ask("image", **where, index=index) for index in range(facts["images"])]


def test_images_of_a_ring(ring: str, producer: rr.Producer) -> None:
    rgb = np.arange(2 * 5 * 3, dtype=np.uint8).reshape(2, 5, 3)
    planes = np.moveaxis(rgb, 2, 0).astype(np.float32) / 255
    encoded = png(4, 2)
    address = "https://example.org/a.png"
    given = [encoded, rgb, planes, rgb[:, :, 0], address,
             "data:image/png;base64," + base64.b64encode(encoded).decode()]  # fmt: skip
    with page_of_ring(ring) as page:
        producer.push("g", token_ids=[1, 2], repetition_id=0, group_size=1, images=given)
        until(lambda: page.ask("state")["rollouts"] == 1)
        first, second, third, grey, text, inline = images_of(page)
        assert first == inline == {
            "kind": "encoded", "type": "image/png", "data": base64.b64encode(encoded).decode()
        }  # fmt: skip
        pixels = {"kind": "pixels", "width": 5, "height": 2, "channels": 3,
                  "data": base64.b64encode(rgb.tobytes()).decode()}  # fmt: skip
        assert second == pixels
        near = np.frombuffer(base64.b64decode(third.pop("data")), np.uint8).astype(int)
        assert np.abs(near - rgb.reshape(-1)).max() <= 1
        assert third == {name: pixels[name] for name in third}
        assert grey["channels"] == 1
        assert base64.b64decode(grey["data"]) == rgb[:, :, 0].tobytes()
        assert text == {"kind": "text", "text": address}


def test_images_of_a_file(tmp_path: Path) -> None:
    blob = {"dtype": "u8", "shape": [1, 2, 1], "base64": base64.b64encode(b"\x05\x06").decode()}
    path = written(tmp_path / "f.jsonl", [line("g", 0, group_size=1, images=[blob, "a.png"])])
    with page_of_file(path) as page:
        assert images_of(page) == [
            {"kind": "pixels", "width": 2, "height": 1, "channels": 1, "data": blob["base64"]},
            {"kind": "text", "text": "a.png"},
        ]


def test_images_of_a_recording(ring: str, producer: rr.Producer, tmp_path: Path) -> None:
    rgb = np.full((2, 2, 3), 7, np.uint8)
    with rr.Stash(ring, batch_groups=1) as stash, rr.extras.record(stash, tmp_path / "runs"):
        producer.push("g", token_ids=[1], repetition_id=0, group_size=1, images=rgb)
        stash.next(10).ack()
    with rr.open_recording(tmp_path / "runs") as recording, recording.read(0) as batch:
        found = batch.groups[0].members[0].sequences[0].as_dict(copy=True)
    (image,) = rr.rollouts.images_of(found["images"])
    assert np.array_equal(image, rgb)


def shown_of(ring: str, image: Any) -> dict[str, Any]:
    with page_of_ring(ring) as page, rr.Producer(ring) as producer:
        producer.push("g", token_ids=[1], repetition_id=0, group_size=1, images=[image])
        until(lambda: page.ask("state")["rollouts"] == 1)
        (found,) = images_of(page)
    return found


@pytest.mark.parametrize(
    ("image", "shown"),
    [
        (np.zeros((2, 2, 5), np.uint8), "uint8[2, 2, 5]"),
        (np.zeros((2, 0, 3), np.uint8), "uint8[2, 0, 3]"),
        (np.zeros((2, 2, 3), np.int32), "int32[2, 2, 3]"),
        (np.zeros(16, np.uint8), "uint8[16]"),
        (b"<svg onload='x'/>", "uint8[17]"),
        ("data:image/svg+xml;base64,PHN2Zy8+", "data:image/svg+xml;base64,PHN2Zy8+"),
        ("data:image/png;base64,no", "data:image/png;base64,no"),
        ("x" * 10_000, "x" * 300),
    ],
)
def test_an_array_or_a_text_that_is_no_picture(ring: str, image: Any, shown: str) -> None:
    assert shown_of(ring, image) == {"kind": "text", "text": shown}


def test_numbers_that_are_no_brightness(ring: str) -> None:
    found = shown_of(ring, np.array([[np.nan, np.inf, -np.inf, 2.0, -1.0, 0.5]], np.float32))
    assert list(base64.b64decode(found["data"])) == [0, 255, 0, 255, 0, 127]


def test_an_image_that_is_too_large_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_images, "LARGEST", 50)
    blob = {"dtype": "u8", "shape": [8, 8, 1], "base64": base64.b64encode(bytes(64)).decode()}
    path = written(tmp_path / "f.jsonl", [line("g", 0, group_size=1, images=[blob])])
    with page_of_file(path) as page:
        group = page.group_of("g")
        status, why = page.refusal("image", group=group, member=0, index=0)
        assert status == 400 and "64 bytes" in why
        status, why = page.refusal("image", group=group, member=0, index=1)
        assert status == 404 and "1 images" in why
