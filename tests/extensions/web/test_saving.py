"""Zones and watches saved from the page to the configuration file of the run, with its comments."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from stream.config import WatchConfig
from stream.config_loading import build_config, layer_from_file, tomllib
from stream.extensions.web import saving
from stream.extensions.web.saving import SettingsFile, read_zone
from stream.extensions.web.toml_tables import append_table, put_table, remove_tables
from tests.extensions.web.test_zones import place
from tests.support.web import Reply, ServedPage, SharedPage, Visit, ask, has, served

FILE = """# the camera over the door
source = "rtsp://door/stream"

# who comes
[[watch]]
question = "is there a car?"  # any

[answer]
query = "What?"  # for now

# the porch, seen from above
[zones.porch]
box = [0.1, 0.1, 0.3, 0.9]
weight = 2.0

# a tree that moves
[zones.tree]
box = [0.6, 0.0, 0.9, 0.5]
weight = 0.2
"""
SHED = "[zones.shed]\npoints = [[0.1, 0.1], [0.2, 0.1], [0.2, 0.3]]\nweight = 2.0\n"
PORCH = SHED.replace("shed", "porch")
CAR = WatchConfig(name="is_there_a_car", question="is there a car?")
SETTINGS = "/api/settings"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "camera.toml"
    path.write_text(FILE, encoding="utf-8")
    return path


@pytest.fixture
def run(file: Path) -> Iterator[ServedPage]:
    with served(file=file, watches=(CAR,)) as page:
        yield page


def save(page: ServedPage | SharedPage, **body: Any) -> Reply:
    return ask(page, SETTINGS, json.dumps(body).encode())


def refusal(reply: Reply, status: int = 409) -> str:
    assert reply.status == status, reply.text
    message: str = reply.json["error"]["message"]
    assert "\n" not in message
    return message


def test_a_new_zone_is_added_at_the_end(run: ServedPage, file: Path) -> None:
    reply = save(run, zone=SHED)
    assert reply.json == {"file": "camera.toml", "saved": "zone shed"}
    assert file.read_text() == FILE + "\n" + SHED
    config = build_config([layer_from_file(str(file))])
    assert (list(config.zones), config.file) == (["porch", "tree", "shed"], file)
    assert [path.name for path in file.parent.iterdir()] == ["camera.toml"]


def test_a_zone_of_the_file_is_replaced_only_if_that_was_said(run: ServedPage, file: Path) -> None:
    assert "camera.toml has a zone porch by now" in refusal(save(run, zone=PORCH))
    assert file.read_text() == FILE
    assert save(run, zone=PORCH, replace=True).status == 200
    before, _, after = FILE.partition("[zones.porch]\nbox = [0.1, 0.1, 0.3, 0.9]\nweight = 2.0\n")
    assert file.read_text() == before + PORCH + after
    assert save(run, zone=PORCH).status == 200, "it is there already, and the same"


def test_watches_that_were_added_and_removed_are_saved(run: ServedPage, file: Path) -> None:
    door = {"question": 'is "the" door open?', "name": "door"}
    assert ask(run, "/api/watches", json.dumps(door).encode()).status == 200
    described = ask(run, SETTINGS).json["watches"]
    assert (described["added"], described["removed"]) == (["door"], [])
    assert save(run, watches=True).json["saved"] == "the watches"
    table = '[[watch]]\nname = "door"\nquestion = "is \\"the\\" door open?"\n'
    assert file.read_text() == f"{FILE}\n{table}"
    assert save(run, watches=True).status == 200
    assert file.read_text().count("door open") == 1, "saved twice it stands there once"
    file_watches = build_config([layer_from_file(str(file))]).watch
    assert [watch.name for watch in file_watches] == ["is_there_a_car", "door"]


def test_a_removed_watch_leaves_the_file(file: Path) -> None:
    changes = saving.ChangedWatches((), ("is_there_a_car",))
    SettingsFile(file).save_watches(changes)
    assert file.read_text() == FILE.replace('[[watch]]\nquestion = "is there a car?"  # any\n\n', "")
    assert "# who comes" in file.read_text()


def test_two_pages_that_save_at_once_both_count(file: Path) -> None:
    zones = [SHED.replace("shed", f"zone{number}") for number in range(8)]
    barrier = threading.Barrier(len(zones))
    with served(file=file) as one, served(file=file) as other:

        def save_zone(number: int) -> None:
            barrier.wait()
            assert save((one, other)[number % 2], zone=zones[number]).status == 200

        threads = [threading.Thread(target=save_zone, args=(number,)) for number in range(len(zones))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {*tomllib.loads(file.read_text())["zones"]} == {"porch", "tree", *(f"zone{n}" for n in range(8))}


def test_what_another_program_wrote_meanwhile_is_kept(file: Path) -> None:
    settings = SettingsFile(file)
    original = saving.put_table

    def put_late(text: str, path: tuple[str, ...], table: str) -> str:
        if "note" not in file.read_text():
            file.write_text(FILE + "# a note\n", encoding="utf-8")
        return original(text, path, table)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(saving, "put_table", put_late)
        settings.save_zone(SHED, replace=False)
    assert file.read_text() == f"{FILE}# a note\n\n{SHED}"


def test_a_file_that_never_rests_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_and_put(text: str, path: tuple[str, ...], table: str) -> str:
        file.write_text(text + "#\n", encoding="utf-8")
        return put_table(text, path, table)

    monkeypatch.setattr(saving, "put_table", write_and_put)
    with pytest.raises(saving.QuestionRefused, match="being written by another program"):
        SettingsFile(file).save_zone(SHED, replace=False)


def test_a_read_only_file_stays_as_it_is(run: ServedPage, file: Path) -> None:
    file.chmod(0o444)
    assert "camera.toml is read-only" in ask(run, SETTINGS).json["problem"]
    assert "camera.toml is read-only" in refusal(save(run, zone=SHED))
    assert file.read_text() == FILE


def test_who_may_read_the_file_and_a_link_to_it_stay(file: Path) -> None:
    file.chmod(0o600)
    link = file.with_name("link.toml")
    link.symlink_to(file)
    SettingsFile(link).save_zone(SHED, replace=False)
    assert link.is_symlink()
    assert "shed" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_file_that_is_gone_or_broken_is_one_line(run: ServedPage, file: Path) -> None:
    file.write_text("[zones", encoding="utf-8")
    assert "not valid TOML" in refusal(save(run, zone=SHED))
    assert ask(run, SETTINGS).json["zones"] == []
    file.write_text("[[watch]]\nhold_s = -1\n", encoding="utf-8")
    refusal(save(run, watches=True))
    os.unlink(file)
    assert "No such file" in refusal(save(run, zone=SHED))


def test_a_file_that_cannot_be_replaced_is_one_line(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "replace_file", fail)
    with pytest.raises(saving.QuestionRefused, match="No space left"):
        SettingsFile(file).save_zone(SHED, replace=False)
    assert file.read_text() == FILE


@pytest.mark.parametrize(
    "text",
    [
        'zones = { porch = { box = [0.1, 0.1, 0.3, 0.9] } }\nsource = "0"\n',
        "[zones]\nporch.box = [0.1, 0.1, 0.3, 0.9]\n",
        'note = """\n[zones.porch]\n"""\nzones.porch.box = [0.1, 0.1, 0.3, 0.9]\n',
    ],
)
def test_a_zone_in_another_form_is_left_to_its_owner(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    with pytest.raises(saving.QuestionRefused, match="another form"):
        SettingsFile(file).save_zone(PORCH, replace=True)
    assert file.read_text() == text


def test_without_a_file_the_text_is_offered(file: Path) -> None:
    with served() as page:
        assert "start the run with -c FILE" in refusal(save(page, zone=SHED))
        assert ask(page, SETTINGS).json["file"] is None
    with closing(SharedPage(("yard", "door"))) as page:
        assert "several cameras" in refusal(save(page, zone=SHED, camera="yard"))


def test_viewers_who_may_only_look_save_nothing(file: Path) -> None:
    with served(file=file, web__control=False) as page:
        assert "--web-control" in refusal(save(page, zone=SHED), 403)
        refusal(ask(page, SETTINGS), 403)
    with served(file=file, web__token="0123456789") as page:
        assert save(page, zone=SHED).status == 401
        assert ask(page, SETTINGS, b"{}", Origin="http://elsewhere.test").status == 403
    assert file.read_text() == FILE


@pytest.mark.parametrize("body", [b"", b"[]", b'{"path": "/etc/passwd"}', b"{}", b"\xff"])
def test_other_requests_are_refused(run: ServedPage, body: bytes) -> None:
    refusal(ask(run, SETTINGS, body), 400)


def test_a_page_that_saves_all_the_time_is_slowed_down(run: ServedPage) -> None:
    statuses = [save(run, zone=SHED).status for _ in range(12)]
    assert 429 in statuses


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[zones]",
        'source = "1"\n' + SHED,
        SHED + PORCH,
        "[zones.shed]\nweight = 2.0\n",
        SHED + "on_match = 'rm'\n",
        "zones = 1",
        '[zones."a b"]\nbox = [0.1, 0.1, 0.3, 0.9]\n',
        "[zones",
    ],
)
def test_only_one_zone_is_a_zone(text: str) -> None:
    with pytest.raises(saving.QuestionRefused):
        read_zone(text)


def test_lines_end_as_those_of_the_file() -> None:
    text = FILE.replace("\n", "\r\n")
    added = append_table(text, SHED)
    assert added.count("\n") == added.count("\r\n") == FILE.count("\n") + 4
    assert append_table("", SHED) == SHED
    assert remove_tables(text, ("watch",), {3}) == text
    assert put_table(FILE, ("zones", "tree"), PORCH).endswith("moves\n" + PORCH)


def draw(page: Page, name: str) -> None:
    page.keyboard.press("z")
    for corner in ((0.4, 0.2), (0.6, 0.2), (0.5, 0.8)):
        page.mouse.click(*place(page, *corner))
    page.get_by_role("button", name="Close", exact=True).click()
    page.get_by_label("Name").fill(name)
    page.locator("#zone-save").click()


def test_the_page_asks_before_it_saves(run: ServedPage, file: Path, visit: Visit) -> None:
    visit.see(run.url)
    draw(visit.page, "porch")
    has(visit.page, "#saving", "Save to camera.toml\\?[\\s\\S]*has a zone porch, which is replaced")
    visit.page.get_by_role("button", name="Cancel").click()
    assert file.read_text() == FILE
    visit.page.locator("#zone-save").click()
    visit.page.get_by_role("button", name="Save", exact=True).click()
    has(visit.page, "#saving", "Saved zone porch to camera.toml")
    assert tomllib.loads(file.read_text())["zones"]["porch"]["weight"] == 2.0


def test_a_page_without_a_file_downloads(visit: Visit, tmp_path: Path) -> None:
    with visit.at(served()) as run:
        visit.see(run.url)
        draw(visit.page, "shed")
        has(visit.page, "#saving", "start the run with -c FILE")
        assert visit.page.get_by_role("button", name="Save", exact=True).is_hidden()
        with visit.page.expect_download() as download:
            visit.page.get_by_role("button", name="Download").click()
        download.value.save_as(tmp_path / "got.toml")
    assert download.value.suggested_filename == "camera.toml"
    assert tomllib.loads((tmp_path / "got.toml").read_text())["zones"]["shed"]


def test_watches_are_added_removed_and_saved_in_the_page(run: ServedPage, file: Path, visit: Visit) -> None:
    visit.see(run.url)
    visit.page.get_by_label("Watch for").fill("is the door open?")
    visit.page.keyboard.press("Enter")
    has(visit.page, "#watches li:nth-child(2)", "is the door open")
    visit.page.get_by_role("button", name="Remove the watch is_there_a_car").click()
    has(visit.page, "#lines", "watch removed")
    visit.page.locator("#watch-save").click()
    has(visit.page, "#saving", "Taken out: is_there_a_car")
    visit.page.get_by_role("button", name="Save", exact=True).click()
    has(visit.page, "#saving", "Saved the watches to camera.toml")
    assert [watch["name"] for watch in tomllib.loads(file.read_text())["watch"]] == ["is_the_door_open"]


def test_a_refused_watch_is_said_in_the_page(run: ServedPage, visit: Visit) -> None:
    visit.allowed = "409"
    run.run.refuses = "the model knows no doors"
    visit.see(run.url)
    visit.page.get_by_label("Watch for").fill("is the door open?")
    visit.page.keyboard.press("Enter")
    has(visit.page, "#watch-note", "Refused: the model knows no doors")


def test_a_viewer_sees_no_way_to_save(file: Path, visit: Visit) -> None:
    with visit.at(served(file=file, web__control=False)) as run:
        visit.see(run.url)
        assert visit.page.locator("#watch-add").is_hidden()
        visit.page.keyboard.press("z")
        assert visit.page.locator("#zone-save").is_hidden()
