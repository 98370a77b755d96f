"""The texture microscope: asked frame by frame, shared by those who wait, and drawn in a browser."""

from __future__ import annotations

import asyncio
import re
import threading

import numpy as np
import pytest
from playwright.sync_api import Page

from stream.errors import TransportError
from stream.extensions.web import microscope as module
from stream.extensions.web.microscope import Microscope
from stream.protocol.inspection import read_inspection
from stream.protocol.pictures import INSPECTION, PictureRequest
from tests.support.network import LIMIT_S, until
from tests.support.web import COLS, HEIGHT, ROWS, WIDTH, Reply, ServedPage, Visit, ask, on_phone, pixel, png


def test_nothing_is_asked_for_without_a_request(run: ServedPage) -> None:
    assert run.pictures.inspections == []
    reply = ask(run, "/microscope/frame?levels=059")
    assert reply.status == 200
    assert [request.levels for request in run.pictures.inspections] == [(0, 5)]
    inspection = read_inspection(reply.body)
    assert set(inspection.pictures) == {0, 5}
    assert inspection.maps["information"].values[0, 1] == pytest.approx(0.5, abs=1e-4)


def test_those_who_wait_share_an_inspection(run: ServedPage) -> None:
    run.pictures.silent = True
    replies: list[Reply] = []
    asking = [threading.Thread(target=lambda: replies.append(ask(run, "/microscope/frame"))) for _ in range(3)]
    for thread in asking:
        thread.start()
    until(lambda: len(run.microscope._waiting) == 3)
    run.pictures.silent = False
    for thread in asking:
        thread.join(LIMIT_S)
    indices = {read_inspection(body).head["frame_index"] for _, _, body in replies}
    assert len(replies) == 3
    assert len(indices) == 1


