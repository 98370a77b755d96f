"""Client of SOAP 1.2 over HTTP or HTTPS, with WS-Security's UsernameToken and HTTP digest.

OASIS Web Services Security UsernameToken Profile 1.0; RFC 7616 for digest. The password itself is never sent.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import os
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import partial
from urllib.request import parse_http_list, parse_keqv_list
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from stream.transport.http_replies import REPLY_BYTES_MAX, timed_connection

ENVELOPE = "http://www.w3.org/2003/05/soap-envelope"

_SECURITY = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-secext-1.0.xsd"
_UTILITY = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-wssecurity-utility-1.0.xsd"
_DIGEST = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-username-token-profile-1.0#PasswordDigest"
_BASE64 = "http://docs.oasis-open.org/wss/2004/01/oasis-200401-wss-soap-message-security-1.0#Base64Binary"

_HASHES = {"MD5": hashlib.md5, "SHA-256": hashlib.sha256}


class SoapRefusal(Exception):
    """Refusal of a request by a device: its `reason`; `credentials` is True if it rejects the credentials."""

    def __init__(self, reason: str, *, credentials: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.credentials = credentials


@dataclass(slots=True)
class SoapClient:
    """Client of one device at `host` and `port`, over `tls` if that is given. All requests together end at
    `deadline_s` of `time.monotonic`.

    Tokens carry the device's time: `device_epoch` is its time when `time.monotonic` was 0; None if it is unknown.
    """

    host: str
    port: int
    deadline_s: float
    user: str = ""
    password: str = field(default="", repr=False)
    device_epoch: datetime | None = None
    tls: ssl.SSLContext | None = None

    def call(self, path: str, body: str, *, port: int | None = None, anonymous: bool = False) -> ElementTree.Element:
        """Send the XML of a request and return the reply's Body.

        Args:
            path: Path of the service on the device.
            body: XML of the request, the content of the envelope's Body.
            port: Port of the service, if it differs from the device's.
            anonymous: Send no credentials.

        Raises:
            SoapRefusal: For a fault, rejected credentials, or a reply that is not SOAP.
            ssl.SSLError: For an untrusted certificate.
            OSError: If the device does not answer.
        """
        if anonymous or not self.user:
            header = ""
        else:
            header = self._token()
        envelope = (
            f'<?xml version="1.0" encoding="utf-8"?><s:Envelope xmlns:s="{ENVELOPE}"><s:Header>{header}</s:Header>'
            f"<s:Body>{body}</s:Body></s:Envelope>"
        ).encode()
        status, challenges, reply = self._post(port or self.port, path, envelope, None)
        if status == 401 and self.user and not anonymous:
            answer = digest_answer(challenges, "POST", path, self.user, self.password)
            if answer is not None:
                status, challenges, reply = self._post(port or self.port, path, envelope, answer)
        return _body(status, reply)

    def _post(
        self, port: int, path: str, envelope: bytes, authorization: str | None
    ) -> tuple[int, Sequence[str], bytes]:
        """Return status, challenges and content of one exchange."""
        left_s = self.deadline_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        headers = {"Content-Type": "application/soap+xml; charset=utf-8", "Connection": "close"}
        if authorization is not None:
            headers["Authorization"] = authorization
        connection = timed_connection((self.host, port), left_s, self.tls)
        try:
            connection.request("POST", path, envelope, headers)
            # least time limit of an exchange whose connection took most of the time
            connection.sock.settimeout(max(self.deadline_s - time.monotonic(), 0.1))
            response = connection.getresponse()
            reply = response.read(REPLY_BYTES_MAX + 1)
        except ssl.SSLError:  # some are ValueErrors, too
            raise
        except (http.client.HTTPException, ValueError) as error:
            raise SoapRefusal("does not speak HTTP there") from error
        finally:
            connection.close()
        return response.status, response.headers.get_all("WWW-Authenticate", []), reply

    def _token(self) -> str:
        nonce = os.urandom(16)
        if self.device_epoch is None:
            now = datetime.now(timezone.utc)
        else:
            now = self.device_epoch + timedelta(seconds=time.monotonic())
        timestamp = now.strftime("%Y-%m-%dT%H:%M:%S.000Z")
        digest = base64.b64encode(hashlib.sha1(nonce + timestamp.encode() + self.password.encode()).digest()).decode()
        return (
            f'<w:Security xmlns:w="{_SECURITY}"><w:UsernameToken><w:Username>{escape(self.user)}</w:Username>'
            f'<w:Password Type="{_DIGEST}">{digest}</w:Password>'
            f'<w:Nonce EncodingType="{_BASE64}">{base64.b64encode(nonce).decode()}</w:Nonce>'
            f'<u:Created xmlns:u="{_UTILITY}">{timestamp}</u:Created></w:UsernameToken></w:Security>'
        )


def digest_answer(challenges: Sequence[str], method: str, path: str, user: str, password: str) -> str | None:
    """Return the Authorization header for the first usable of a server's challenges; None if none is usable.

    Args:
        challenges: Values of the WWW-Authenticate headers, as of RFC 7616.
        method: Method of the request.
        path: Its path, the URI of the digest.
        user: User name.
        password: Password of the user.
    """
    for challenge in challenges:
        scheme, _, rest = challenge.strip().partition(" ")
        if scheme.lower() != "digest":
            continue
        try:
            values = {key.lower(): value for key, value in parse_keqv_list(parse_http_list(rest)).items()}
        except (ValueError, IndexError):
            continue
        algorithm = values.get("algorithm", "MD5").upper()
        qualities = [quality.strip() for quality in values.get("qop", "").split(",") if quality.strip()]
        if algorithm not in _HASHES or "nonce" not in values or (qualities and "auth" not in qualities):
            continue
        digest_of = partial(_digest, algorithm)
        realm = values.get("realm", "")
        nonce = values["nonce"]
        ha1 = digest_of(f"{user}:{realm}:{password}")
        ha2 = digest_of(f"{method}:{path}")
        fields = {"username": user, "realm": realm, "nonce": nonce, "uri": path}
        if qualities:
            count = "00000001"
            cnonce = os.urandom(8).hex()
            fields |= {"cnonce": cnonce, "response": digest_of(f"{ha1}:{nonce}:{count}:{cnonce}:auth:{ha2}")}
            unquoted = f", nc={count}, qop=auth"
        else:
            fields |= {"response": digest_of(f"{ha1}:{nonce}:{ha2}")}
            unquoted = ""
        if "opaque" in values:
            fields["opaque"] = values["opaque"]
        quoted = ", ".join(f'{key}="{_quotable(value)}"' for key, value in fields.items())
        return f"Digest {quoted}, algorithm={algorithm}{unquoted}"
    return None


def _digest(algorithm: str, text: str) -> str:
    return str(_HASHES[algorithm](text.encode()).hexdigest())


def _quotable(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _body(status: int, reply: bytes) -> ElementTree.Element:
    """Return the Body of a reply. Raises SoapRefusal."""
    if status == 401:
        raise SoapRefusal("rejects the user name or password", credentials=True)
    envelope = _parse(reply)
    if envelope is None:
        body = None
    else:
        body = envelope.find(f"{{{ENVELOPE}}}Body")
    if body is None:
        raise SoapRefusal(f"does not answer as such a device there (HTTP {status})")
    fault = body.find(f"{{{ENVELOPE}}}Fault")
    if fault is not None:
        codes = "".join(text for value in fault.iter(f"{{{ENVELOPE}}}Value") for text in [value.text or ""])
        reason = next((text.text for text in fault.iter(f"{{{ENVELOPE}}}Text") if text.text), "no reason given")
        if "NotAuthorized" in codes or "FailedAuthentication" in codes:
            raise SoapRefusal("rejects the user name or password", credentials=True)
        raise SoapRefusal(f"refuses the request: {' '.join(reason.split())[:200]}")
    return body


def _parse(reply: bytes) -> ElementTree.Element | None:
    """Parse the XML of a reply; return None if it is invalid, too long, or has a document type, which SOAP forbids."""
    if len(reply) > REPLY_BYTES_MAX or b"<!DOCTYPE" in reply or b"<!ENTITY" in reply:
        return None
    try:
        return ElementTree.fromstring(reply)
    except (ElementTree.ParseError, ValueError):
        return None
