"""The compare page: access, refusals, the queue, and the page in a browser. Answers are made up here."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Route
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from stream.extensions.web import application, connection
from stream.extensions.web.compare import MESSAGES_AT_ONCE, CompareDesk
from stream.extensions.web.comparison.messages import CompareFailed, CompareJob
from stream.extensions.web.comparison.questions import PictureQuestion
from stream.extensions.web.comparison.worker import is_right
from stream.scenes.stills import HEIGHT_PX, STILLS, WIDTH_PX
from tests.support.network import until
from tests.support.web import PageClient, ServedPage, Visit, ask, on_phone, png

QUESTION = "What is in the picture?"
TAKES_PICTURES = ("/compare/example/shapes", "/compare/picture", "/microscope/picture")
FULL, SPARSE = {"model": "one", "encode": "full"}, {"model": "one", "budget": 64}


def made_up(text: str, tokens: int, total_ms: float) -> dict[str, Any]:
    """An answer about a picture of 24 × 16 tiles, of which the first was chosen."""
    steps = {"allocate": 5.0, "glance": 0.0, "encode": 0.5 * total_ms, "prefill": 9.0, "decode": 40.0}
    return {
        "text": text,
        "tokens": tokens,
        "tiles": 384,
        "rows": 16,
        "cols": 24,
        "relevance": [255] + [0] * 383,
        "regions": [0, 0, 0],
        "overview": 0,
        "text_tokens": 4,
        "ms": {**steps, "first_token": 60.0, "total": total_ms},
        "first_call": False,
        "memory": {"kept_bytes": 3_100_000, "peak_bytes": 400_000_000, "of": "process"},
        "device": "cpu",
        "dtype": "float32",
    }


class MadeUpAnswers:
    """An engine that answers on the test's signal."""

    def __init__(self) -> None:
        self.jobs: list[CompareJob] = []
        self.cancelled: set[int] = set()
        self.go = threading.Semaphore(0)
        self.fail: Exception | None = None
        self.closed = False

    def answer(self, job: CompareJob, report: Callable[[dict[str, Any]], None]) -> None:
        self.jobs.append(job)
        while not self.go.acquire(timeout=0.01):
            if job.number in self.cancelled or self.closed:
                report({"topic": "ended", "cancelled": True, "verdicts": []})
                return
        if self.fail is not None:
            raise self.fail
        verdicts: list[dict[str, Any] | None] = []
        for number, column in enumerate(job.request.columns):
            report({"topic": "progress", "column": number, "state": "loading"})
            if column.budget == 13:
                report({"topic": "column", "column": number, "error": "big needs about 90.0 GB, and 2.0 GB are free"})
                verdicts.append(None)
                continue
            text = "a red circle." if number != 2 else "<b>a blue</b> circle."
            graded = {"right": None if job.known is None else is_right(text, job.known)}
            for piece in ("a red ", "circle."):
                report({"topic": "text", "column": number, "text": piece})
            fields = made_up(text, 384 >> number, 400.0 / (number + 1))
            report({"topic": "column", "column": number, **fields, **graded})
            verdicts.append(
                None if number == 0 else {"same": number == 1, "words": 0.8, "faster": 2.0, "token_share": 0.5}
            )
        report({"topic": "ended", "cancelled": False, "verdicts": verdicts})

    def cancel(self, number: int) -> None:
        self.cancelled.add(number)

    def close(self) -> None:
        self.closed = True


class ComparePage(ServedPage):
    """The page with a desk whose answers the test makes up."""

    def __init__(self, questions: Sequence[PictureQuestion] = (), **options: Any) -> None:
        self.engine = MadeUpAnswers()
        control = options.get("web__control", True)
        models = {"one": "drawn scenes", "two": None}
        desk = CompareDesk(self.engine, models, {"version": "0.1"}, questions, control=control)
        super().__init__(compare=desk, **options)

    def picture(self) -> str:
        return str(ask(self, "/compare/example/shapes", b"").json["picture"])


@pytest.fixture
def page() -> Iterator[ComparePage]:
    with closing(ComparePage()) as page:
        yield page


@contextmanager
def comparing(page: ComparePage) -> Iterator[PageClient]:
    with connect(page.url.replace("http", "ws") + "compare/socket", compression=None) as socket:
        yield PageClient(socket)


def request(picture: str, *columns: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"picture": picture, "question": QUESTION, "columns": list(columns or (FULL, SPARSE)), **fields}


