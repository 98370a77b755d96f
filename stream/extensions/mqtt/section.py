"""Section `[mqtt]` of the configuration."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from typing_extensions import Self

from stream.config import ExtensionSection, FileName
from stream.options.option import Option
from stream.sources.address import redacted


class MqttSection(ExtensionSection):
    """Answers and matches for an MQTT broker and Home Assistant (docs/home-assistant.md)."""

    section: ClassVar[str] = "mqtt"
    switch: ClassVar[str] = "url"

    def for_camera(self, name: str) -> Self:
        """Return the section with the camera's name, if it has none."""
        if self.url is None or self.name is not None:
            return self
        letters = "".join(char if char.isascii() and (char.isalnum() or char in "_-") else "_" for char in name)
        return self.model_copy(update={"name": letters})

    def shown(self) -> Self:
        """Return the section without the credentials of the address."""
        return self.model_copy(update={"url": None if self.url is None else redacted(self.url)})

    url: Annotated[
        str | None,
        Option("--mqtt URL", "Send answers to an MQTT broker: mqtt://[USER@]HOST[:PORT]. [off]", without="demo"),
    ] = Field(default=None, min_length=1, examples=['"mqtt://homeassistant.local"'])
    """MQTT broker, as "mqtt[s]://[USER[:PASSWORD]@]HOST[:PORT]"; `mqtts` is TLS. A password is better given in the
    environment variable ARR_COC_MQTT_PASSWORD. See docs/home-assistant.md."""
    name: Annotated[
        str | None,
        Option("--mqtt-name NAME", "Name of the device and its topics. [made from the source]", without="demo"),
    ] = Field(default=None, pattern=r"^[A-Za-z0-9_-]{1,64}$", examples=['"front_door"'])
    """Name of this run's device and topics, arr_coc/NAME/…; made from the source when absent. Two runs at one broker
    need two names."""
    ask: Annotated[bool, Option("--mqtt-ask", "With --mqtt: accept questions from there.", without="demo")] = False
    """Take questions from arr_coc/NAME/question/set. Beyond this machine it needs mqtts and a password, unless
    `network.plain_tcp` admits every program."""
    picture: bool = True
    """Send pictures of frames that are answered about or checked, one every `mqtt.every_s`, and of matches."""
    every_s: float = Field(default=10.0, ge=0)
    """Time between pictures, figures and unchanged details of watches, in seconds; a changed verdict or answer is sent
    at once."""
    ca: FileName | None = None
    """PEM file with the certificate of the broker's authority; those of this system when absent."""
    discovery: str | None = Field(default="homeassistant", pattern=r"^[A-Za-z0-9_/-]+$", examples=['"homeassistant"'])
    """First part of Home Assistant's discovery topics; none to announce nothing."""
