"""The page in a browser: pictures, layers, text, questions, lost links, and nothing that the policy forbids."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from msgspec import structs
from playwright.sync_api import Page

from stream.config import WatchConfig
from stream.control import Ask
from stream.events import (
    AnswerDeltaEvent,
    Cut,
    Detection,
    Explanation,
    Outage,
    Restarted,
    StandingQuestion,
    WatchesChanged,
)
from stream.extensions.web import application
from stream.untrusted import printable_lines
from tests.hostile.nasty import FORBIDDEN, NASTY
from tests.support.events import answer, detections, frame, look, match, summary, turned
from tests.support.network import free_port, until
from tests.support.tls import make_certificate
from tests.support.web import ServedPage, Visit, has, on_phone, pixel, served, shown, text, viewing


def test_pictures_arrive_and_the_state_is_in_words(run: ServedPage, visit: Visit) -> None:
    visit.see(run.url, 5)
    has(visit.page, "#state-words", "loading the model|live")
    run.emit(answer(0.5, "a cat"))
    has(visit.page, "#state-words", r"^live \d+:\d\d:\d\d [AP]M$")
    assert "camera · 64×48 · fake · cpu" in text(visit.page, "#facts")
    assert text(visit.page, "#viewers") == "1 viewer"
    assert visit.page.locator("#waiting").is_hidden()


def outline(page: Page, row: int, col: int) -> int:
    """Greatest opacity of the layers on the upper side of a tile."""
    opacity: int = page.evaluate(
        """([row, col]) => {
            const on = document.getElementById("layers");
            const side = on.width / 16;
            const at = [Math.round((col + .5) * side), Math.round(row * side)];
            const data = on.getContext("2d").getImageData(...at, 1, 4).data;
            return Math.max(data[3], data[7], data[11], data[15]);
        }""",
        [row, col],
    )
    return opacity


def test_a_chosen_tile_is_outlined_and_another_is_not(run: ServedPage, visit: Visit) -> None:
    visit.see(run.url)
    assert outline(visit.page, 0, 1) > 100
    assert outline(visit.page, 2, 4) > 100
    assert outline(visit.page, 3, 4) == 0  # inside the square of 2×2
    assert outline(visit.page, 5, 9) == 0
    assert text(visit.page, "#legend") == "full 2 half 1"
    visit.page.keyboard.press("t")
    assert outline(visit.page, 0, 1) == 0
    assert "layers=" in visit.page.url


def test_a_level_can_be_hidden_and_the_address_has_it(run: ServedPage, visit: Visit) -> None:
    visit.see(run.url)
    visit.page.get_by_label("full 2: tokens of full resolution").click()
    assert outline(visit.page, 0, 1) == 0
    assert outline(visit.page, 2, 4) > 100
    assert "hide=0" in visit.page.url


def test_layers_of_an_address_are_shown(run: ServedPage, visit: Visit) -> None:
    visit.see(run.url + "?layers=hd&op=100")
    bright, dull = pixel(visit.page, "layers", 1.5 / 16, 0.5 / 8), pixel(visit.page, "layers", 9.5 / 16, 5.5 / 8)
    assert bright[0] > 150  # the hottest tile
    assert bright[0] > dull[0]
    assert dull[3] > 150  # not shown: dark
    assert visit.page.locator("#layer-h").get_attribute("aria-pressed") == "true"
    assert visit.page.locator("#layer-t").get_attribute("aria-pressed") == "false"


def test_as_the_model_sees_it_leaves_out_what_was_not_chosen(run: ServedPage, visit: Visit) -> None:
    visit.see(run.url + "?layers=m")
    assert pixel(visit.page, "picture", 1.5 / 16, 0.5 / 8)[0] == pytest.approx(128, abs=6)
    assert pixel(visit.page, "picture", 9.5 / 16, 5.5 / 8)[:3] == [0, 0, 0]


def test_a_tile_shows_its_level_relevance_and_reasons(run: ServedPage, visit: Visit) -> None:
    visit.see(run.url)
    reason = {"level": 0, "row": 0, "col": 1, "rank": 1, "relevance": 1.0, "now": 0.9, "memory": 0.1}
    reasons = [{**reason, "scores": {"information": 0.75}, "shares": {"information": 1.0}}]
    run.emit(Explanation(frame_index=1, pts_s=1.0, strategy="mixed", weights={"information": 0.5}, tokens=reasons))  # type: ignore[arg-type]
    visit.page.wait_for_function("() => window.live.stage.why")
    box = visit.page.locator("#picture").bounding_box()
    assert box is not None
    visit.page.mouse.move(box["x"] + box["width"] * 1.5 / 16, box["y"] + box["height"] * 0.5 / 8)
    tip = text(visit.page, "#tip")
    assert "full resolution · row 0, column 1 relevance 1.00" in tip
    assert "rank at the last answer 1 of 1" in tip
    assert "information 0.75 × 0.50" in tip
    visit.page.locator("#stage").focus()
    visit.page.keyboard.press("ArrowDown")
    assert "not shown · row 1, column 1" in text(visit.page, "#tip")


def test_text_appears_while_it_is_spoken_and_then_with_its_figures(run: ServedPage, visit: Visit) -> None:
    visit.see(run.url)
    assert "No answers yet" in text(visit.page, "#lines")
    run.emit(AnswerDeltaEvent(answer=0, text="a red ", pts_s=61.0))
    has(visit.page, "#speaking-text", "a red")
    run.emit(AnswerDeltaEvent(answer=0, text="circle", pts_s=61.0))
    has(visit.page, "#speaking-text", "a red circle")
    run.emit(answer(61.0, "a red circle"))
    has(visit.page, "#lines", "1:01.0 ?a red circle")
    assert visit.page.locator("#speaking").is_hidden()
    assert "64 of 240 tokens · first token 40 ms" in text(visit.page, "#lines")
    assert text(visit.page, "#announce") == "a red circle"
    run.emit(AnswerDeltaEvent(answer=1, text="a blue ", pts_s=61.5))
    has(visit.page, "#speaking-meta", r"1:01\.5 · speaking$")
    run.emit(Cut(frame_index=8, pts_s=61.8, score=0.9))
    has(visit.page, "#speaking-meta", "speaking · before the cut")
    run.emit(structs.replace(answer(61.5, "a blue square"), before_cut=True))
    has(visit.page, "#lines li:first-child", "a blue square.*in all.*before the cut$")
    run.emit(structs.replace(answer(61.6, "a red a red"), looped=True))
    has(visit.page, "#lines li:first-child", "a red a red.*in all.*ended: it repeated itself")
    run.emit(structs.replace(answer(61.7, "a red star"), escalated=True))
    has(visit.page, "#lines li:first-child", "a red star.*in all.*by the larger model")
    run.emit(answer(62.0, "<img src=x onerror=alert(1)>"))
    has(visit.page, "#lines li:first-child", re.escape("<img src=x onerror=alert(1)>"))
    run.emit(Cut(frame_index=9, pts_s=63.0, score=0.9))
    run.emit(Restarted(process="frames", cause="killed by SIGKILL", count=1))
    has(visit.page, "#lines", "killed by SIGKILL")
    assert "1:03.0cut" in text(visit.page, "#lines").replace(" ", "")


def test_text_from_elsewhere_holds_nothing_that_turns_or_hides_it(run: ServedPage, visit: Visit) -> None:
    visit.see(run.url)
    run.emit(AnswerDeltaEvent(answer=0, text="\u202ede", pts_s=61.0))
    run.emit(AnswerDeltaEvent(answer=0, text="ppilf\u202c \U0001f469", pts_s=61.0))
    run.emit(AnswerDeltaEvent(answer=0, text="\u200d\U0001f680", pts_s=61.0))
    has(visit.page, "#speaking-text", "^deppilf \U0001f469\u200d\U0001f680$")
    run.emit(answer(61.0, NASTY))
    run.emit(Restarted(process="frames", cause=f"killed {NASTY}", count=1))
    has(visit.page, "#lines", "forged too")
    has(visit.page, "#lines", "killed plain")
    copied = visit.page.evaluate(
        """() => new Promise((resolve) => {
            Object.defineProperty(navigator, "clipboard", { value: { writeText: async (text) => resolve(text) } });
            document.getElementById("copy").click();
        })"""
    )
    page_text = visit.page.evaluate("() => document.body.innerText + document.title")
    assert "zerowidth" in page_text
    assert "zerowidth" in copied
    for words in (page_text, copied):
        assert [line for line in words.split("\n") if FORBIDDEN.search(line.replace("\t", ""))] == []


PRINTABLE = (
    "async (texts) => { const { printable } = await import('/page/untrusted.js'); return texts.map(printable); }"
)


def test_the_page_makes_text_printable_as_the_program_does(run: ServedPage, visit: Visit) -> None:
    visit.see(run.url)
    characters = [chr(code) for code in (*range(0x3200), *range(0xFB00, 0x10000), 0x1BCA0, 0x1D173, 0xE0041, 0x1F642)]
    texts = [
        NASTY,
        *(f"a{letter}b" for letter in characters if not 0xD800 <= ord(letter) <= 0xDFFF),
        "\x1b[31mred\x1b[0m",
        "\x1b]0;no end",
        "a\u200db \u200c \u0915\u094d\u200d\u0937 \U0001f469\u200d\u200d\U0001f680",
        "e" + "\u0301" * 9,
        "a\r\nb\rc\u2028d\te",
    ]
    assert visit.page.evaluate(PRINTABLE, texts) == [printable_lines(line) for line in texts]


def test_every_message_of_the_program_is_read_as_text_from_elsewhere() -> None:
    folder = Path(application.__file__).parent / "page"
    readers = {
        path.name
        for path in folder.glob("*.js")
        if re.search(r"JSON\.parse\(|\.json\(\)", path.read_text(encoding="utf-8"))
    }
    assert readers == {"untrusted.js", "settings.js"}, "readJson reads what the program sends; settings are the page's"


WATCHES = tuple(WatchConfig(question=f"is it {name}?", name=name) for name in ("here", "gone"))


def test_watches_are_listed_with_what_holds(visit: Visit) -> None:
    visit.allowed = "WebSocket"
    with served(watches=WATCHES) as run:
        run.emit(look(61.0, holds="no", watch="gone"))
        visit.see(run.url)
        has(visit.page, "#watches li:nth-child(1)", r"is it here. not known yet")
        has(visit.page, "#watches li:nth-child(2)", r"is it gone. no[\s\S]*97 % yes")
        run.emit(look(63.0))
        has(visit.page, "#watches li:nth-child(1)", r"is it here. yes[\s\S]*97 % yes at 1:03\.0")
        run.emit(turned(63.0))
        run.emit(match(63.0, 4))
        has(visit.page, "#lines li:first-child", "match 4: is it here")
        has(visit.page, "#lines li:nth-child(2)", "now yes")
    with visit.at(served()) as run:
        visit.see(run.url)
        assert visit.page.locator("#watches").is_hidden()


def test_the_bar_of_a_watch_shows_what_it_takes(visit: Visit) -> None:
    watch = WatchConfig(name="here", question="is it here?", threshold=0.7, no_below=0.2, hold_s=5)
    with visit.at(served(watches=(watch,))) as run:
        visit.see(run.url)
        has(visit.page, "#watches .note", r"^yes from 70 %, no up to 20 %, a match after 5 s of yes$")
        marks = visit.page.locator("#watches .mark").evaluate_all("(all) => all.map((mark) => mark.style.left)")
        assert marks == ["20%", "70%"]
        run.emit(look(61.0, yes=0.72, holds="no"))
        has(visit.page, "#watches .note", r"^72 % yes at 1:01\.0: yes if the next check agrees · yes from 70 %")
        run.emit(look(62.0, yes=0.5, holds="no"))
        has(visit.page, "#watches .note", r"^50 % yes at 1:02\.0, neither yes nor no · ")
        run.emit(look(63.0, yes=0.1, holds="no"))
        has(visit.page, "#watches .note", r"^10 % yes at 1:03\.0 · ")


def test_a_live_camera_is_dated(run: ServedPage, visit: Visit) -> None:
    visit.see(run.url)
    run.emit(structs.replace(answer(61.0, "a cat"), time="2026-01-02T12:34:56.000+00:00"))
    day = visit.page.evaluate("() => new Date('2026-01-02T12:34:56Z').toLocaleTimeString([], { timeStyle: 'medium' })")
    has(visit.page, "#lines li", f"Jan 2.*{day}.*a cat")
    today = visit.page.evaluate("() => new Date().toISOString()")
    run.emit(structs.replace(answer(62.0, "a dog"), time=today))
    has(visit.page, "#lines li:first-child", r"^\d+:\d\d:\d\d [AP]Ma dog")
    has(visit.page, "#state-words", r"^live \d+:\d\d:\d\d [AP]M$")


TOPS = "(all) => [...new Set(all.map((one) => Math.round(one.getBoundingClientRect().top)))].length"


def test_a_desktop_has_the_tools_and_the_figures_in_one_row(run: ServedPage, visit: Visit) -> None:
    visit.see(run.url + "?layers=th")
    has(visit.page, "#legend", "full")
    height = visit.page.locator(".tools").evaluate("(tools) => tools.offsetHeight")
    assert height < 2 * visit.page.locator("#layer-t").evaluate("(button) => button.offsetHeight")
    assert visit.page.locator(".chart").evaluate_all(TOPS) == 1


def test_a_phone_has_the_header_in_one_row(run: ServedPage, visit: Visit) -> None:
    visit.page.set_viewport_size({"width": 390, "height": 844})
    visit.see(run.url)
    assert (
        visit.page.locator("header > *:visible:not(h1)").evaluate_all(
            "(all) => { const y = all.map((one) => one.getBoundingClientRect()).map((box) => box.top + box.height / 2);"
            " return Math.max(...y) - Math.min(...y); }"
        )
        < 4
    )
    assert visit.page.evaluate("() => document.documentElement.scrollWidth") == 390


def test_a_button_that_does_nothing_says_why(run: ServedPage, visit: Visit) -> None:
    visit.see(run.url)
    visit.page.keyboard.press("z")
    assert visit.page.locator("#zone-undo").get_attribute("title") == "It has no corner yet"
    assert visit.page.locator("#zone-close").get_attribute("title") == "A zone has three corners or more"
    assert visit.page.locator("#zone-weight").get_attribute("title") == "Factor of the relevance of its tiles, 0 to 4"
    visit.page.locator("#zone-mask").check()
    assert visit.page.locator("#zone-weight").get_attribute("title") == "A mask has no weight"


def test_a_question_is_asked_and_recalled(run: ServedPage, visit: Visit) -> None:
    visit.see(run.url)
    visit.page.keyboard.press("/")
    visit.page.keyboard.type("where is the cat?")
    visit.page.keyboard.press("Enter")
    has(visit.page, "#asked", "The question now: where is the cat.")
    assert run.run.commands == [Ask("where is the cat?")]
    has(visit.page, "#lines", "asked: where is the cat")
    visit.page.keyboard.press("ArrowUp")
    assert visit.page.locator("#question").input_value() == "where is the cat?"


def test_usual_questions_are_offered(run: ServedPage, visit: Visit) -> None:
    visit.page.goto(run.url)
    offered = visit.page.evaluate("() => [...document.getElementById('question').list.options].map((one) => one.value)")
    assert "Say what happens." in offered
    assert len(offered) >= 4


def test_a_page_that_only_shows_has_no_question_box(visit: Visit) -> None:
    with visit.at(served(web__control=False)) as run:
        visit.see(run.url)
        assert visit.page.locator("#ask").is_hidden()
        assert "takes no questions" in text(visit.page, ".ask")


def test_an_old_picture_is_greyed_with_its_age_and_an_outage_named(run: ServedPage, visit: Visit) -> None:
    visit.see(run.url)
    run.pictures.silent = True
    run.emit(Outage(frame_index=1, pts_s=1.0, reason="the cable is unplugged"))
    has(visit.page, "#badge", r"source lost · \d.*s old")
    assert "stale" in (visit.page.locator("#stage").get_attribute("class") or "")
    has(visit.page, "#state-words", "source lost.*unplugged")
    run.pictures.silent = False
    run.emit(Outage(frame_index=2, pts_s=2.0, reason="", lasted_s=3.0))
    run.emit(frame(3, 2.0))
    has(visit.page, "#lines", "the source is back after 3.0 s")
    visit.page.locator("#badge").wait_for(state="hidden")


def test_a_frozen_picture_stays_while_the_run_goes_on(run: ServedPage, visit: Visit) -> None:
    visit.see(run.url)
    visit.page.keyboard.press("Space")
    has(visit.page, "#badge", "frozen")
    index = visit.page.evaluate("() => window.live.stage.frame.index")
    before = visit.page.evaluate("() => window.live.stage.shown")
    shown(visit.page, before + 5)
    assert visit.page.evaluate("() => window.live.stage.frame.index") == index
    visit.page.keyboard.press("Space")
    visit.page.wait_for_function("(index) => window.live.stage.frame.index > index", arg=index)


def test_the_picture_can_be_saved_with_its_layers(run: ServedPage, visit: Visit, tmp_path: Path) -> None:
    visit.see(run.url)
    with visit.page.expect_download() as download:
        visit.page.keyboard.press("s")
    download.value.save_as(tmp_path / "saved.png")
    assert (tmp_path / "saved.png").read_bytes().startswith(b"\x89PNG")
    run.emit(answer(1.0, "a cat"))
    has(visit.page, "#lines", "a cat")
    with visit.page.expect_download() as download:
        visit.page.locator("#save-vtt").click()
    download.value.save_as(tmp_path / "saved.vtt")
    assert "00:00:01.000 --> 00:00:02.000\na cat" in (tmp_path / "saved.vtt").read_text(encoding="utf-8")


def test_figures_are_drawn_and_shown_as_a_table(run: ServedPage, visit: Visit) -> None:
    visit.page.goto(run.url)
    visit.page.wait_for_function("() => window.live && window.live.figures.rows.length >= 2")
    count = visit.page.evaluate(
        """() => [...document.querySelectorAll(".chart canvas")].filter((canvas) => {
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            return data.some((value) => value);
        }).length"""
    )
    assert count >= 4
    visit.page.locator("#as-table").click()
    assert visit.page.locator("#table tbody tr").count() == 8


def test_a_server_that_is_gone_and_back_is_found_again(visit: Visit) -> None:
    visit.allowed = "WebSocket"
    port = free_port()
    with served(web__address=f"127.0.0.1:{port}") as first:
        visit.see(first.url)
        first.emit(answer(1.0, "before"))
        has(visit.page, "#lines", "before")
    has(visit.page, "#state-words", "reconnecting")
    before = visit.page.evaluate("() => window.live.stage.shown")
    with served(web__address=f"127.0.0.1:{port}"):
        shown(visit.page, before + 3)
        has(visit.page, "#lines", "No answers yet")
        has(visit.page, "#state-words", "loading|live")
    assert all("WebSocket" in error for error in visit.errors)


def test_a_run_that_has_ended_shows_how(run: ServedPage, visit: Visit) -> None:
    visit.see(run.url)
    run.emit(summary(ended="finished"))
    has(visit.page, "#state-words", "ended: finished")
    has(visit.page, "#lines", "the run has ended")


def test_four_viewers_see_the_same_run(run: ServedPage, visit: Visit) -> None:
    visit.see(run.url)
    with viewing(run) as quick, viewing(run) as slow, viewing(run) as stalled:
        quick.picture()
        slow.send(rate=1)
        until(lambda: run.hub.viewers == 4)
        before = visit.page.evaluate("() => window.live.stage.shown")
        shown(visit.page, before + 10)
        run.emit(answer(1.0, "everybody hears it"))
        has(visit.page, "#lines", "everybody hears it")
        for viewer in (quick, slow, stalled):
            assert viewer.next("answer")["text"] == "everybody hears it"
        assert len(stalled.pictures) <= 2
        has(visit.page, "#viewers", "4 viewers")


def test_a_viewer_too_many_is_refused(run: ServedPage, visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream.extensions.web.application.VIEWERS_MAX", 1)
    with viewing(run) as viewer:
        viewer.next("hello")
        visit.page.goto(run.url)
        has(visit.page, "#state-words", "as many viewers as it can")


def test_on_a_phone_nothing_is_wider_than_the_screen(run: ServedPage, visit: Visit) -> None:
    on_phone(visit)
    visit.see(run.url)
    run.emit(answer(1.0, "word" * 60))
    has(visit.page, "#lines", "wordword")
    assert visit.page.evaluate("() => document.documentElement.scrollWidth") == 400
    assert visit.page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(14, 18, 23)"
    visit.page.get_by_label("Light or dark").click()
    assert visit.page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(243, 245, 248)"


def test_in_a_low_window_the_picture_stays_in_the_middle_of_its_stage(run: ServedPage, visit: Visit) -> None:
    visit.page.set_viewport_size({"width": 960, "height": 400})
    visit.see(run.url)
    stage, section, picture = (
        visit.page.locator(selector).bounding_box() for selector in ("#stage", ".watch", "#picture")
    )
    assert stage is not None
    assert section is not None
    assert picture is not None
    assert stage["width"] == pytest.approx(section["width"], abs=4)
    assert picture["x"] + picture["width"] / 2 == pytest.approx(stage["x"] + stage["width"] / 2, abs=2)


def test_the_token_is_asked_for_and_leaves_the_address(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    visit.allowed = "401"
    monkeypatch.setattr(application, "WRONG_TOKEN_S", 0.0)
    with visit.at(served(web__token="a long secret")) as run:
        visit.page.goto(run.url)
        assert "asks for a token" in text(visit.page, "main")
        visit.page.get_by_label("Token").fill("not that one")
        visit.page.keyboard.press("Enter")
        has(visit.page, "main", "That is not the token")
        visit.page.get_by_label("Token").fill("a long secret")
        visit.page.keyboard.press("Enter")
        shown(visit.page)
        assert "token" not in visit.page.url


def test_the_page_works_over_tls(visit: Visit, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    with visit.at(served(web__cert=certificate, web__key=key)) as run:
        visit.see(run.url)


def test_another_site_cannot_look(run: ServedPage, visit: Visit) -> None:
    visit.allowed = ""  # the browser reports each refusal
    reply = visit.page.goto(f"http://other.test:{run.port}/")
    assert reply is not None
    assert reply.status == 421
    with visit.at(served()) as foreign:
        visit.see(foreign.url)
        opened = visit.page.evaluate(
            """(url) => new Promise((done) => {
                let socket;
                try { socket = new WebSocket(url); } catch { return done("forbidden"); }
                socket.onopen = () => done("open");
                socket.onerror = () => done("refused");
            })""",
            f"ws://127.0.0.1:{run.port}/live",
        )
    assert opened in ("refused", "forbidden")
    assert run.hub.viewers == 0
    visit.outside.clear()


LABELS = """() => [...document.querySelectorAll("button, input, canvas[role], table")]
    .filter((one) => one.offsetParent)
    .filter((one) => !(one.getAttribute("aria-label") || one.textContent.trim() || one.labels?.length || one.caption))
    .map((one) => one.outerHTML)"""

CONTRAST = """() => {
    const linear = (value) => (value /= 255) <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    const parse = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
    const ground = (one) => {
        for (; one; one = one.parentElement) {
            const colour = parse(getComputedStyle(one).backgroundColor);
            if ((colour[3] ?? 1) > 0.5) return colour;
        }
        return [255, 255, 255];
    };
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const low = [];
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const one = node.parentElement;
        if (!node.data.trim() || !one.offsetParent || one.closest(".unseen, #stage, button:disabled")) continue;
        const [front, back] = [light(parse(getComputedStyle(one).color)), light(ground(one))];
        const ratio = (Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05);
        if (ratio < 4.5) low.push([node.data.trim(), ratio]);
    }
    return low;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_has_a_label_and_text_has_contrast(
    run: ServedPage, visit: Visit, scheme: Literal["light", "dark"]
) -> None:
    visit.page.emulate_media(color_scheme=scheme)
    visit.see(run.url + "?layers=thdm")
    run.emit(answer(1.0, "a cat"))
    run.emit(Outage(frame_index=1, pts_s=1.0, reason="unplugged"))
    run.emit(look(2.0))
    has(visit.page, "#lines", "unplugged")
    assert visit.page.evaluate(LABELS) == []
    assert visit.page.evaluate(CONTRAST) == []