def test_a_picture_is_taken_and_shown_again(page: ComparePage) -> None:
    reply = ask(page, "/compare/picture", png(320, 200))
    assert (reply.status, reply.json["width"], reply.json["height"]) == (200, 320, 200)
    picture = ask(page, f"/compare/picture/{reply.json['picture']}")
    assert Image.open(io.BytesIO(picture.body)).size == (320, 200)
    assert "content-security-policy" in picture.headers


@pytest.mark.parametrize("still", STILLS, ids=lambda still: still.name)
def test_every_example_is_drawn(page: ComparePage, still: Any) -> None:
    reply = ask(page, f"/compare/example/{still.name.replace(' ', '%20')}", b"")
    assert (reply.status, reply.json["width"], reply.json["height"]) == (200, WIDTH_PX, HEIGHT_PX)


def test_a_file_that_is_no_picture_or_too_large_is_one_line(page: ComparePage) -> None:
    for body, error in ((b"not a picture", "no picture"), (b"", "no picture"), (bytes(17 << 20), "at most 16 MiB")):
        reply = ask(page, "/compare/picture", body)
        assert (reply.status, error in reply.json["error"]) == (400, True)
    assert ask(page, "/compare/example/none", b"").status == 404
    assert page.picture()  # and the page goes on


def test_pictures_too_quick_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stream.extensions.web.uploads.receiver.UPLOADS_A_SECOND", 0.0)
    with closing(ComparePage()) as page:
        statuses = [ask(page, "/compare/example/shapes", b"").status for _ in range(10)]
        statuses += [ask(page, path, b"x").status for path in TAKES_PICTURES]
    assert statuses == [200] * 10 + [429] * 3


@pytest.mark.parametrize("path", TAKES_PICTURES)
def test_another_site_gives_no_picture(page: ComparePage, path: str) -> None:
    reply = ask(page, path, png(8, 8), Origin="http://evil.example")
    assert (reply.status, reply.text) == (403, "Only the page itself may do that.\n")
    assert ask(page, path, png(8, 8), Origin=f"http://127.0.0.1:{page.port}").status == 200


def test_viewers_that_may_only_look_send_no_picture_and_compare_nothing() -> None:
    with closing(ComparePage(web__control=False)) as page:
        for path in TAKES_PICTURES:
            reply = ask(page, path, png(8, 8))
            assert (reply.status, "only shows" in reply.json["error"]) == (403, True)
        with comparing(page) as viewer, pytest.raises(ConnectionClosed, match="--web-control"):
            viewer.next("hello")


def test_without_the_token_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "WRONG_TOKEN_S", 0.0)
    page = ComparePage(web__token="a long secret")
    assert ask(page, "/compare/example/shapes", b"").status == 401
    assert ask(page, "/compare/example/shapes", b"", Authorization="Bearer a long secret").status == 200
    page.close()


def test_answers_come_piece_by_piece_and_then_whole(page: ComparePage) -> None:
    picture = page.picture()
    with comparing(page) as viewer:
        assert viewer.next("hello")["models"] == ["one", "two"]
        viewer.send(run=request(picture, max_tokens=20, seed=7))
        viewer.next("begun")
        page.engine.go.release()
        assert viewer.next("text") == {"topic": "text", "column": 0, "text": "a red "}
        assert viewer.next("column")["text"] == "a red circle."
        assert viewer.next("ended")["verdicts"][1]["same"] is True
    (job,) = page.engine.jobs
    assert (job.width, job.height, len(job.pixels)) == (WIDTH_PX, HEIGHT_PX, WIDTH_PX * HEIGHT_PX * 3)
    assert (job.request.max_tokens, job.request.seed, job.request.columns[1].budget) == (20, 7, 64)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"question": " "}, "the question is empty"),
        ({"question": "x" * 5000}, "at most 4000 characters"),
        ({"columns": []}, "from 1 to 6 columns"),
        ({"columns": [FULL] * 7}, "from 1 to 6 columns"),
        ({"max_tokens": 0}, "from 1 to 256"),
        ({"seed": -1}, "the seed is from 0"),
        ({"picture": "0" * 24}, "has expired"),
        ({"columns": [{"model": "/etc/passwd"}]}, "model is one of one, two"),
        ({"columns": [{"model": "one", "encode": "all"}]}, "encode is one of full"),
        ({"columns": [{"model": "one", "strategy": "all"}]}, "strategy is one of auto"),
        ({"columns": [{"model": "one", "budget": 0}]}, "token budget is a whole number of at least 1"),
        ({"columns": [{"model": "one", "budget": "all"}]}, "token budget is a whole number of at least 1"),
        ({"columns": [{"model": "one", "budget": 5000}]}, "at most 4096 tokens"),
        ({"extra": 1}, "not a message"),
    ],
)
def test_a_request_that_cannot_be_met_is_one_line(page: ComparePage, change: dict[str, Any], message: str) -> None:
    picture = page.picture()
    with comparing(page) as viewer:
        viewer.send(run={**request(picture), **change})
        error = viewer.next("refused")["error"]
        assert message in error
        assert "\n" not in error
        viewer.send(run=request(picture))
        viewer.next("begun")


