"""An ONVIF camera on loopback: device and media service by SOAP, which check who asks, and when by their own clock."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.request import parse_http_list, parse_keqv_list
from xml.etree import ElementTree

from tests.support.http_server import LoopbackServer, QuietHandler

SCHEMA = "http://www.onvif.org/ver10/schema"

PROFILES = (("token_0", "Main & loud", "H264", 640, 480), ("token_1", "Sub", "H264", 320, 240))

TOLERANCE = timedelta(minutes=5)
"""Between a token's time and the camera's; far more than a busy machine takes, far less than `ahead` in the tests."""


class OnvifCamera(LoopbackServer):
    """Serves onvif://127.0.0.1:PORT. Its stream is at `stream_uri`.

    `login` is (user, password), `auth` how it is checked: `token` (WS-Security) or `digest` (HTTP, with `algorithm`).
    `clock_offset` is how far its clock is ahead. `replies` stand in for the camera's own, by the request's name:
    (status, content). `requests` are the requests so far.
    """

    def __init__(
        self,
        stream_uri: str,
        login: tuple[str, str] | None = None,
        auth: str = "token",
        clock_offset: timedelta = timedelta(),
    ) -> None:
        self.stream_uri = stream_uri
        self.login = login
        self.auth = auth
        self.algorithm = "MD5"
        self.clock_offset = clock_offset
        self.media_address: str | None = None
        self.profiles = PROFILES
        self.replies: dict[str, tuple[int, bytes]] = {}
        self.requests: list[str] = []
        self.raw: list[bytes] = []
        self._nonces: set[str] = set()
        super().__init__(_handler(self))

    def answer(self, request: str) -> str:
        """The XML inside the body of the reply to a request."""
        now = datetime.now(timezone.utc) + self.clock_offset
        media = self.media_address or f"http://127.0.0.1:{self.port}/onvif/media"
        if request == "GetSystemDateAndTime":
            clock = f"<t:Time><t:Hour>{now.hour}</t:Hour><t:Minute>{now.minute}</t:Minute>"
            clock += f"<t:Second>{now.second}</t:Second></t:Time>"
            date = f"<t:Date><t:Year>{now.year}</t:Year><t:Month>{now.month}</t:Month><t:Day>{now.day}</t:Day></t:Date>"
            return f"<t:UTCDateTime>{clock}{date}</t:UTCDateTime>"
        if request == "GetCapabilities":
            return f"<t:Media><t:XAddr>{media}</t:XAddr></t:Media>"
        if request == "GetProfiles":
            return (
                "".join(map(_profile, self.profiles)) + '<m:Profiles token="sound"><t:Name>Sound</t:Name></m:Profiles>'
            )
        return f"<m:MediaUri><t:Uri>{self.stream_uri.replace('&', '&amp;')}</t:Uri></m:MediaUri>"

    def knows(self, request: str, envelope: ElementTree.Element, headers: Any, path: str) -> bool:
        """Whether a request carries the right login; the time needs none."""
        if self.login is None or request == "GetSystemDateAndTime":
            return True
        return self._by_token(envelope) if self.auth == "token" else self._by_digest(headers, path)

    def _by_token(self, envelope: ElementTree.Element) -> bool:
        fields = {element.tag.rpartition("}")[2]: element.text or "" for element in envelope.iter()}
        if not {"Username", "Password", "Nonce", "Created"} <= fields.keys() or fields["Nonce"] in self._nonces:
            return False
        assert self.login is not None
        self._nonces.add(fields["Nonce"])
        created = datetime.strptime(fields["Created"], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
        if abs(created - datetime.now(timezone.utc) - self.clock_offset) > TOLERANCE:
            return False
        nonce = base64.b64decode(fields["Nonce"])
        digest = hashlib.sha1(nonce + fields["Created"].encode() + self.login[1].encode()).digest()
        right = base64.b64encode(digest).decode()
        return fields["Username"] == self.login[0] and hmac.compare_digest(fields["Password"], right)

    def _by_digest(self, headers: Any, path: str) -> bool:
        scheme, _, rest = headers.get("Authorization", "").partition(" ")
        if scheme != "Digest":
            return False
        assert self.login is not None
        fields = parse_keqv_list(parse_http_list(rest))
        digest = hashlib.md5 if self.algorithm == "MD5" else hashlib.sha256
        ha1 = digest(f"{self.login[0]}:cam:{self.login[1]}".encode()).hexdigest()
        ha2 = digest(f"POST:{path}".encode()).hexdigest()
        expected = digest(f"{ha1}:n0nce:{fields['nc']}:{fields['cnonce']}:auth:{ha2}".encode()).hexdigest()
        return fields["username"] == self.login[0] and fields["uri"] == path and fields["response"] == expected


def _profile(profile: tuple[str, str, str, int, int]) -> str:
    token, name, encoding, width, height = profile
    size = f"<t:Resolution><t:Width>{width}</t:Width><t:Height>{height}</t:Height></t:Resolution>"
    video = f"<t:VideoEncoderConfiguration><t:Encoding>{encoding}</t:Encoding>{size}</t:VideoEncoderConfiguration>"
    return f'<m:Profiles token="{token}"><t:Name>{name.replace("&", "&amp;")}</t:Name>{video}</m:Profiles>'


def envelope_of(body: str) -> bytes:
    """A SOAP reply."""
    names = f'xmlns:s="http://www.w3.org/2003/05/soap-envelope" xmlns:t="{SCHEMA}"'
    media = 'xmlns:m="http://www.onvif.org/ver10/media/wsdl"'
    return f'<?xml version="1.0"?><s:Envelope {names} {media}><s:Body>{body}</s:Body></s:Envelope>'.encode()


def fault(code: str, reason: str) -> bytes:
    """A SOAP fault."""
    subcode = f"<s:Subcode><s:Value>{code}</s:Value></s:Subcode>"
    return envelope_of(
        f"<s:Fault><s:Code><s:Value>s:Sender</s:Value>{subcode}</s:Code>"
        f"<s:Reason><s:Text>{reason}</s:Text></s:Reason></s:Fault>"
    )


def _handler(camera: OnvifCamera) -> type[BaseHTTPRequestHandler]:
    class Handler(QuietHandler, BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.content()
            camera.raw += [content, str(self.headers).encode()]
            envelope = ElementTree.fromstring(content)
            body = envelope.find("{http://www.w3.org/2003/05/soap-envelope}Body")
            assert body is not None
            request = body[0].tag.rpartition("}")[2]
            token = re.search(rb"<ProfileToken>(.*)</ProfileToken>", content)
            camera.requests.append(request + (f" {token[1].decode()}" if token else ""))
            if request in camera.replies:
                self.send_whole(*camera.replies[request])
            elif camera.knows(request, envelope, self.headers, self.path):
                self.send_whole(200, envelope_of(f"<{request}Response>{camera.answer(request)}</{request}Response>"))
            elif camera.auth == "token":
                self.send_whole(400, fault("ter:NotAuthorized", "Sender not authorized"))
            else:
                digest = f'Digest realm="cam", qop="auth", nonce="n0nce", opaque="o", algorithm={camera.algorithm}'
                self.send_whole(401, b"", ("WWW-Authenticate", 'Basic realm="cam"'), ("WWW-Authenticate", digest))

    return Handler