def test_a_watch_that_is_added_or_removed_leaves_the_others_as_they_were(visit: Visit) -> None:
    with visit.at(served(watches=WATCHES)) as run:
        visit.see(run.url)
        run.emit(look(63.0, holds="yes"))
        has(visit.page, "#watches li:nth-child(1)", r"is it here. yes")
        place = StandingQuestion("here", WATCHES[0].question)
        door = StandingQuestion("door", "Is the <b>door</b> open?")
        run.emit(WatchesChanged(watch="door", watches=[place, door], question=door.question))
        has(visit.page, "#watches li:nth-child(1)", r"is it here. yes[\s\S]*97 % yes")
        has(visit.page, "#watches li:nth-child(2)", r"Is the <b>door</b> open. not known yet")
        has(visit.page, "#lines", "watch added: “Is the <b>door</b> open")
        run.emit(WatchesChanged(watch="nix", watches=[place, door], error="no watch is named 'nix'"))
        has(visit.page, "#lines", "the watch “nix” is not changed: no watch is named")
        run.emit(WatchesChanged(watch="door", watches=[place], question=door.question))
        has(visit.page, "#lines", "watch removed: “Is the <b>door</b> open")
        assert visit.page.locator("#watches li").count() == 1


def test_the_program_ends_while_a_viewer_watches(visit: Visit) -> None:
    visit.allowed = "WebSocket"
    page = ServedPage()
    visit.see(page.url)
    page.close()
    has(visit.page, "#state-words", "reconnecting")
    until(lambda: page.hub.viewers == 0)


