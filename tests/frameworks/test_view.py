"""The page of `rollring view` in a real browser: files, text that may be hostile, long members."""
import base64
import json
import os

import numpy as np
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

import rollring as rr
import view_run
from view_browser import NO_BROWSER, browser, page, ring, sums, words

__all__ = ["browser", "page", "ring", "sums", "words"]  # fixtures
pytestmark = NO_BROWSER
HOSTILE = ('<script>window.pwned=1</script><img src=x onerror="window.pwned=2">'
           '\u202egnirts\u202c \u200b\x1b[31m \ud800 javascript:window.pwned=3 ')
COUNT = 131_072
DOT = base64.b64decode(  # a GIF of one pixel
    "R0lGODlhAQABAIAAAAAAAP///ywAAAAAAQABAAACAUwAOw==")


def test_filters_and_links(page, sums):
    shown = page(sums).open()
    shown.wait(lambda: "60 of 60 groups" in shown.text(".matched"))
    assert shown.rows()[0] == "sums/59"
    shown.one("[name=q]").send_keys("sums/1")
    shown.wait(lambda: "11 of 60 groups" in shown.text(".matched"))
    Select(shown.one("[name=flat]")).select_by_value("1")
    shown.wait(lambda: shown.rows() == ["sums/15", "sums/10"])
    Select(shown.one("[name=sort]")).select_by_value("old")
    shown.wait(lambda: shown.rows() == ["sums/10", "sums/15"])
    assert shown.place() == {"q": "sums/1", "flat": "1", "sort": "old"}
    link = shown.driver.current_url
    shown.driver.get("about:blank")
    shown.driver.get(link)
    shown.wait(lambda: shown.rows() == ["sums/10", "sums/15"])
    assert shown.one("[name=q]").get_attribute("value") == "sums/1"
    shown.open("#reward_max=-1")
    shown.wait(lambda: "0 of 60 groups" in shown.text(".matched"))
    assert shown.rows() == []


def test_a_group_a_member_and_its_colours(page, sums):
    shown = page(sums, "--tokenizer", str(sums.parent)).open("#q=sums/7&sort=old")
    shown.click(".row")
    shown.wait(lambda: len(shown.all("#group .member")) == 8)
    assert "apples" in shown.text("#group .preview")[0]
    shown.click("#group .member", 2)
    shown.wait(lambda: "The answer is" in "".join(shown.text("#tokens")))
    assert shown.place()["member"] == "2"
    assert shown.text("#tokens .turn") == ["given, from 0", f"generated, from {prompt_of(shown)}"]
    color = Select(shown.one("#color"))
    assert {one.get_attribute("value") for one in color.options} >= {
        "", "turn", "advantage", "logprobs", "loss_mask", "policy_version"}
    for name in ("logprobs", "advantage", "loss_mask", "policy_version", "turn"):
        Select(shown.one("#color")).select_by_value(name)
        shown.wait(lambda: len(colours(shown)) > 1)
    Select(shown.one("#color")).select_by_value("logprobs")
    shown.wait(lambda: len(colours(shown)) > 10)
    shown.one("#find").send_keys("answer" + Keys.ENTER)
    shown.wait(lambda: "1 of 1" in shown.text(".tools .soft"))
    assert shown.wait(lambda: shown.text("#tokens .found")) == [" answer"]
    shown.press(Keys.ESCAPE)
    shown.one("#group")


def entropies(count):
    return [round(number / (count - 1), 3) for number in range(count)]


def check_entropy(shown):
    """Low, middle and high values of a column of the user have their colours."""
    shown.click(".row")
    shown.click("#group .member")
    shown.wait(lambda: len(shown.text("#tokens [data-at]")) == 21)
    Select(shown.one("#color")).select_by_value("entropy")
    shown.wait(lambda: len(colours(shown)) > 10)
    assert shown.place()["color"] == "entropy"
    assert "0 to 1" in shown.text(".tools .soft")
    low, middle, high = (shown.run(
        "return getComputedStyle(document.querySelector(`[data-at='${arguments[0]}']`))"
        ".backgroundColor.match(/[\\d.]+/g).map(Number)", at) for at in (0, 10, 20))
    assert low[0] > low[1] and high[1] > high[0]  # red, and green
    assert middle[3] == 0  # no colour
    ActionChains(shown.driver).move_to_element(shown.one("[data-at='5']")).perform()
    shown.wait(lambda: "entropy 0.2500" in shown.text("#under")[0])