def test_one_comparison_at_a_time_in_their_order(page: ComparePage) -> None:
    picture = page.picture()
    with comparing(page) as first, comparing(page) as second, comparing(page) as third:
        first.send(run=request(picture))
        first.next("begun")
        first.send(run=request(picture))
        assert "one comparison at a time" in first.next("refused")["error"]
        second.send(run=request(picture))
        assert second.next("queued")["place"] == 1
        third.send(run=request(picture))
        assert third.next("queued")["place"] == 2
        second.send(cancel=True)
        assert second.next("ended")["cancelled"] is True
        assert third.next("queued")["place"] == 1
        page.engine.go.release()
        first.next("ended")
        third.next("begun")
        until(lambda: [job.number for job in page.engine.jobs] == [1, 3])
        third.send(cancel=True)
        assert third.next("ended")["cancelled"] is True


def test_a_viewer_that_leaves_ends_its_comparison(page: ComparePage) -> None:
    picture = page.picture()
    with comparing(page) as viewer, comparing(page) as patient:
        viewer.send(run=request(picture))
        viewer.next("begun")
        patient.send(run=request(picture))
        patient.next("queued")
        viewer.socket.close()
        patient.next("begun")


@pytest.mark.parametrize("failure", [CompareFailed("the process that compares was killed"), ValueError("odd")])
def test_a_comparison_that_fails_ends_nothing_else(page: ComparePage, failure: Exception) -> None:
    picture = page.picture()
    with comparing(page) as viewer:
        page.engine.fail = failure
        page.engine.go.release()
        viewer.send(run=request(picture))
        assert str(failure) in viewer.next("ended")["error"]
        page.engine.fail = None
        page.engine.go.release()
        viewer.send(run=request(picture))
        assert viewer.next("ended")["cancelled"] is False


def test_ten_thousand_questions_a_second_are_turned_away_and_the_run_is_untouched(page: ComparePage) -> None:
    picture = page.picture()
    with comparing(page) as viewer:
        with suppress(ConnectionClosed):
            for _ in range(10_000):
                viewer.send(run=request(picture))
        with suppress(ConnectionClosed):
            viewer.next("a message that never comes")
        assert viewer.socket.close_code == connection.REFUSED
        assert len(viewer.texts) <= MESSAGES_AT_ONCE + 20
    until(lambda: page.engine.jobs)
    assert len(page.engine.jobs) == 1
    with connect(page.url.replace("http", "ws") + "live", compression=None, max_size=None) as socket:
        assert PageClient(socket).picture()


def has_picture(visit: Visit, width: int) -> None:
    visit.page.wait_for_function(
        "(width) => window.compare.picture && document.getElementById('preview').width === width", arg=width
    )


def alpha(visit: Visit, column: int, row: int, col: int) -> int:
    """Greatest opacity that the layers of a column have on the upper side of a tile."""
    opacity: int = visit.page.evaluate(
        """([column, row, col]) => {
            const on = window.compare.columns[column].layers;
            const data = on.getContext("2d").getImageData(col * 32 + 16, row * 32, 1, 4).data;
            return Math.max(data[3], data[7], data[11], data[15]);
        }""",
        [column, row, col],
    )
    return opacity


def test_columns_are_answered_and_compared(page: ComparePage, visit: Visit, tmp_path: Path) -> None:
    on = visit.page
    on.goto(page.url + "compare?layers=t")
    on.get_by_role("button", name="shapes").click()
    has_picture(visit, WIDTH_PX)
    assert on.locator("#known").inner_text() == "Known answer: a red circle, a blue square and a yellow star"
    on.get_by_label("Question", exact=True).fill("Where is it?")
    assert on.locator("#known").inner_text() == ""
    on.get_by_role("button", name="+ Column").click()
    on.get_by_label("Budget").nth(2).fill("27%")
    on.get_by_label("Question", exact=True).press("Enter")
    on.locator("#note", has_text="one column after the other").wait_for()
    page.engine.go.release()
    on.locator(".verdict.neutral", has_text="same answer · 2.0 × as quick · 50 % of the tokens").wait_for()
    assert [text.split(" · ")[0] for text in on.locator(".verdict:visible").all_inner_texts()] == [
        "same answer",
        "80 % equal words",
    ]
    assert on.locator(".answer-text").nth(2).inner_text() == "<b>a blue</b> circle."
    assert alpha(visit, 1, 0, 0) > 100
    assert alpha(visit, 1, 5, 5) == 0
    assert "encode\t" in on.locator("#table").inner_text()
    assert on.locator("#table tbody tr").count() == 3
    assert "c=sparse%2Cauto%2C27%25" in on.url
    assert "q=Where+is+it" in on.url
    with on.expect_download() as download:
        on.get_by_role("button", name="save .json").click()
    download.value.save_as(tmp_path / "saved.json")
    saved = json.loads((tmp_path / "saved.json").read_text(encoding="utf-8"))
    assert saved["version"] == "0.1"
    assert saved["question"] == "Where is it?"
    assert [column["tokens"] for column in saved["columns"]] == [384, 192, 96]
    assert saved["columns"][2]["settings"]["budget"] == "27%"
    assert saved["columns"][1]["verdict"]["same"] is True
    assert saved["columns"][1]["right"] is None