def test_a_file_s_time_is_its_own(run: ServedPage, visit: Visit) -> None:
    run.run.source_info = replace(run.run.source_info, name="/srv/films/lesson.mp4", live=False)
    run.hub.publish_status()
    visit.page.goto(run.url)
    has(visit.page, "#facts", "^lesson.mp4")
    assert visit.page.title().endswith(" · lesson.mp4")
    shown(visit.page)
    run.emit(answer(1.0, "a lesson"))
    visit.page.evaluate("() => { live.stage.age = (frame) => (frame.mediaS = 3725); }")  # each frame that is shown
    has(visit.page, "#state-words", "live 1:02:05")


def test_keys_are_listed_under_the_question_mark(run: ServedPage, visit: Visit) -> None:
    for path in ("", "microscope"):
        visit.page.goto(run.url + path)
        visit.page.keyboard.press("?")
        has(visit.page, "#keys", "move over its tiles")
        visit.page.keyboard.press("t")  # no action behind the list
        visit.page.keyboard.press("Escape")
        visit.page.locator("#keys").wait_for(state="hidden")
    assert "tiles=0" not in visit.page.url
    visit.page.goto(run.url)
    visit.page.locator("#question").press("?")
    assert visit.page.locator("#keys").is_hidden()


CHART = """([times, at]) => {
    live.figures.add = () => null;
    live.figures.rows = times.map((uptime_s) => ({ own: { shown: null, age: null, dropped: 0 }, now: {
        uptime_s, fps: 30, frames: 1, answers: 0, ttft_p95_ms: null, tokens: 9, tiles: 9, cuts: 0, dropped: {},
        memory_bytes: {}, dirty_share: null } }));
    live.figures.draw();
    const canvas = document.querySelector('[data-chart="rate"] canvas');
    const x = Math.round(canvas.width * (1 - (times.at(-1) - at) / 60));
    const column = canvas.getContext("2d").getImageData(x, 0, 1, canvas.height - 4).data;
    return column.filter((value, index) => index % 4 === 3 && value > 0).length > 0;
}"""