def test_colours_by_a_column_of_the_ring(page):
    ring = f"test-view-entropy-{os.getpid()}"
    rr.create(ring, lanes=1, lane_bytes="1MiB", columns={"entropy": rr.Column("f32")})
    try:
        shown = page(ring).open()
        with rr.Producer(ring, "worker") as producer:
            producer.push("g", token_ids=list(range(21)), repetition_id=0, group_size=1,
                          entropy=entropies(21))
            check_entropy(shown)
    finally:
        rr.remove(ring, force=True)


def test_colours_by_another_key_of_a_file(page, tmp_path):
    lines = [{"instance_id": "g", "token_ids": list(range(21)), "repetition_id": 0,
              "group_size": 1, "reward": 1, "entropy": entropies(21), "note": ["a"] * 21}]
    shown = page(view_run.write_lines(tmp_path / "own.jsonl", lines)).open()
    check_entropy(shown)
    options = Select(shown.one("#color")).options
    assert "note" not in [one.get_attribute("value") for one in options]


def colours(shown):
    return set(shown.run(
        "return [...document.querySelectorAll('#tokens [data-at]')]"
        ".map((one) => one.style.backgroundColor)"))


def prompt_of(shown):
    return shown.run("return document.querySelectorAll('#tokens span.given').length")


def test_sequences_of_a_member_and_its_images(page, tmp_path):
    red = {"dtype": "u8", "shape": [2, 3, 3],
           "base64": base64.b64encode(bytes([255, 0, 0]) * 6).decode()}
    dot = {"dtype": "u8", "shape": [len(DOT)], "base64": base64.b64encode(DOT).decode()}
    lines = [{"instance_id": "turns", "token_ids": [10 * part + 1] * 4, "n_prompt": 0,
              "repetition_id": 0, "group_size": 1, "reward": 1, "subsequence_index": part,
              "last_subsequence": part == 2,
              "images": [red, dot, "http://elsewhere.example/a.png"] if part == 1 else []}
             for part in range(3)]
    shown = page(view_run.write_lines(tmp_path / "turns.jsonl", lines)).open()
    shown.click(".row")
    shown.click("#group .member")
    shown.wait(lambda: shown.text("#sequences button") == ["0", "1", "2"])
    for part in (2, 1, 0):
        shown.click("#sequences button", part)
        wanted = [f"{10 * part + 1} "] * 4
        shown.wait(lambda wanted=wanted: shown.text("#tokens [data-at]") == wanted)
        assert shown.place().get("seq") == str(part)
        if part == 1:
            shown.wait(lambda: shown.all("#images img"))
            shown.wait(lambda: shown.run(
                "return document.querySelector('#images img').naturalWidth") == 1)
            pixel = shown.run("return [...document.querySelector('#images canvas').getContext('2d')"
                              ".getImageData(2, 1, 1, 1).data]")
            assert pixel == [255, 0, 0, 255]
            assert shown.text("#images .soft") == ["http://elsewhere.example/a.png"]
        else:
            assert not shown.all("#images")


def test_a_member_that_is_replaced_while_it_is_shown(page, ring):
    shown = page(ring).open()
    with rr.Producer(ring, "worker") as producer:
        def push(attempt, token):
            producer.push("g", token_ids=[token] * 3, repetition_id=0, group_size=2,
                          attempt=attempt)

        push(0, 5)
        shown.click(".row")
        shown.click("#group .member")
        shown.wait(lambda: shown.text("#tokens [data-at]") == ["5 "] * 3)
        push(1, 6)
        shown.wait(lambda: shown.rollouts() == 2)
        shown.one("#find").send_keys("6" + Keys.ENTER)
        shown.wait(lambda: shown.text("#tokens [data-at]") == ["6 "] * 3)
    shown.driver.get_log("browser")  # the refusal is one of its errors


