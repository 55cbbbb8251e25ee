"""A small S3 server: what clients ask of a bucket, in memory and in well under a millisecond.

moto's server answers the same and takes ten times as long; `test_the_small_server_answers_as_moto` compares
them. Requests have the bucket in their path, and no request needs a signature.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import gmtime, strftime, time
from typing import Any
from urllib.parse import parse_qsl, quote, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

_MOST_KEYS = 1000


class Refused(Exception):
    """A request that is answered with an error.

    Attributes:
        status: of HTTP.
        code: of S3.
    """

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.status, self.code = status, code


@dataclass(frozen=True)
class Stored:
    """An object: its bytes, their tag, and the second in which it was written."""

    data: bytes
    tag: str
    modified: float


@dataclass(frozen=True)
class Answer:
    """What a request is answered: the status, the body, and further headers."""

    status: int = 200
    content: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def _digest(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _of(data: bytes) -> Stored:
    return Stored(data, f'"{_digest(data).hex()}"', time())


def _joined(parts: Sequence[bytes]) -> Stored:
    tag = _digest(b"".join(map(_digest, parts))).hex()
    return Stored(b"".join(parts), f'"{tag}-{len(parts)}"', time())


class Bucket:
    """The objects of a bucket, and uploads in parts."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, Stored] = {}
        #: Sorted, so that a list looks at no other object.
        self._names: list[str] = []
        self._uploads: dict[str, dict[int, bytes]] = {}
        self._numbers = itertools.count()

    def put(self, name: str, stored: Stored, headers: Any) -> Answer:
        """Make or replace an object, if the conditions of the request hold."""
        with self.lock:
            there = self.objects.get(name)
            if headers.get("If-None-Match") == "*" and there is not None:
                raise Refused(412, "PreconditionFailed")
            if "If-Match" in headers and (there is None or headers["If-Match"] != there.tag):
                raise Refused(412, "PreconditionFailed")
            self.objects[name] = stored
            if there is None:
                bisect.insort(self._names, name)
        return Answer(headers={"ETag": stored.tag})

    def get(self, name: str) -> Stored:
        """Return an object."""
        with self.lock:
            if name not in self.objects:
                raise Refused(404, "NoSuchKey")
            return self.objects[name]

    def remove(self, name: str) -> None:
        """Delete an object, if it is there."""
        with self.lock:
            if self.objects.pop(name, None) is not None:
                del self._names[bisect.bisect_left(self._names, name)]

    def listed(self, query: Mapping[str, str]) -> Answer:
        """Return a page of the objects below a prefix, and of the folders if there is a delimiter."""
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = bytes.fromhex(query.get("continuation-token", "")).decode() or query.get("start-after", "")
        most = min(int(query.get("max-keys", _MOST_KEYS)), _MOST_KEYS)
        contents: list[tuple[str, Stored]] = []
        folders: list[str] = []
        last = None
        with self.lock:
            place = bisect.bisect_left(self._names, prefix)
            if after >= prefix:
                place = bisect.bisect_right(self._names, after)
            while place < len(self._names) and self._names[place].startswith(prefix):
                name = self._names[place]
                folder, found, _ = name[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
                shown = f"{prefix}{folder}{delimiter}" if found else name
                # Of a page that began within a folder.
                if not (found and after.startswith(shown)):
                    if len(contents) + len(folders) == most:
                        break
                    if found:
                        folders.append(shown)
                    else:
                        contents.append((name, self.objects[name]))
                    last = shown
                # A folder is shown once: go on behind all that it holds.
                place = bisect.bisect_left(self._names, _behind(shown)) if found else place + 1
            more = place < len(self._names) and self._names[place].startswith(prefix) and last is not None
        coded = quote if query.get("encoding-type") == "url" else escape
        rows = [
            f"<Contents><Key>{coded(name)}</Key><LastModified>{_iso(each.modified)}</LastModified>"
            f"<ETag>{escape(each.tag)}</ETag><Size>{len(each.data)}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
            for name, each in contents
        ]
        rows += [f"<CommonPrefixes><Prefix>{coded(each)}</Prefix></CommonPrefixes>" for each in folders]
        if more:
            rows.append(f"<NextContinuationToken>{(last or '').encode().hex()}</NextContinuationToken>")
        return xml(
            f"<ListBucketResult><Prefix>{coded(prefix)}</Prefix><MaxKeys>{most}</MaxKeys>"
            f"<KeyCount>{len(contents) + len(folders)}</KeyCount>"
            f"<IsTruncated>{str(more).lower()}</IsTruncated>{''.join(rows)}</ListBucketResult>"
        )

    def begin_upload(self, name: str) -> Answer:
        """Begin an upload in parts."""
        with self.lock:
            upload = f"upload-{next(self._numbers)}"
            self._uploads[upload] = {}
        return xml(
            f"<InitiateMultipartUploadResult><Key>{escape(name)}</Key><UploadId>{upload}</UploadId>"
            "</InitiateMultipartUploadResult>"
        )

    def upload(self, upload: str, part: int, data: bytes) -> Answer:
        """Keep a part."""
        with self.lock:
            if upload not in self._uploads:
                raise Refused(404, "NoSuchUpload")
            self._uploads[upload][part] = data
        return Answer(headers={"ETag": _of(data).tag})

    def end_upload(self, name: str, upload: str, body: bytes, headers: Any) -> Answer:
        """Make the object of the parts that the request names."""
        with self.lock:
            if upload not in self._uploads:
                raise Refused(404, "NoSuchUpload")
            parts = self._uploads[upload]
        stored = _joined([parts[int(each)] for each in _texts(body, "PartNumber")])
        self.put(name, stored, headers)
        self.give_up(upload)
        return xml(
            f"<CompleteMultipartUploadResult><Key>{escape(name)}</Key><ETag>{escape(stored.tag)}</ETag>"
            "</CompleteMultipartUploadResult>"
        )

    def give_up(self, upload: str) -> None:
        """Forget an upload."""
        with self.lock:
            self._uploads.pop(upload, None)


def _behind(folder: str) -> str:
    """Return the first name after all that begin with a text."""
    return folder[:-1] + chr(ord(folder[-1]) + 1)


def _iso(seconds: float) -> str:
    return strftime("%Y-%m-%dT%H:%M:%S.000Z", gmtime(seconds))


def _texts(body: bytes, tag: str) -> list[str]:
    """Return the texts of all elements of a name, of whatever namespace."""
    return [each.text or "" for each in ElementTree.fromstring(body).iter() if each.tag.endswith(tag)]


def xml(text: str) -> Answer:
    """Return an answer of XML."""
    content = f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode()
    return Answer(content=content, headers={"Content-Type": "application/xml"})


def _range(given: str, size: int) -> tuple[int, int]:
    """Return the bytes that a request asks for, from the first up to the one after the last."""
    first, _, last = given.removeprefix("bytes=").partition("-")
    start, stop = (int(first), int(last or size - 1) + 1) if first else (max(size - int(last), 0), size)
    if start >= size:
        raise Refused(416, "InvalidRange")
    return start, min(stop, size)


class ObjectHandler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    buckets: dict[str, Bucket]

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def _treat(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path, _, query = self.path.partition("?")
        bucket, _, name = unquote(path).removeprefix("/").partition("/")
        asked = dict(parse_qsl(query, keep_blank_values=True))
        try:
            answer = self._answered(bucket, name, asked, body)
        except Refused as refused:
            content = xml(f"<Error><Code>{refused.code}</Code><Message>{refused.code}</Message></Error>")
            answer = Answer(refused.status, content.content, content.headers)
        self.send_response_only(answer.status)
        for key, value in answer.headers.items():
            self.send_header(key, value)
        if answer.status not in (204, 304):
            self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else answer.content)
        self.wfile.flush()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _treat

    def _answered(self, bucket: str, name: str, asked: Mapping[str, str], body: bytes) -> Answer:
        if self.command == "PUT" and not name:
            self.buckets.setdefault(bucket, Bucket())
            return Answer()
        if bucket not in self.buckets:
            raise Refused(404, "NoSuchBucket")
        if "Transfer-Encoding" in self.headers or "aws-chunked" in self.headers.get("Content-Encoding", ""):
            raise Refused(501, "NotImplemented")
        place, upload = self.buckets[bucket], asked.get("uploadId")
        match self.command:
            case "GET" | "HEAD":
                if name:
                    return self._object(place.get(name))
                return place.listed(asked) if "list-type" in asked else Answer()
            case "PUT" if upload is not None:
                return place.upload(upload, int(asked["partNumber"]), body)
            case "PUT":
                return self._put(place, name, body)
            case "DELETE":
                if upload is None:
                    place.remove(name)
                else:
                    place.give_up(upload)
                return Answer(204)
            case "POST" if "delete" in asked:
                gone = _texts(body, "Key")
                for each in gone:
                    place.remove(each)
                rows = "".join(f"<Deleted><Key>{escape(each)}</Key></Deleted>" for each in gone)
                return xml(f"<DeleteResult>{rows}</DeleteResult>")
            case "POST" if "uploads" in asked:
                return place.begin_upload(name)
            case "POST" if upload is not None:
                return place.end_upload(name, upload, body, self.headers)
        raise Refused(501, "NotImplemented")

    def _put(self, place: Bucket, name: str, body: bytes) -> Answer:
        source = self.headers.get("x-amz-copy-source")
        if source is None:
            return place.put(name, _of(body), self.headers)
        bucket, _, other = unquote(source).removeprefix("/").partition("/")
        stored = _of(self.buckets[bucket].get(other).data)
        place.put(name, stored, self.headers)
        return xml(
            f"<CopyObjectResult><ETag>{escape(stored.tag)}</ETag>"
            f"<LastModified>{_iso(stored.modified)}</LastModified></CopyObjectResult>"
        )

    def _object(self, stored: Stored) -> Answer:
        data, given = stored.data, self.headers.get("Range")
        headers = {
            "ETag": stored.tag,
            "Last-Modified": formatdate(stored.modified, usegmt=True),
            "Content-Type": "binary/octet-stream",
            "Accept-Ranges": "bytes",
        }
        if "If-Match" in self.headers and self.headers["If-Match"] != stored.tag:
            raise Refused(412, "PreconditionFailed")
        if self.headers.get("If-None-Match") == stored.tag:
            return Answer(304, headers=headers)
        if given is None:
            return Answer(200, data, headers)
        start, stop = _range(given, len(data))
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(data)}"
        return Answer(206, data[start:stop], headers)


class Server(ThreadingHTTPServer):
    """Many connections, none of which keeps the process alive."""

    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is no error."""


def server(host: str) -> Server:
    """Return a server without buckets, at a free port."""
    handler = type("Handler", (ObjectHandler,), {"buckets": {}})
    return Server((host, 0), handler)