def test_charts_have_gaps_for_times_without_measurements(run: ServedPage, visit: Visit) -> None:
    visit.see(run.url, 1)
    times = [101, 102, 103, 130, 140, 141]
    has_line = {at: visit.page.evaluate(CHART, [times, at]) for at in (102, 115, 130, 135)}
    assert has_line == {102: True, 115: False, 130: True, 135: False}


CLOCKS = """async ([trips, aheadMs]) => {
    const { ClockDifference } = await import("/page/link.js");
    const clock = new ClockDifference(() => null), real = Date.now;
    let nowMs = 1e12;
    Date.now = () => nowMs;
    for (const [thereMs, backMs] of trips) {
        clock.ask();
        nowMs += thereMs;
        const unix_ns = (nowMs - aheadMs) * 1e6;
        nowMs += backMs;
        clock.take({ clock: clock.number, unix_ns });
    }
    clock.stop();
    Date.now = real;
    return clock.differenceMs;
}"""


@pytest.mark.parametrize(
    ("trips", "ahead_ms", "difference_ms"),
    [
        ([[1, 1]], 0, 0),
        ([[0, 45]], 0, 0),  # the page was busy when the reply came
        ([[300, 45], [0, 4]], 0, 0),
        ([[5, 5]], 5000, 5000),
        ([[400, 0], [5, 5], [0, 100]], -3000, -3000),
    ],
)
def test_the_clocks_are_compared_by_round_trips(
    run: ServedPage, visit: Visit, trips: list[list[int]], ahead_ms: int, difference_ms: int
) -> None:
    visit.page.goto(run.url)
    assert visit.page.evaluate(CLOCKS, [trips, ahead_ms]) == pytest.approx(difference_ms, abs=0.01)