def test_without_a_frame_the_reason_is_reported(run: ServedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FRAME_LIMIT_S", 0.01)
    run.pictures.silent = True
    reply = ask(run, "/microscope/frame")
    assert reply.status == 200
    with pytest.raises(TransportError, match="no frame has come"):
        read_inspection(reply.body)


def test_a_crowd_is_turned_away(run: ServedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 0)
    assert ask(run, "/microscope/frame")[0] == 503


def test_a_request_that_is_lost_is_made_again() -> None:
    """As if a frame process dies between request and reply."""

    class Forgetful:
        def __init__(self) -> None:
            self.requests: list[PictureRequest] = []

        def request(self, request: PictureRequest) -> None:
            self.requests.append(request)
            if len(self.requests) == 2:
                scope.show({INSPECTION: b"here"})

    scope, pictures = Microscope(), Forgetful()
    scope.attach(pictures)
    assert asyncio.run(scope.newest((0,))) == b"here"
    assert len(pictures.requests) == 2


def test_a_picture_is_inspected_with_its_own_number(run: ServedPage) -> None:
    reply = ask(run, "/microscope/picture?levels=0", png(60, 40))
    assert reply.status == 200
    assert read_inspection(reply.body).head["query"] == "60x40"
    picture = run.pictures.inspections[-1].picture
    assert picture is not None
    assert np.frombuffer(picture.pixels, np.uint8).reshape(40, 60, 3)[0, 0].tolist() == [200, 30, 30]


def test_a_large_picture_is_inspected_smaller(run: ServedPage) -> None:
    reply = ask(run, "/microscope/picture?levels=0", png(4000, 1000))
    assert read_inspection(reply.body).head["query"] == "2048x512"


@pytest.mark.parametrize("body", [b"", b"no picture", png(20_000, 10)])
def test_invalid_pictures_are_refused(run: ServedPage, body: bytes) -> None:
    reply = ask(run, "/microscope/picture", body)
    assert reply.status == 400
    assert "picture" in reply.json["error"]
    assert run.pictures.inspections == []


def test_a_run_that_does_not_answer_is_reported(run: ServedPage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PICTURE_LIMIT_S", 0.01)
    run.pictures.silent = True
    assert ask(run, "/microscope/picture", png(8, 8))[0] == 503


def looked(page: Page, rounds: int) -> None:
    page.wait_for_function("(rounds) => window.scope && window.scope.rounds >= rounds", arg=rounds)


def look(visit: Visit, run: ServedPage, query: str = "", rounds: int = 1) -> None:
    """Open the microscope and wait until `rounds` inspections have been shown."""
    visit.page.goto(f"{run.url}microscope{query}")
    looked(visit.page, rounds)


def at_tile(page: Page, row: int, col: int) -> tuple[float, float]:
    box = page.locator("#picture").bounding_box()
    assert box is not None
    return box["x"] + (col + 0.5) * box["width"] / COLS, box["y"] + (row + 0.5) * box["height"] / ROWS


def values(page: Page) -> dict[str, list[str]]:
    rows = page.locator("#values tr[data-map]").all()
    return {str(row.get_attribute("data-map")): row.locator("td").all_inner_texts() for row in rows}


def test_a_tile_shows_its_values_in_all_maps_and_why_it_is_shown_so(run: ServedPage, visit: Visit) -> None:
    look(visit, run, rounds=2)
    visit.page.mouse.click(*at_tile(visit.page, 0, 1))
    visit.page.locator("#values").wait_for()
    assert values(visit.page)["information"] == ["0.500", "1"]
    assert values(visit.page)["relevance, blended"] == ["1.000", "1"]
    verdict = visit.page.locator("#verdict").inner_text()
    assert "Shown at full detail" in verdict
    assert "number 1 of 128" in verdict
    visit.page.mouse.click(*at_tile(visit.page, 7, 15))
    visit.page.locator("#tile-title", has_text="row 7, column 15").wait_for()
    assert values(visit.page)["gradient across"] == ["0.250", "1"]
    verdict = visit.page.locator("#verdict").inner_text()
    assert "Not shown" in verdict
    assert "information (0.75 of the balance), of which this tile has 0.000" in verdict
    visit.page.locator("#stage").focus()
    visit.page.keyboard.press("ArrowUp")
    visit.page.locator("#tile-title", has_text="row 6, column 15").wait_for()


WHY = """(strategy) => {
    const { head, all } = window.scope.shown;
    window.scope.frozen = true;
    head.strategy = strategy.split(" ")[0];
    if (strategy.endsWith("of 1")) all.splice(1);
    document.getElementById("stage").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft" }));
    return document.getElementById("verdict").textContent;
}"""


@pytest.mark.parametrize(
    ("strategy", "tile", "words"),
    [
        (
            "foveated",
            (2, 5),
            "Budget and neighbours: .* The square of this tile has 0.004; the least that was split has",
        ),
        ("topk of 1", (7, 14), "Budget: 1 tile is shown in full detail, and 1 is more relevant"),
        ("topk", (7, 14), "Diversity: the tiles with less that are shown were shown before"),
        ("mixed", (7, 14), "Coverage and diversity: .* spread evenly over the frame"),
        ("grid", (7, 14), "Coverage: there is no structure"),
        ("random", (7, 14), "The strategy random chooses without relevance"),
        ("fixation", (7, 14), "Distance: detail falls off"),
    ],
)
def test_a_tile_without_full_detail_shows_why(
    run: ServedPage, visit: Visit, strategy: str, tile: tuple[int, int], words: str
) -> None:
    look(visit, run)
    visit.page.locator("#freeze").click()
    visit.page.mouse.click(*at_tile(visit.page, tile[0], tile[1] + 1))
    assert re.search(words, visit.page.evaluate(WHY, strategy))


def layer_pixel(page: Page, row: float, col: float) -> list[int]:
    return pixel(page, "layers", (col + 0.5) / COLS, (row + 0.5) / ROWS)


def test_a_map_is_laid_over_the_picture_and_the_address_keeps_it(run: ServedPage, visit: Visit) -> None:
    look(visit, run, "?op=100&tiles=0")
    visit.page.locator('.map[data-map="information"]').click()
    assert "map=information" in visit.page.url
    bright, dark = layer_pixel(visit.page, 0, 1), layer_pixel(visit.page, 5, 9)
    assert sum(bright[:3]) > sum(dark[:3]) + 200
    visit.page.locator("#relative").click()
    assert sum(layer_pixel(visit.page, 0, 1)[:3]) > sum(bright[:3]) + 100
    assert visit.page.locator("#scale-high").inner_text() == "0.500"
    visit.page.reload()
    looked(visit.page, 1)
    assert visit.page.locator('.map[aria-pressed="true"]').get_attribute("data-map") == "information"


def test_a_chosen_region_is_outlined_over_any_map(run: ServedPage, visit: Visit) -> None:
    look(visit, run, "?op=0")
    assert layer_pixel(visit.page, -0.5 + 1 / 32, 0.0)[3] > 100, "the edge of the tile at the top left"
    assert layer_pixel(visit.page, 5.5 + 1 / 32, 9.0)[3] == 0
    visit.page.locator("#regions").click()
    assert layer_pixel(visit.page, -0.5 + 1 / 32, 0.0)[3] == 0


MEMORY = """() => {
    const { scope } = window, { shown } = scope;
    scope.frozen = true;
    shown.head.group = { number: 1, frame: 1, overview: 0, tokens: 3, appended: 1, superseded: 1, times: [0.5, 2] };
    shown.tokens = Int16Array.of(0, 2, 5, 0, 0, 0, 2, 6, 0, 1, 0, 2, 6, 1, 0);
    shown.held = tokensOf(shown, shown.head.shapes);
    document.getElementById("stage").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight" }));
    return document.getElementById("verdict").textContent;
}""".replace("tokensOf", "(await import('/page/layers.js')).tokensOf").replace("() =>", "async () =>", 1)


def test_a_tile_shows_since_when_the_memory_shows_it(run: ServedPage, visit: Visit) -> None:
    look(visit, run)
    visit.page.locator("#freeze").click()
    visit.page.mouse.click(*at_tile(visit.page, 2, 4))
    assert "In the memory since 0.5 s, at full detail." in visit.page.evaluate(MEMORY)
    visit.page.locator("#stage").focus()
    visit.page.keyboard.press("ArrowRight")
    verdict = visit.page.locator("#verdict").inner_text()
    assert "New to the memory, at full detail. Superseded: as it was at 0.5 s." in verdict
    visit.page.keyboard.press("ArrowRight")
    assert "Not in the memory." in visit.page.locator("#verdict").inner_text()


def test_a_frozen_frame_stays_and_asks_for_nothing(run: ServedPage, visit: Visit) -> None:
    look(visit, run, rounds=2)
    visit.page.locator("#freeze").click()
    visit.page.wait_for_timeout(700)
    count, words = len(run.pictures.inspections), visit.page.locator("#state-words").inner_text()
    visit.page.wait_for_timeout(700)
    assert len(run.pictures.inspections) == count
    assert visit.page.locator("#state-words").inner_text() == words
    assert words.startswith("frozen · frame ")
    rounds = visit.page.evaluate("() => window.scope.rounds")
    visit.page.locator("#freeze").click()
    looked(visit.page, rounds + 1)


def test_a_picture_of_ones_own_is_looked_at_until_one_goes_back(run: ServedPage, visit: Visit) -> None:
    look(visit, run)
    visit.page.locator("#file").set_input_files({"name": "red.png", "mimeType": "image/png", "buffer": png(60, 40)})
    visit.page.locator("#state-words", has_text="red.png").wait_for()
    visit.page.locator("#facts", has_text="“60x40”").wait_for()
    visit.page.locator("#live").click()
    visit.page.locator("#state-words", has_text=re.compile("^live")).wait_for()


def test_a_file_that_is_no_picture_is_refused_in_words(run: ServedPage, visit: Visit) -> None:
    look(visit, run)
    visit.page.locator("#file").set_input_files({"name": "a.png", "mimeType": "image/png", "buffer": b"text"})
    visit.page.locator("#verdict", has_text="that is no picture").wait_for()
    rounds = visit.page.evaluate("() => window.scope.rounds")
    looked(visit.page, rounds + 1)  # the run goes on
    visit.allowed = "400"


def test_mipmap_levels_are_shown_and_asked_for_only_while_they_are_open(run: ServedPage, visit: Visit) -> None:
    look(visit, run)
    words = visit.page.locator(".mip p").all_inner_texts()
    assert len(words) == 6
    assert words[5] == f"level 5 · {WIDTH >> 5}×{HEIGHT >> 5} · a tile is 1×1"
    visit.page.locator("#mips-box summary").click()
    until(lambda: run.pictures.inspections[-1].levels == (0,))


def test_on_a_phone_nothing_is_wider_than_the_screen(run: ServedPage, visit: Visit) -> None:
    on_phone(visit)
    look(visit, run)
    visit.page.mouse.click(*at_tile(visit.page, 0, 1))
    assert visit.page.evaluate("() => document.documentElement.scrollWidth") <= 400
