"""Events of a run reach a real MQTT broker, whatever happens to it, and the run never waits for it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from msgspec import structs

from stream.config import AnswerConfig, Config, WatchConfig
from stream.control import Ask
from stream.errors import OutputError
from stream.events import (
    AnswerInvalid,
    AskedPicture,
    ClipWritten,
    Event,
    QueryChanged,
    StandingQuestion,
    Started,
    WatchesChanged,
)
from stream.extensions.mqtt.broker import PASSWORD, Broker
from stream.extensions.mqtt.section import MqttSection
from stream.extensions.mqtt.session import BrokerSession
from stream.extensions.mqtt.sink import MqttSink, page_address
from stream.extensions.mqtt.topics import RunTopics
from stream.monitor.health import RunMonitor
from tests.support.events import answer, detections, frame, look, match, summary
from tests.support.mosquitto import Mosquitto, broker, subscribed
from tests.support.network import until
from tests.support.runs import WatchedRun
from tests.support.sections import opened_sinks, sections

AT_ONCE = (0.01, 0.01)

TOPICS = ("picture", "answer", "watch/here", "watch/here/details")

CONFIG = "homeassistant/device/arr_coc_door/config"
STARTED = Started(source="camera", model="m", query="What?", backend="cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("broker")


@pytest.fixture
def mosquitto(folder: Path) -> Iterator[Mosquitto]:
    with broker(folder) as server:
        yield server


QUIET = WatchConfig(question="is it quiet?", name="quiet", mqtt=False)


class FedSink:
    """A sink and its monitor, as a session feeds them."""

    def __init__(self, url: str, *, query: str | None = None, schema: str | None = None, **values: object) -> None:
        config = Config(
            source="camera",
            answer=AnswerConfig(query="What?", captions=True, json_schema=schema),
            watch=() if query is None else (WatchConfig(question=query, name="here"), QUIET),
            **sections(mqtt__url=url, mqtt__name="door", **values),
        )
        self.monitor = RunMonitor(config)
        self.run = WatchedRun()
        self.now_s = 0.0
        self.sink = MqttSink(config, self.monitor, AT_ONCE, lambda: self.now_s)
        self.monitor.follow(self.run)  # type: ignore[arg-type]

    def feed(self, *events: Event) -> None:
        for event in events:
            self.monitor.add(event)
            self.sink.write(event)


@contextmanager
def fed_sink(url: str, *, query: str | None = None, schema: str | None = None, **values: object) -> Iterator[FedSink]:
    fed = FedSink(url, query=query, schema=schema, **values)
    with closing(fed.sink):
        yield fed


def test_a_run_is_published_from_its_beginning_to_its_end(mosquitto: Mosquitto) -> None:
    with subscribed(mosquitto.port) as subscriber:
        with fed_sink(f"mqtt://127.0.0.1:{mosquitto.port}", query="is it here?") as fed:
            described = subscriber.next(CONFIG)
            assert described.payload in [json.dumps(json.loads(described.payload)).encode()]
            assert subscriber.next("arr_coc/door/availability").payload == b"online"
            assert subscriber.next("arr_coc/door/watch/here").payload == b"None"
            assert subscriber.next("arr_coc/door/question").payload == b"What?"
            assert subscriber.next("arr_coc/door/state").payload == b"loading"
            assert json.loads(subscriber.next("arr_coc/door/figures").payload)["answers"] == 0
            fed.feed(STARTED, frame(0, 0.0))
            assert subscriber.next("arr_coc/door/state").payload == b"running"
            fed.feed(AskedPicture(frame_index=0, pts_s=0.0, jpeg=b"\xff\xd8 a picture"))
            assert subscriber.next("arr_coc/door/picture").payload == b"\xff\xd8 a picture"
            fed.feed(answer(0.0, "a cat"))
            fields = json.loads(subscriber.next("arr_coc/door/answer").payload)
            assert (fields["type"], fields["text"], fields["query"]) == ("answer", "a cat", "What?")
            fed.feed(look(0.5))
            assert json.loads(subscriber.next("arr_coc/door/watch/here/details").payload)["yes"] == 0.97
            assert subscriber.next("arr_coc/door/watch/here").payload == b"ON"
            fed.feed(look(0.5, watch="quiet"), match(0.5, watch="quiet"), match(0.5, 3))
            fields = json.loads(subscriber.next("arr_coc/door/watch/here/match").payload)
            assert (fields["event_type"], fields["match"], fields["watch"]) == ("match", 3, "here")
            watch = StandingQuestion("door", "Is the door open?")
            fed.feed(WatchesChanged(watch="door", watches=[watch]), look(0.6, watch="door"), look(0.6))
            assert subscriber.next("arr_coc/door/watch/here").payload == b"None"
            fed.feed(QueryChanged(query="Where?"))
            assert subscriber.next("arr_coc/door/question").payload == b"Where?"
            fed.feed(QueryChanged(query="Refused?", error="no"), summary())
            assert subscriber.next("arr_coc/door/state").payload == b"ended"
        assert subscriber.next("arr_coc/door/availability").payload == b"offline"
    with subscribed(mosquitto.port) as late:
        topics = {message.topic for message in (late.next(CONFIG), late.next("arr_coc/door/availability"))}
        assert topics == {CONFIG, "arr_coc/door/availability"}


def test_fields_are_sent_and_answers_that_do_not_fit_are_not(mosquitto: Mosquitto) -> None:
    invalid = AnswerInvalid(**structs.asdict(answer(0.0, "")), reason="it is empty")
    with (
        subscribed(mosquitto.port) as subscriber,
        fed_sink(f"mqtt://127.0.0.1:{mosquitto.port}", schema='{"people": "integer"}') as fed,
    ):
        assert "field_people" in json.loads(subscriber.next(CONFIG).payload)["components"]
        fed.feed(STARTED, invalid, structs.replace(answer(0.0, "people: 2"), fields={"people": 2}))
        fields = json.loads(subscriber.next("arr_coc/door/answer").payload)
        assert (fields["text"], fields["fields"]) == ("people: 2", {"people": 2})


def test_a_match_has_its_picture_and_links(mosquitto: Mosquitto, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8 of the match")
    url, output = (
        f"mqtt://127.0.0.1:{mosquitto.port}",
        {"clips__folder": str(tmp_path), "web__address": "192.0.2.7:8090"},
    )
    first = ClipWritten(match=1, watch="here", picture="a.jpg", video=None, start_s=5.0, end_s=5.0)
    second = structs.replace(first, video="a b.mp4", start_s=2.0, end_s=8.0)
    with subscribed(mosquitto.port) as subscriber, fed_sink(url, query="is it here?", **output) as fed:
        fed.feed(STARTED, frame(0, 0.0), look(5.0))
        assert "clip" not in json.loads(subscriber.next("arr_coc/door/watch/here/details").payload)
        fed.feed(first)
        assert json.loads(subscriber.next("arr_coc/door/match/clip").payload)["video"] is None
        assert json.loads(subscriber.next("arr_coc/door/watch/here/details").payload)["clip"]["picture"] == "a.jpg"
        assert subscriber.next("arr_coc/door/match/picture").payload == b"\xff\xd8 of the match"
        fed.feed(second)
        fields = json.loads(subscriber.next("arr_coc/door/match/clip").payload)
        assert fields["video_url"] == "http://192.0.2.7:8090/clips/a%20b.mp4"
        assert (fields["picture_url"], fields["start_s"]) == ("http://192.0.2.7:8090/clips/a.jpg", 2.0)
        details = json.loads(subscriber.next("arr_coc/door/watch/here/details").payload)
        assert (details["yes"], details["clip"]["video"]) == (0.97, "a b.mp4")
        fed.feed(structs.replace(first, picture="gone.jpg"))
        assert json.loads(subscriber.next("arr_coc/door/match/clip").payload)["picture"] == "gone.jpg"


@pytest.mark.parametrize(
    ("web", "address"),
    [
        ({}, None),
        ({"web__address": "8090"}, "http://127.0.0.1:8090"),
        ({"web__address": "[::1]:8090", "web__cert": "a.pem"}, "https://[::1]:8090"),
        ({"web__address": "0.0.0.0:8090"}, f"http://{os.uname().nodename}:8090"),
    ],
)
def test_links_lead_to_the_page(web: dict[str, str], address: str | None) -> None:
    assert page_address(Config(**sections(**web))) == address


@pytest.mark.parametrize(("output", "has_question"), [({"mqtt__picture": False}, True), ({}, False)])
def test_pictures_for_another_output_or_without_an_answer_are_not_sent(
    mosquitto: Mosquitto, output: dict[str, bool], has_question: bool
) -> None:
    with (
        subscribed(mosquitto.port) as subscriber,
        fed_sink(f"mqtt://127.0.0.1:{mosquitto.port}", **output) as fed,
    ):
        fed.feed(
            STARTED, AskedPicture(frame_index=0, pts_s=0.0, jpeg=b"a picture", asked=has_question), answer(0.0, "a cat")
        )
        subscriber.next("arr_coc/door/answer")
        subscriber.publish("arr_coc/door/picture", b"the first one")
        assert subscriber.next("arr_coc/door/picture").payload == b"the first one"


def test_a_broker_that_is_killed_ten_times_knows_the_state_each_time(folder: Path) -> None:
    """The broker keeps nothing, so retained messages are sent again; answers continue and the newest arrives."""
    with broker(folder) as mosquitto, fed_sink(f"mqtt://127.0.0.1:{mosquitto.port}", query="is it here?") as fed:
        fed.feed(STARTED, frame(0, 0.0), look(0.0))
        for number in range(10):
            mosquitto.kill()
            for repeat in range(100):
                fed.feed(frame(number, 1.0), answer(1.0, f"answer {repeat}"))
            assert len(fed.sink.link.outbox) <= 8
            mosquitto.start()
            with subscribed(mosquitto.port) as subscriber:
                for topic, payload in (("availability", b"online"), ("watch/here", b"ON"), ("state", b"running")):
                    message = subscriber.next(f"arr_coc/door/{topic}")
                    assert message.payload == payload
                fed.feed(answer(2.0, f"after {number}"))
                while json.loads(subscriber.next("arr_coc/door/answer").payload)["text"] != f"after {number}":
                    pass
            with subscribed(mosquitto.port) as late:
                assert late.next(CONFIG).retain


def test_a_run_does_not_wait_for_a_stopped_broker(folder: Path) -> None:
    """The broker is stopped: the connection fills, and only the newest picture waits."""
    with broker(folder) as mosquitto, fed_sink(f"mqtt://127.0.0.1:{mosquitto.port}") as fed:
        fed.feed(STARTED)
        until(lambda: not len(fed.sink.link.outbox))
        mosquitto.signal(signal.SIGSTOP)
        picture = bytes(1 << 20)
        for number in range(200):
            fed.now_s += 10.0
            fed.feed(AskedPicture(frame_index=number, pts_s=0.0, jpeg=picture))
            assert len(fed.sink.link.outbox) <= 6
        until(lambda: len(fed.sink.link.outbox) == 1)
        fed.now_s += 10.0
        fed.feed(AskedPicture(frame_index=200, pts_s=0.0, jpeg=b"the newest"))
        mosquitto.signal(signal.SIGCONT)
        with subscribed(mosquitto.port, "arr_coc/door/availability") as subscriber:
            assert subscriber.next("arr_coc/door/availability").payload == b"online"
        until(lambda: not len(fed.sink.link.outbox))


def test_a_run_does_not_wait_for_a_silent_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        fed = FedSink(f"mqtt://127.0.0.1:{silent.getsockname()[1]}")
        for number in range(1000):
            fed.feed(frame(number, 0.0), answer(0.0, f"a cat {number}"))
        assert fed.sink.link.outbox.dropped >= 999
        fed.sink.close()
        fed.sink.close()


def test_a_missing_broker_is_reported_once_and_so_is_its_return(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mosquitto = Mosquitto(folder)
    try:
        with fed_sink(f"mqtt://127.0.0.1:{mosquitto.port}") as fed:
            fed.feed(STARTED, answer(0.0, "a cat"))
            mosquitto.start()
            with subscribed(mosquitto.port) as subscriber:
                assert subscriber.next("arr_coc/door/availability").payload == b"online"
    finally:
        mosquitto.kill()
    loss_line, return_line = capsys.readouterr().err.splitlines()
    assert loss_line.startswith(f"note: no MQTT broker at mqtt://127.0.0.1:{mosquitto.port}: Connection refused; ")
    assert return_line == f"the MQTT broker at mqtt://127.0.0.1:{mosquitto.port} is there"


def test_a_connection_that_breaks_off_leaves_its_last_will(mosquitto: Mosquitto) -> None:
    will = RunTopics("door").set_availability(False)
    with subscribed(mosquitto.port, "arr_coc/door/availability") as subscriber:
        session = BrokerSession(Broker("127.0.0.1", mosquitto.port, tls=False), "client", will, None)
        session.connect()
        session.close()
        assert subscriber.next("arr_coc/door/availability").payload == b"offline"


class TestPasswords:
    @pytest.fixture
    def guarded(self, folder: Path) -> Iterator[Mosquitto]:
        program = shutil.which("mosquitto_passwd")
        if program is None:
            pytest.skip("no mosquitto_passwd: it comes with mosquitto")
        subprocess.run([program, "-b", "-c", folder / "users", "me", "right word"], check=True, capture_output=True)
        (folder / "users").chmod(0o644)
        with broker(folder, "allow_anonymous false", f"password_file {folder / 'users'}") as server:
            yield server

    def test_the_right_one_lets_in(self, guarded: Mosquitto, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(PASSWORD, "right word")
        with (
            subscribed(guarded.port, user="me", password="right word") as subscriber,
            fed_sink(f"mqtt://me@127.0.0.1:{guarded.port}"),
        ):
            assert subscriber.next("arr_coc/door/availability").payload == b"online"

    @pytest.mark.parametrize("who", ["", "me@", "me:wrong@"])
    def test_a_wrong_one_is_one_line_with_the_remedy(self, guarded: Mosquitto, who: str) -> None:
        config = Config(source="camera", mqtt=MqttSection(url=f"mqtt://{who}127.0.0.1:{guarded.port}"))
        with pytest.raises(OutputError, match=f"put the password into {PASSWORD}") as caught:
            opened_sinks(config)
        assert "\n" not in str(caught.value)
        assert "wrong@" not in str(caught.value)
        assert not [thread for thread in threading.enumerate() if thread.name == "mqtt"]


@pytest.mark.filterwarnings("ignore:Exception ignored in. <s.*socket:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore:unclosed <s.*socket:ResourceWarning")
class TestTls:
    """If TLS fails, paho leaves the socket to garbage collection."""

    @pytest.fixture
    def certificate(self, folder: Path) -> Path:
        path = folder / "cert.pem"
        command = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
        files = ["-keyout", str(folder / "key.pem"), "-out", str(path)]
        subprocess.run(["openssl", *command.split(), *files], check=True, capture_output=True)
        (folder / "key.pem").chmod(0o644)
        return path

    @pytest.fixture
    def secured(self, folder: Path, certificate: Path) -> Iterator[Mosquitto]:
        listener = f"certfile {certificate}\nkeyfile {folder / 'key.pem'}"
        with broker(folder, listener=listener) as server:
            yield server

    def test_its_certificate_is_checked(self, secured: Mosquitto, certificate: Path) -> None:
        url = f"mqtts://localhost:{secured.port}"
        with fed_sink(url, mqtt__ca=str(certificate)) as fed:
            fed.feed(STARTED)
            for number in range(20):
                fed.feed(AskedPicture(frame_index=number, pts_s=0.0, jpeg=bytes(1 << 18)))
            until(lambda: not len(fed.sink.link.outbox))
        with pytest.raises(OutputError, match=r"certificate is not valid: .*; name the file .* in mqtt\.ca"):
            FedSink(url)

    def test_the_other_kind_of_broker_is_one_line(
        self, folder: Path, secured: Mosquitto, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with fed_sink(f"mqtt://127.0.0.1:{secured.port}"):
            until(lambda: "it closed the connection at once (one with TLS needs mqtts://); " in capsys.readouterr().err)
        secured.kill()
        with broker(folder) as plain, fed_sink(f"mqtts://127.0.0.1:{plain.port}"):
            until(
                lambda: "it closed the connection at once (one without TLS needs mqtt://); " in capsys.readouterr().err
            )


class TestQuestions:
    def test_they_are_asked_if_enabled(self, mosquitto: Mosquitto, capsys: pytest.CaptureFixture[str]) -> None:
        with subscribed(mosquitto.port, "arr_coc/door/state") as subscriber:
            subscriber.publish("arr_coc/door/question/set", "An old wish?", retain=True)
            with fed_sink(f"mqtt://127.0.0.1:{mosquitto.port}", mqtt__ask=True) as fed:
                fed.feed(STARTED, frame(0, 0.0))
                subscriber.publish("arr_coc/door/question/set", " Where is it? ")
                until(lambda: fed.run.commands)
                subscriber.publish("arr_coc/door/question/set", " ")
                until(lambda: "refused" in "".join(capsys.readouterr().err))
                for number in range(8):
                    subscriber.publish("arr_coc/door/question/set", f"And {number}?")
                until(lambda: "too many questions at once" in "".join(capsys.readouterr().err))
                assert fed.run.commands[0] == Ask("Where is it?")
                assert len(fed.run.commands) < 9
            subscriber.publish("arr_coc/door/question/set", b"", retain=True)

    def test_they_are_not_taken_otherwise(self, mosquitto: Mosquitto) -> None:
        with fed_sink(f"mqtt://127.0.0.1:{mosquitto.port}") as fed:
            fed.feed(STARTED)
            with subscribed(mosquitto.port, "arr_coc/door/answer") as subscriber:
                subscriber.publish("arr_coc/door/question/set", "Where is it?")
                fed.feed(answer(0.0, "a cat"))
                subscriber.next("arr_coc/door/answer")
            assert fed.run.commands == []


def test_boxes_are_one_json_object(mosquitto: Mosquitto) -> None:
    with (
        subscribed(mosquitto.port) as subscriber,
        fed_sink(f"mqtt://127.0.0.1:{mosquitto.port}") as fed,
    ):
        fed.feed(STARTED, frame(0, 0.0), detections(0.0))
        fields = json.loads(subscriber.next("arr_coc/door/detections").payload)
        assert (fields["type"], fields["width_px"], fields["height_px"]) == ("detections", 190, 120)
        assert fields["objects"] == [
            {"label": "cat", "box": [19.0, 12.0, 95.0, 60.0], "score": 0.5},
            {"label": "dog", "point": [38.0, 90.0]},
        ]


def test_messages_without_a_change_are_sent_every_ten_seconds(mosquitto: Mosquitto) -> None:
    with (
        subscribed(mosquitto.port) as subscriber,
        fed_sink(f"mqtt://127.0.0.1:{mosquitto.port}", query="is it here?") as fed,
    ):
        until(lambda: len(fed.sink.link.outbox) == 0)
        for number in range(60):  # 30 s, two a second
            fed.now_s = number / 2
            at_s = fed.now_s
            jpeg = b"\xff\xd8 %d" % number
            fed.feed(frame(number, at_s), AskedPicture(frame_index=number, pts_s=at_s, jpeg=jpeg))
            fed.feed(
                answer(at_s, "a cat" if number < 40 else "a dog"), look(at_s, holds="yes" if number < 50 else "no")
            )
            if number == 15:
                fed.feed(match(at_s))
            until(lambda: len(fed.sink.link.outbox) == 0)
        fed.feed(answer(31.0, "the end"))
        received = []
        while not received or b"the end" not in received[-1].payload:
            received.append(subscriber.take())
    topics = {name: [message for message in received if message.topic == f"arr_coc/door/{name}"] for name in TOPICS}
    assert [message.payload[3:] for message in topics["picture"]] == [b"0", b"15", b"20", b"40"]
    assert [json.loads(message.payload)["text"] for message in topics["answer"]] == ["a cat", "a dog", "the end"]
    assert [json.loads(message.payload)["pts_s"] for message in topics["watch/here/details"]] == [0.0, 10.0, 20.0, 25.0]
    assert [message.payload for message in topics["watch/here"]] == [b"None", b"ON", b"OFF"]