def test_on_one_host_a_picture_s_age_is_that_by_the_host_s_clock(run: ServedPage, visit: Visit) -> None:
    visit.page.goto(run.url)
    visit.page.wait_for_function("() => live.stage.clock.exchanges.length > 1")
    shown(visit.page)
    assert visit.page.evaluate("() => live.stage.clock.differenceMs") == 0
    assert visit.page.evaluate("() => live.stage.lastAgeMs") >= -1  # a browser's clock has whole milliseconds


def orange(page: Page, x: float, y: float) -> bool:
    """Whether the layers have the colour of a box within two pixels of a place, in shares of the picture."""
    is_orange: bool = page.evaluate(
        """([x, y]) => {
            const on = document.getElementById("layers");
            const at = [Math.round(x * on.width) - 2, Math.round(y * on.height) - 2];
            const data = on.getContext("2d").getImageData(...at, 5, 5).data;
            const near = (n) => data[4 * n] > 220 && Math.abs(data[4 * n + 1] - 158) < 40 && data[4 * n + 2] < 110;
            return [...Array(25).keys()].some(near);
        }""",
        [x, y],
    )
    return is_orange


def test_boxes_lie_over_the_picture_until_the_next_answer(run: ServedPage, visit: Visit) -> None:
    visit.see(run.url)
    assert visit.page.locator("#layer-b").is_hidden()
    label = "<img src=x onerror=alert(1)>"
    objects = [Detection(label=label, box=[256.0, 64.0, 768.0, 384.0]), Detection(label="", point=[896.0, 448.0])]
    for is_second in (False, True):
        if is_second:
            run.emit(answer(1.0, "a cat"))
            visit.page.wait_for_function("() => !window.live.stage.detections")
            assert not orange(visit.page, 0.75, 0.5)
        run.emit(detections(1.0, *objects, size=(1024, 512)))
        visit.page.wait_for_function("() => window.live.stage.detections")
        assert orange(visit.page, 0.75, 0.5)
        assert orange(visit.page, 0.875, 0.875)
        assert not orange(visit.page, 0.5, 0.5)
    has(visit.page, "#lines", re.escape(f"located: {label}, object"))
    visit.page.keyboard.press("b")
    assert visit.page.locator("#layer-b").get_attribute("aria-pressed") == "false"
    assert not orange(visit.page, 0.75, 0.5)
    assert "boxes=0" in visit.page.url
    visit.page.locator("#layer-b").click()
    assert orange(visit.page, 0.75, 0.5)
    run.emit(Cut(frame_index=8, pts_s=2.0, score=0.9))
    visit.page.wait_for_function("() => !window.live.stage.detections")


def test_a_new_viewer_sees_the_boxes_of_the_newest_answer_alone(run: ServedPage, visit: Visit) -> None:
    run.emit(detections(1.0, size=(1024, 512)))
    visit.see(run.url)
    visit.page.wait_for_function("() => window.live.stage.detections?.objects.length === 2")
    run.emit(answer(2.0, "nothing"))
    visit.page.wait_for_function("() => !window.live.stage.detections")
    visit.page.reload()
    has(visit.page, "#lines", "nothing")
    assert visit.page.evaluate("() => window.live.stage.detections") is None


def test_labels_can_be_read_in_a_mirrored_picture(run: ServedPage, visit: Visit) -> None:
    """The label of a box at the left stands at the right of a mirrored screen: its ground is there, whole."""
    visit.see(run.url)
    visit.page.evaluate("() => live.stage.setMirrored(true)")
    run.emit(detections(1.0, Detection(label="cat", box=[102.0, 256.0, 512.0, 410.0]), size=(1024, 512)))
    visit.page.wait_for_function("() => window.live.stage.detections")
    assert pixel(visit.page, "layers", 0.49, 0.48)[3] > 200
    assert pixel(visit.page, "layers", 0.11, 0.48)[3] < 200