def test_an_answer_is_right_or_wrong_if_it_is_known(page: ComparePage, visit: Visit) -> None:
    on = visit.page
    on.goto(page.url + "compare?example=place&c=full,auto,auto&c=sparse,auto,auto")
    has_picture(visit, WIDTH_PX)
    assert on.get_by_label("Question", exact=True).input_value() == "Where is the star?"
    assert on.locator("#known").inner_text() == "Known answer: top left"
    page.engine.go.release()
    on.get_by_role("button", name="Compare", exact=True).click()
    on.locator(".verdict.wrong", has_text="same answer").wait_for()
    assert on.locator(".verdict").nth(0).inner_text() == "wrong, known answer: top left"
    assert on.locator(".verdict").nth(1).inner_text().startswith("wrong, known answer: top left · same answer · 2.0 ×")
    assert "wrong, known answer: top left" in on.locator("#table").inner_text()
    assert page.engine.jobs[0].known is not None


def test_a_known_answer_is_that_of_an_examples_own_question(page: ComparePage) -> None:
    def known_of(picture: str, question: str) -> str | None:
        with comparing(page) as viewer:
            page.engine.go.release()
            viewer.send(run=request(picture) | {"question": question})
            viewer.next("ended")
        answer = page.engine.jobs[-1].known
        return answer and answer.text

    row, gradient = (str(ask(page, f"/compare/example/{name}", b"").json["picture"]) for name in ("colour", "gradient"))
    assert known_of(row, "what colour is the cross") == "white"
    assert known_of(row, "What is left of the ring?") == "a yellow triangle"
    assert known_of(row, "What colour is the ring?") is None
    assert known_of(gradient, "What is in the picture?") is None


def test_the_page_shows_what_a_columns_model_knows(page: ComparePage, visit: Visit) -> None:
    on = visit.page
    on.goto(page.url + "compare?c=full,auto,auto,one")
    note = on.locator("#world", has_text="one: knows drawn scenes only; answers about other pictures mean nothing.")
    note.wait_for()
    on.locator("#columns select").first.select_option("two")
    note.wait_for(state="detached")
    assert [*on.locator("#examples button").all_inner_texts()] == [still.name for still in STILLS if not still.general]


def test_an_address_shows_the_same_again(page: ComparePage, visit: Visit) -> None:
    visit.page.goto(
        page.url + "compare?q=Why%3F&max=9&seed=3&warm=0&example=document&c=full,auto,auto,two&c=prune,grid,40"
    )
    has_picture(visit, WIDTH_PX)
    settings = visit.page.evaluate("() => window.compare.columns.map((column) => column.settings)")
    assert settings[0]["model"] == "two"
    assert settings[1] == {"model": "one", "encode": "prune", "strategy": "grid", "budget": 40}
    assert visit.page.get_by_label("Question", exact=True).input_value() == "Why?"
    assert not visit.page.get_by_label("Warm up before timing").is_checked()
    assert "max=9" in visit.page.url
    assert "seed=3" in visit.page.url


def test_a_model_that_does_not_fit_is_one_line_in_its_column(page: ComparePage, visit: Visit) -> None:
    on = visit.page
    on.goto(page.url + "compare?example=shapes&c=full,auto,auto&c=sparse,auto,13")
    has_picture(visit, WIDTH_PX)
    page.engine.go.release()
    on.get_by_role("button", name="Compare", exact=True).click()
    on.locator(".answer-text.bad", has_text="needs about 90.0 GB").wait_for()
    assert on.locator(".answer-text").nth(0).inner_text() == "a red circle."
    assert "90.0 GB" in on.locator("#table").inner_text()