def test_keys(page, sums):
    shown = page(sums).open()
    shown.wait(lambda: "60 of 60 groups" in shown.text(".matched"))
    shown.press("jj")
    shown.wait(lambda: shown.text("#group .title .name") == ["sums/58"])
    shown.press("k")
    shown.wait(lambda: shown.text("#group .title .name") == ["sums/59"])
    shown.press(Keys.ENTER)
    shown.wait(lambda: shown.place().get("member") == "0")
    shown.press(Keys.ESCAPE)
    shown.one("#group")
    shown.press("3")
    shown.wait(lambda: shown.place().get("member") == "2")
    for key, member in (("l", "3"), (Keys.ARROW_RIGHT, "4"), ("h", "3"), (Keys.ARROW_LEFT, "2")):
        shown.wait(lambda: f"member {shown.place()['member']}" in shown.text("#member .title b"))
        shown.press(key)
        shown.wait(lambda member=member: shown.place()["member"] == member)
    shown.one("#tokens")
    shown.press("c")
    shown.wait(lambda: shown.place().get("color") == "turn")
    shown.press("/")
    shown.wait(lambda: shown.run("return document.activeElement.id") == "find")
    shown.press(Keys.ESCAPE)
    shown.wait(lambda: "member" not in shown.place())
    before = shown.run("return getComputedStyle(document.body).backgroundColor")
    shown.press("t")
    shown.wait(lambda: before != shown.run(
        "return getComputedStyle(document.body).backgroundColor"))
    shown.press("t")
    shown.press("d")
    shown.wait(lambda: len(shown.all("#distributions rect")) > 5)
    assert "Share of groups without variance" in shown.text("#distributions h2")
    shown.press("g")
    shown.wait(lambda: shown.rows())
    shown.press("?")
    shown.wait(lambda: shown.run("return document.getElementById('help').open"))


