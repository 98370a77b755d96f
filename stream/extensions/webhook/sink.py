"""Webhook: events of a run as HTTP requests, signed by Standard Webhooks (https://www.standardwebhooks.com)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import http.client
import os
import ssl
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from stream import logs
from stream.config import Config
from stream.errors import ConfigError
from stream.events import Answer, ClipWritten, Event, Match, Outage, Restarted, Summary, encode_event
from stream.extension import SinkOpening
from stream.extensions.webhook.section import WebhookSection
from stream.sinks.background import BackgroundSender, Outbox
from stream.sinks.base import Sink
from stream.sources.address import redacted
from stream.transport.http_replies import timed_opener

SECRET = "ARR_COC_WEBHOOK_SECRET"
"""Environment variable of the signature key."""

SENT = (Answer, Match, ClipWritten, Outage, Restarted, Summary)

Place: TypeAlias = tuple[type[Event], str]
"""Kind of an event, and its watch."""

ATTEMPTS = 3

RETRY_S = 1.0
"""Wait before the second attempt; twice this before the third."""

REPLY_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Webhook:
    """Address of a webhook with its credentials: `basic` for HTTP, `key` for signatures; each None if unset."""

    url: str
    basic: str | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)

    @classmethod
    def of(cls, url: str, environment: Mapping[str, str] = os.environ) -> Webhook:
        """Return the webhook at an address. Raises ConfigError if the address is invalid."""
        try:
            parts = urlsplit(url)
            host = parts.hostname
            port = parts.port
        except ValueError:
            raise ConfigError(f"--webhook {redacted(url)!r} is no address; {EXAMPLE}") from None
        if parts.scheme not in ("http", "https") or not host or port == 0 or not url.isascii() or " " in url:
            raise ConfigError(f"--webhook {redacted(url)!r} is no address; {EXAMPLE}")
        credentials, _, place = parts.netloc.rpartition("@")
        if credentials:
            basic = base64.b64encode(unquote(credentials).encode()).decode()
        else:
            basic = None
        return cls(parts._replace(netloc=place, fragment="").geturl(), basic, _key(environment.get(SECRET, "")))

    @property
    def address(self) -> str:
        """Address for messages: without path and parameters, which may hold secrets."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    def request(self, body: bytes, number: str, unix_s: int) -> urllib.request.Request:
        """Return the request with `body`: event `number`, sent at `unix_s`."""
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "arr-coc-stream",
            "webhook-id": number,
            "webhook-timestamp": str(unix_s),
        }
        if self.basic is not None:
            headers["Authorization"] = f"Basic {self.basic}"
        if self.key is not None:
            headers["webhook-signature"] = signature(self.key, body, number, unix_s)
        return urllib.request.Request(self.url, body, headers, method="POST")


EXAMPLE = "write for example https://example.com/hook"


def _key(secret: str) -> bytes | None:
    """Return the key of a secret, which is base64 after `whsec_`. Raises ConfigError."""
    if not secret:
        return None
    if not secret.startswith("whsec_"):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        raise ConfigError(f"{SECRET} begins with whsec_ and is not base64; copy it again") from None


def signature(key: bytes, body: bytes, number: str, unix_s: int) -> str:
    """Return the signature of a message: HMAC-SHA256 of number, time and body, joined by dots.

    Args:
        key: Secret shared with the receiver.
        body: Body of the request.
        number: Identifier of the message.
        unix_s: Time of sending.
    """
    digest = hmac.new(key, b".".join((number.encode(), str(unix_s).encode(), body)), hashlib.sha256).digest()
    return f"v1,{base64.b64encode(digest).decode()}"


class WebhookSink(BackgroundSender[Event], Sink):
    """Sink that posts answers, matches of watches and the names of their files, outages, restarts and the summary to a
    webhook, each as in a .jsonl.

    `camera`: name to write in each event; `silent`: watches whose matches are not posted. `write` never waits for the
    server. Of each kind, and of matches of each watch, only the newest event waits.
    `retry_s` and `reply_limit_s` are as RETRY_S and REPLY_LIMIT_S. Raises ConfigError as Webhook does.
    """

    def __init__(
        self,
        url: str,
        *,
        camera: str | None = None,
        silent: Collection[str] = (),
        retry_s: float = RETRY_S,
        reply_limit_s: float = REPLY_LIMIT_S,
    ) -> None:
        self._webhook = Webhook.of(url)
        self._camera = camera
        self._silent = frozenset(silent)
        self._wait_s = retry_s
        self._reply_limit_s = reply_limit_s
        self._opener = timed_opener(_NoRedirects)
        super().__init__(
            "webhook",
            Outbox(_place_of),
            "the webhook at {address} takes nothing: {reason}; the run goes on, and newer events are tried",
            "",
            retry_at_end=True,
            address=self._webhook.address,
        )
        self.start()

    @classmethod
    def open(cls, opening: SinkOpening) -> WebhookSink:
        """Open the sink of a run."""
        config = opening.config
        silent = [watch.name for watch in config.watch if not watch.webhook]
        return cls(WebhookSection.of(config).url or "", camera=opening.camera or None, silent=silent)

    def write(self, event: Event) -> None:
        if isinstance(event, SENT) and not (isinstance(event, (Match, ClipWritten)) and event.watch in self._silent):
            self.put(event)

    def close(self) -> None:
        self.end(2.0)  # time limit of the last events

    def serve(self) -> None:
        while events := self.take():
            self._deliver(events[0])

    def report_return(self) -> None:
        logs.say(f"the webhook at {self._webhook.address} takes events again", event="webhook")

    def _deliver(self, event: Event) -> None:
        """Send an event, with up to ATTEMPTS attempts unless a newer one of its kind arrives; report the outcome."""
        body = encode_event(event, self._camera).encode()
        number = f"msg_{uuid.uuid4().hex}"
        for attempt in range(1, ATTEMPTS + 1):
            problem, can_retry = self._post(body, number)
            if not problem:
                self.reached()
                return
            if not can_retry or attempt == ATTEMPTS:
                break
            if self.wait(lambda: self.outbox.replaces(event), self._wait_s * 2 ** (attempt - 1)):
                break
        self.lost(problem)

    def _post(self, body: bytes, number: str) -> tuple[str, bool]:
        """Return the problem, empty for success, and whether another attempt may succeed."""
        request = self._webhook.request(body, number, int(time.time()))
        try:
            self._opener.open(request, timeout=self._reply_limit_s).close()
        except urllib.error.HTTPError as error:
            error.close()
            if 300 <= error.code < 400:
                hint = " (give the address that it leads to)"
            else:
                hint = ""
            # refusals after which another attempt may succeed, besides 500 and above
            return f"status {error.code}{hint}", error.code >= 500 or error.code in (408, 425, 429)
        except urllib.error.URLError as error:
            reason = error.reason
            if isinstance(reason, ssl.SSLCertVerificationError):
                return f"its certificate is not valid: {reason.verify_message}", False
            return str(getattr(reason, "strerror", None) or reason) or type(reason).__name__, True
        except (OSError, http.client.HTTPException) as error:
            return str(error) or type(error).__name__, True
        return "", False


def _place_of(event: Event) -> Place:
    """Return what a newer event takes the place of."""
    return type(event), event.watch if isinstance(event, (Match, ClipWritten)) else ""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Handler that refuses redirects: a redirected POST would lose its body or go to an unconfigured address."""

    def redirect_request(self, *_: object) -> None:
        return None


def check(config: Config) -> None:
    """Raise ConfigError for an invalid address."""
    Webhook.of(WebhookSection.of(config).url or "")