def test_pictures_are_uploaded_dropped_pasted_and_taken(page: ComparePage, visit: Visit, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(300, 200))
    on = visit.page
    on.goto(page.url + "compare")
    on.get_by_label("Upload").set_input_files(tmp_path / "a.png")
    has_picture(visit, 300)
    assert on.locator("#picture-note").inner_text() == "300×200 pixels"
    (tmp_path / "b.txt").write_text("no picture")
    on.get_by_label("Upload").set_input_files(tmp_path / "b.txt")
    on.locator("#picture-note.bad", has_text="that is no picture").wait_for()
    for kind, width in (("drop", 64), ("paste", 96)):
        on.evaluate(
            """async ([kind, width]) => {
                const canvas = Object.assign(document.createElement("canvas"), { width, height: 64 });
                const blob = await new Promise((done) => canvas.toBlob(done, "image/png"));
                const data = new DataTransfer();
                data.items.add(new File([blob], "x.png", { type: "image/png" }));
                const options = { bubbles: true, dataTransfer: data, clipboardData: data };
                const event = kind === "drop" ? new DragEvent("drop", options) : new ClipboardEvent("paste", options);
                document.getElementById("drop").dispatchEvent(event);
            }""",
            [kind, width],
        )
        has_picture(visit, width)
    on.get_by_role("button", name="Live frame").click()
    has_picture(visit, 512)
    on.get_by_role("button", name="Camera").click()
    on.get_by_role("button", name="Take the picture").click()
    on.wait_for_function("() => ![512, 0].includes(document.getElementById('preview').width)")
    on.locator("#picture-note", has_text="pixels").wait_for()
    visit.allowed = "400"  # of the file that is no picture


def test_a_question_waits_for_the_picture_that_is_being_taken(page: ComparePage, visit: Visit, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(300, 200))
    (tmp_path / "b.txt").write_text("no picture")
    on, routes = visit.page, list[Route]()
    on.route("**/compare/picture", lambda route: routes.append(route))
    on.goto(page.url + "compare")
    for path in ("b.txt", "a.png"):
        on.get_by_label("Upload").set_input_files(tmp_path / path)
        on.locator("#picture-note", has_text="Taking the picture").wait_for()
        on.get_by_label("Question", exact=True).press("Enter")
        on.locator("#note", has_text="Asking when the picture is there").wait_for()
        routes.pop().continue_()
        if path == "b.txt":
            on.locator("#picture-note.bad", has_text="that is no picture").wait_for()
            assert on.locator("#note").inner_text() == ""
    on.locator("#note", has_text="one column after the other").wait_for()
    page.engine.go.release()
    on.locator(".verdict.neutral:visible").wait_for()
    visit.allowed = "400"  # of the file that is no picture


def test_a_comparison_is_cancelled_and_another_one_is_asked(page: ComparePage, visit: Visit) -> None:
    on = visit.page
    on.goto(page.url + "compare?example=shapes")
    has_picture(visit, WIDTH_PX)
    on.get_by_role("button", name="Compare", exact=True).press("Enter")
    on.get_by_role("button", name="Cancel").press("Enter")
    on.locator("#note", has_text="Cancelled.").wait_for()
    page.engine.go.release()
    on.get_by_role("button", name="Compare", exact=True).click()
    on.locator(".verdict.wrong").nth(1).wait_for()


def test_on_a_phone_nothing_is_wider_than_the_screen_and_everything_has_a_name(page: ComparePage, visit: Visit) -> None:
    on = on_phone(visit)
    on.goto(page.url + "compare?example=shapes&c=full,auto,auto&c=sparse,auto,64,two&c=sparse,auto,32")
    has_picture(visit, WIDTH_PX)
    page.engine.go.release()
    on.get_by_role("button", name="Compare", exact=True).click()
    on.locator(".verdict.wrong").nth(2).wait_for()
    assert on.evaluate("() => document.documentElement.scrollWidth") == 400
    nameless = on.evaluate(
        """() => [...document.querySelectorAll("button, input, select, canvas:not([aria-hidden])")]
            .filter((one) => !one.hidden)
            .filter((one) => !(one.getAttribute("aria-label") || one.labels?.length || one.textContent.trim()))
            .map((one) => one.outerHTML)"""
    )
    assert nameless == []


def test_the_live_page_leads_here_and_a_lost_program_is_reported(page: ComparePage, visit: Visit) -> None:
    visit.allowed = "WebSocket"
    visit.see(page.url)
    visit.page.get_by_role("link", name="Compare").click()
    visit.page.locator("#state-words", has_text="ready").wait_for()
    page.close()
    visit.page.locator("#state-words", has_text="the program does not answer").wait_for()