def test_copy_as_json(page, sums):
    shown = page(sums).open("#q=sums/7&sort=old")
    shown.driver.execute_cdp_cmd("Browser.grantPermissions", {
        "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]})
    shown.click(".row")
    shown.click("#copy")
    shown.wait(lambda: shown.text("#copy") == ["Copied"])
    copied = shown.driver.execute_async_script(
        "navigator.clipboard.readText().then(arguments[0], (error) => arguments[0](String(error)))")
    records = [json.loads(line) for line in copied.splitlines()]
    assert [one["repetition_id"] for one in records] == list(range(8))
    kept = [json.loads(line) for line in sums.read_text(encoding="utf-8").splitlines()]
    assert records[3]["token_ids"] == next(
        one["token_ids"] for one in kept
        if one["instance_id"] == "sums/7" and one["repetition_id"] == 3)


def test_a_token_with_letters_that_an_address_escapes(page, sums, monkeypatch):
    monkeypatch.setenv("ROLLRING_TOKEN", "a+b/c&d#e%41=f?g")
    shown = page(sums).open()
    shown.wait(lambda: "60 of 60 groups" in shown.text(".matched"))
    assert shown.place() == {}
    shown.run("sessionStorage.clear(); location.hash = arguments[0] + '&q=sums/7'",
              shown.address.partition("#")[2])
    shown.wait(lambda: shown.rows() == ["sums/7"])
    assert shown.place() == {"q": "sums/7"}


def test_a_name_of_characters_that_are_not_seen(page, tmp_path):
    unseen = "\u202e\u00ad\u3164\ufe0f\U000e0041\U000e0100"
    line = {"instance_id": unseen, "token_ids": [1], "n_prompt": 0, "repetition_id": 0,
            "group_size": 1, "reward": 1, "created_ns": 2**60 + 1}
    path = view_run.write_lines(tmp_path / f"{unseen}.jsonl", [line])
    path.write_text(path.read_text(encoding="utf-8") + f"no {unseen}\n", encoding="utf-8")
    shown = page(path).open()
    numbers = "⟨202e⟩⟨00ad⟩⟨3164⟩⟨fe0f⟩⟨e0041⟩⟨e0100⟩"
    shown.wait(lambda: shown.rows() == [numbers])
    shown.wait(lambda: f"{numbers}.jsonl" in shown.text("#problem")[0])
    assert f"{numbers}.jsonl" in shown.text("#source")[0]
    assert f"{numbers}.jsonl" in shown.run("return document.title")
    shown.click(".row")
    shown.click("#group .member")
    shown.click("details summary")
    shown.wait(lambda: str(2**60 + 1) in shown.text("details dd"))


def test_hostile_text(page, tmp_path):
    long_line = HOSTILE + "x" * 1_000_000
    lines = [{"instance_id": long_line, "token_ids": [1, 2, 3], "n_prompt": 1, "repetition_id": 0,
              "group_size": 1, "reward": 1, "source": HOSTILE,
              "messages": [{"role": "user", "content": long_line}]}]
    made = view_run.tokenizer(tmp_path)
    from tokenizers import Tokenizer

    ids = Tokenizer.from_file(str(made)).encode(
        HOSTILE.encode("utf-8", "replace").decode() * 20).ids
    lines.append({"instance_id": "tokens", "token_ids": ids, "n_prompt": 2, "repetition_id": 0,
                  "group_size": 1, "reward": 0})
    path = view_run.write_lines(tmp_path / "hostile.jsonl", lines)
    shown = page(path, "--tokenizer", str(made)).open("#sort=old")
    shown.wait(lambda: len(shown.rows()) == 2)
    assert "⟨202e⟩gnirts" in shown.rows()[0] and "<script>" in shown.rows()[0]
    assert Select(shown.one("[name=environment]")).options[-1].text.startswith("<script>")
    shown.click(".row", 0)
    shown.click("#group .member")
    shown.click("details summary")
    shown.wait(lambda: any("⟨202e⟩" in text for text in shown.text("details dd")))
    shown.press(Keys.ESCAPE + "j")
    shown.wait(lambda: shown.text("#group .title .name") == ["tokens"])
    shown.press("1")
    shown.wait(lambda: "".join(shown.text("#tokens [data-at]")).count("window.pwned=1") == 20)
    shown.press("d")
    shown.wait(lambda: shown.all("#distributions"))
    assert shown.run("return window.pwned") is None
    assert shown.run("return document.scripts.length") == 1
    assert shown.all("img") == []


def test_a_member_of_131072_tokens_scrolls(page, tmp_path):
    lines = [{"instance_id": "long", "token_ids": (np.arange(COUNT) % 50_000).tolist(),
              "n_prompt": 100, "repetition_id": 0, "group_size": 1, "reward": 1,
              "logprobs": (-np.arange(COUNT) % 7 / 3).tolist()}]
    path = view_run.write_lines(tmp_path / "long.jsonl", lines)
    shown = page(path).open()
    shown.click(".row")
    shown.click("#group .member")
    tokens = shown.one("#tokens")
    seen = set()
    for share in (0, 0.25, 0.5, 0.75, 1, 0.1):
        shown.run("const [list, share] = arguments;"
                  "list.scrollTop = share * list.scrollHeight", tokens, share)

        def in_sight():
            return shown.run(
                "const box = arguments[0].getBoundingClientRect();"
                "return [...arguments[0].querySelectorAll('[data-at]')].filter((one) => {"
                " const at = one.getBoundingClientRect();"
                " return at.top >= box.top && at.bottom <= box.bottom; })"
                ".map((one) => [Number(one.dataset.at), one.textContent.trim()])", tokens)

        visible = shown.wait(in_sight)
        assert all(text == str(at % 50_000) for at, text in visible)
        seen.add(visible[0][0] // 4096)
        shown.wait(lambda: shown.run(
            "return document.querySelectorAll('#tokens [data-at]').length") <= 40 * 512)
    assert len(seen) >= 4
    shown.run("location.hash += '&at=131071'")
    shown.wait(lambda: shown.run(
        "return document.querySelector('[data-at=\"131071\"]')?.classList.contains('found')"))


def test_ten_thousand_groups(page, tmp_path):
    lines = ({"instance_id": f"g/{number}", "token_ids": [1, 2], "repetition_id": 0,
              "group_size": 1, "reward": number} for number in range(10_000))
    path = view_run.write_lines(tmp_path / "many.jsonl", lines)
    shown = page(path).open()
    shown.wait(lambda: "10,000 of 10,000 groups" in shown.text(".matched"))
    shown.wait(lambda: shown.rows() and shown.rows()[0] == "g/9999")
    for share, name in ((1, "g/0"), (0, "g/9999")):
        shown.run("const list = document.querySelector('.list');"
                  "list.scrollTop = arguments[0] * list.scrollHeight", share)
        shown.wait(lambda wanted=name: wanted in shown.rows())
        assert len(shown.rows()) < 60
    shown.one("[name=q]").send_keys("g/777")
    shown.wait(lambda: "11 of 10,000 groups" in shown.text(".matched"))


def test_a_token_leaves_the_address(page, sums, monkeypatch):
    monkeypatch.setenv("ROLLRING_TOKEN", "secret-1")
    shown = page(sums).open()
    assert shown.address.endswith("#token=secret-1")
    shown.wait(lambda: shown.rows())
    assert "token" not in shown.place()
    shown.run("sessionStorage.clear()")
    shown.wait(lambda: "token" in shown.text("#problem")[0])
    shown.driver.get_log("browser")  # the refusal is one of its errors
