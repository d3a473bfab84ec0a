"""Rows of a log: objects of JSON lines, of a JSON list, of values one after the other, or of Parquet. JSON is packed or
not, in UTF-8 or UTF-16. Memory is bounded by one row.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import importlib
import json
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from datetime import time, timedelta
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO, NamedTuple
from uuid import UUID

from slipstream.errors import SlipstreamError, StartError
from slipstream_chat.report import Report, Value

MIB_BYTES = 2**20
CHUNK_BYTES = MIB_BYTES
MOST_ROW = 64 * MIB_BYTES
"""Bytes of one row. A longer one is left out."""
MAX_UNPACK_RATIO, UNPACK_FREE_BYTES = 250, 64 * MIB_BYTES
"""A packed file may grow by so much, once it has grown to ``UNPACK_FREE_BYTES`` bytes. Logs grow five- to fiftyfold."""
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
UNPACKING_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, RuntimeError, ValueError)
"""What unpacking raises; ``RuntimeError`` of a zip with a password or an unknown packing."""


class LogLine(NamedTuple):
    number: int
    text: bytes | None
    """UTF-8. None: the line is longer than ``MOST_ROW``."""
    share: float
    """How much of the file is read, 0 … 1."""


class Log:
    """An open file: its bytes in UTF-8, unpacked. What cannot be read on is told to the report."""

    def __init__(self, path: Path, report: Report) -> None:
        self.path, self.report = path, report
        self.size = max(1, path.stat().st_size)
        self.share = 0.0
        self.lost = 0
        """Rows that cannot be read."""

    def refuse(self, where: str, why: object) -> None:
        self.lost += 1
        self.report.refuse(where, why)

    def chunks(self) -> Iterator[bytes]:
        with self.path.open("rb") as raw:
            yield from _utf8(self._unpacked(raw), self)

    def _unpacked(self, raw: BinaryIO) -> Iterator[bytes]:
        total = 0
        try:
            for file in _opened(raw):
                read = getattr(file, "read1", file.read)  # what there is of a packed file that ends in its middle
                while part := read(CHUNK_BYTES):
                    total += len(part)
                    self.share = min(1.0, raw.tell() / self.size)
                    if total > UNPACK_FREE_BYTES and total > MAX_UNPACK_RATIO * self.size:
                        self.refuse(
                            f"{self.path}",
                            f"it unpacks to over {MAX_UNPACK_RATIO} times its size; the rest is not read",
                        )
                        return
                    yield part
        except SlipstreamError as e:
            self.refuse(f"{self.path}", e)
        except UNPACKING_ERRORS as e:
            self.refuse(f"{self.path}", f"the packed file is broken, the rest cannot be read: {e}")
        self.share = 1.0

    def lines(self) -> Iterator[LogLine]:
        """Its lines, blank ones left out, numbered from 1."""
        held: list[bytes] = []
        number, size = 1, 0
        for chunk in self.chunks():
            start = 0
            while (end := chunk.find(b"\n", start)) >= 0:
                part = chunk[start:end]
                long = size + len(part) > MOST_ROW
                if long or held or part.strip():
                    text = None if long else b"".join([*held, part])
                    if text is None or text.strip():
                        yield LogLine(number, text, self.share)
                held, size, start, number = [], 0, end + 1, number + 1
            size += len(chunk) - start
            if size <= MOST_ROW:
                held.append(chunk[start:])
            else:
                held = []
        text = b"".join(held)
        if size > MOST_ROW or text.strip():
            yield LogLine(number, None if size > MOST_ROW else text, 1.0)


def _opened(raw: BinaryIO) -> Iterator[BinaryIO]:
    head = raw.read(6)
    raw.seek(0)
    if head.startswith(b"\x1f\x8b"):
        yield gzip.GzipFile(fileobj=raw)  # type: ignore[misc]
    elif head.startswith(b"\x28\xb5\x2f\xfd"):
        yield _zstd(raw)
    elif head.startswith(b"BZh"):
        yield bz2.BZ2File(raw)  # type: ignore[misc]
    elif head.startswith(b"\xfd7zXZ"):
        yield lzma.open(raw)  # type: ignore[misc]  # noqa: SIM115 (its bytes are the file's own)
    elif head.startswith(b"PK\x03\x04"):
        with zipfile.ZipFile(raw) as packed:
            names = [i for i in packed.infolist() if not i.is_dir() and not i.filename.startswith("__MACOSX")]
            if len(names) != 1:
                raise SlipstreamError(f"{len(names)} files are packed in it: unpack it, and import each")
            with packed.open(names[0]) as file:
                yield file  # type: ignore[misc]
    else:
        yield raw


class _Zstd:
    """Frames of zstd. The package's own reader takes a frame that is cut off for one that has ended."""

    def __init__(self, raw: BinaryIO, package: ModuleType) -> None:
        self.raw, self.package = raw, package
        self.frame: Any = None
        """The frame that has begun; None: between frames."""
        self.left = b""

    def read(self, _: int) -> bytes:
        made = b""
        while not made and (data := self.left or self.raw.read(1024)):  # a bomb unpacks 1 KiB to 32 MiB at most
            self.frame = self.frame or self.package.ZstdDecompressor(max_window_size=2**31).decompressobj()
            try:
                made = self.frame.decompress(data)
            except self.package.ZstdError as e:
                raise ValueError(str(e)) from e
            self.left = self.frame.unused_data
            self.frame = None if self.frame.eof else self.frame
        if not made and self.frame is not None:
            raise EOFError("it ends in the middle of a frame")
        return made


def _zstd(raw: BinaryIO) -> BinaryIO:
    try:
        return _Zstd(raw, importlib.import_module("zstandard"))  # type: ignore[return-value]
    except ModuleNotFoundError:
        try:
            return importlib.import_module("pyarrow").CompressedInputStream(raw, "zstd")  # type: ignore[no-any-return]
        except ModuleNotFoundError as e:
            raise StartError("a .zst file needs one of two packages: pip install zstandard") from e


def encoding_of(head: bytes) -> tuple[str, int]:
    """Encoding of a text by the first bytes of a line, and how many of them say it. JSON begins in ASCII."""
    for bom, name in BYTE_ORDER_MARKS:
        if head.startswith(bom):
            return name, len(bom)
    zeros = [byte == 0 for byte in head[:4]]
    if zeros[:4] in ([False, True, True, True], [True, True, True, False]):
        return ("utf-32-be" if zeros[0] else "utf-32-le"), 0
    if len(zeros) > 1 and zeros[0] != zeros[1]:
        return ("utf-16-be" if zeros[0] else "utf-16-le"), 0
    return "utf-8", 0


class _Recoder:
    """Lines of any encoding, as UTF-8: what one program began, another one may have gone on with in its own."""

    def __init__(self, log: Log, *, begins: bool) -> None:
        self.log, self.begins = log, begins
        self.rest, self.name = b"", "utf-8"
        self.decoder: codecs.IncrementalDecoder | None = None
        """None: the line is in UTF-8, or what is no text is refused by whoever reads it."""

    def feed(self, chunk: bytes, *, final: bool = False) -> Iterator[bytes]:
        raw = self.rest + chunk
        while raw:
            if self.begins:
                if len(raw) < 4 and not final:
                    break
                self.name, skip = encoding_of(raw[:4])
                self.decoder = None
                if self.name != "utf-8":
                    self.decoder = codecs.getincrementaldecoder(self.name)("surrogatepass")
                raw, self.begins = raw[skip:], False
            end = _line_end(raw, self.name)
            cut = len(raw) if final else len(raw) - len(raw) % 4
            part, raw = (raw[:cut], raw[cut:]) if end < 0 else (raw[:end], raw[end:])
            yield self._line(part, final=final or end >= 0)
            self.begins = end >= 0
            if end < 0:
                break
        self.rest = raw

    def _line(self, part: bytes, *, final: bool) -> bytes:
        if self.decoder is None:
            return part
        try:
            return self.decoder.decode(part, final=final).encode("utf-8", "surrogatepass")
        except UnicodeDecodeError as e:
            self.log.refuse(f"{self.log.path}", f"a line is not {self.name.upper()} to its end: {e.reason}")
            self.decoder.reset()
            return b"\n"


def _line_end(raw: bytes, name: str) -> int:
    """Where the first line ends; -1: it does not."""
    sign = "\n".encode(name)
    at = raw.find(sign)
    while at % len(sign) and at >= 0:
        at = raw.find(sign, at + 1)
    return at + len(sign) if at >= 0 else -1


_OTHER = re.compile(rb"[\x00\xfe\xff]")
"""UTF-8 has none of these bytes, and each other encoding has."""


def _utf8(chunks: Iterator[bytes], log: Log) -> Iterator[bytes]:
    recoder: _Recoder | None = None
    begins, first, held = True, True, b""
    for chunk in chunks:
        raw = held + chunk
        if recoder is None and _OTHER.search(raw):
            recoder = _Recoder(log, begins=begins)
        if recoder is not None:
            held = b""
            yield from recoder.feed(raw)
            continue
        begun = raw.rfind(b"\n") + 1
        if (not begun and not begins) or len(raw) - begun >= 4:
            begun = len(raw)  # the line that has begun is in UTF-8; fewer bytes do not tell
        raw, held = raw[:begun], raw[begun:]
        if raw:
            yield raw.removeprefix(codecs.BOM_UTF8) if first else raw
            begins, first = raw.endswith(b"\n"), False
    if recoder is not None:
        yield from recoder.feed(b"", final=True)
    elif held:
        yield held.removeprefix(codecs.BOM_UTF8) if first else held


ROW_LIST_FIELDS = (
    "data",
    "traces",
    "observations",
    "spans",
    "rows",
    "runs",
    "results",
    "conversations",
    "simulations",
    "items",
)
"""Names under which an object holds a file's rows."""
_DECODER = json.JSONDecoder()
_GAP = re.compile(r"[\s,\ufeff]*")
_SIGN = re.compile(r'[\[\]{}"]')
_IN_TEXT = re.compile(r'"|\\.', re.DOTALL)


class LogRow(NamedTuple):
    """``where``: file and line (in Parquet the row), from 1. ``share``: how much of the file is read, 0 … 1."""

    where: str
    value: dict[str, Value]
    share: float
    number: int = 0
    """Its place among the file's rows, from 1. Rows that cannot be read count, too."""

    @property
    def file(self) -> str:
        return self.where.rpartition(":")[0]


def read_rows(path: Path, report: Report) -> Iterator[LogRow]:
    """The rows of a file, one after the other. One that is no JSON object is told to the report, and left out."""
    with path.open("rb") as file:
        parquet = file.read(4) == b"PAR1" or path.suffix == ".parquet"
    yield from _parquet(path, report) if parquet else _json_rows(Log(path, report))


def _json_rows(log: Log) -> Iterator[LogRow]:
    rows = _Values(log).rows() if _holds_values(log) else _rows_of_lines(log)
    for number, row in enumerate(rows, start=1):
        yield row._replace(number=number + log.lost)


def _rows_of_lines(log: Log) -> Iterator[LogRow]:
    for line in log.lines():
        where = f"{log.path}:{line.number}"
        if line.text is None:
            log.refuse(where, f"the line has more than {MOST_ROW // MIB_BYTES} MiB")
            continue
        try:
            value = json.loads(line.text)
        except RecursionError:
            log.refuse(where, "its brackets are nested too deeply")
        except ValueError as e:  # broken UTF-8 among them
            log.refuse(where, f"not JSON: {e}")
        else:
            yield from unfolded(value, line.share, where, log)


def _holds_values(log: Log) -> bool:
    """Whether a file is one JSON value, or values over several lines, and not JSON lines."""
    quiet = Log(log.path, Report())
    start = next(quiet.chunks(), b"").lstrip()[:1]
    lines = quiet.lines()
    first = next(lines, None)
    if first is None:
        return False
    if first.text is None:
        return start == b"["
    return not _is_value(first.text) or (start == b"[" and next(lines, None) is None)


def _is_value(line: bytes) -> bool:
    """Whether a file's first line is a whole value, or looks like a broken one of JSON lines."""
    try:
        json.loads(line)
    except RecursionError:
        return True
    except ValueError:
        text = line.strip()
        return len(text) > 2 and text[:1] == b"{" and text[-1:] == b"}"
    return True


def unfolded(value: Value, share: float, where: str, log: Log) -> Iterator[LogRow]:
    """A row; of an object that holds a file's rows, each of them; of a list of messages, one conversation."""
    if isinstance(value, list):
        if value and all(_is_message(v) for v in value):
            yield LogRow(where, {"messages": value}, share)
            return
        for item in value:
            yield from unfolded(item, share, where, log)
    elif isinstance(value, dict):
        name = next((n for n in ROW_LIST_FIELDS if _holds_rows(value, n)), None)
        if name is None and (numbers := _row_numbers(value)):  # how pandas writes a table, if nothing else is asked
            for n in numbers:
                yield LogRow(where, {column: cells[n] for column, cells in value.items()}, share)
        elif name is None:
            yield LogRow(where, value, share)
        if name is None:
            return
        shared = {k: v for k, v in value.items() if k != name and k in ("info", "environment_info")}
        for item in value[name]:
            yield LogRow(where, {**shared, **item} if name == "simulations" else item, share)
    else:
        log.refuse(where, "an object is needed, with messages or with request and response")


def _is_message(value: Value) -> bool:
    return (
        isinstance(value, dict)
        and ("role" in value or "from" in value)
        and not {"messages", "conversations"} & set(value)
    )


def _row_numbers(value: dict[str, Value]) -> list[str]:
    """Of an object of columns, ``{"column": {"0": cell, "1": cell}}``: the names of its rows."""
    columns = list(value.values())
    first = columns[0] if columns else None
    if len(columns) < 2 or not isinstance(first, dict) or not all(str(n).isdecimal() for n in first):
        return []
    return list(first) if all(isinstance(c, dict) and c.keys() == first.keys() for c in columns) else []


def _holds_rows(value: dict[str, Value], name: str) -> bool:
    """Whether an object is no row itself but the frame around its rows."""
    items = value.get(name)
    if not isinstance(items, list) or not items or not all(isinstance(i, dict) for i in items):
        return False
    own = {
        "id",
        "trace",
        "messages",
        "trace_id",
        "traceId",
        "name",
        "context",
        "steps",
        "type",
        "trajectories",
        "call_list",
    }
    return not own & set(value) and not all(_is_message(i) for i in items)


class _Values:
    """JSON values that follow each other, in a list or not, over lines or not. One value and a chunk are held."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.chunks = log.chunks()
        self.text, self.at, self.line, self.rest = "", 0, 1, b""
        self.ended = False

    def more(self) -> bool:
        chunk = next(self.chunks, None)
        if chunk is None:
            self.ended = True
            return False
        self.line += self.text.count("\n", 0, self.at)
        raw = self.rest + chunk
        cut = len(raw) - _open_bytes(raw)
        self.rest = raw[cut:]
        try:
            read = raw[:cut].decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as e:  # half a character may be a name's, so nothing is guessed
            line = self.line + self.text.count("\n", self.at) + raw.count(b"\n", 0, e.start)
            self.log.refuse(
                f"{self.log.path}:{line}", f"byte {raw[e.start]:#04x} is no UTF-8; what follows is not read"
            )
            read, self.chunks = raw[: e.start].decode("utf-8", "surrogatepass"), iter(())
        self.text, self.at = self.text[self.at :] + read, 0
        return True

    def rows(self) -> Iterator[LogRow]:
        values = self._values()
        held = next(values, None)
        if held is None:
            return
        if _is_message(held[1]) and self.inside:
            messages = [held[1], *(value for _, value in values)]
            if all(_is_message(m) for m in messages):
                yield LogRow(f"{self.log.path}:{held[0]}", {"messages": messages}, 1.0)
                return
            values = iter([(held[0], m) for m in messages])
            held = next(values)
        while held is not None:
            where = f"{self.log.path}:{held[0]}"
            yield from unfolded(held[1], self.log.share, where, self.log)
            held = next(values, None)

    def _values(self) -> Iterator[tuple[int, Value]]:
        self.inside = False
        while True:
            self.at = _GAP.match(self.text, self.at).end()  # type: ignore[union-attr]
            if self.at < len(self.text) and not self.inside and self.text[self.at] == "[":
                self.inside, self.at = True, self.at + 1
                continue
            if self.at < len(self.text) and self.text[self.at] == "]":
                self.inside, self.at = False, self.at + 1
                continue
            if self.at >= len(self.text):
                if not self.more():
                    return
                continue
            line = self.line + self.text.count("\n", 0, self.at)
            where = f"{self.log.path}:{line}"
            try:
                value, self.at = _DECODER.raw_decode(self.text, self.at)
            except RecursionError:
                self._refuse(where, "its brackets are nested too deeply")
            except json.JSONDecodeError as e:
                long = len(self.text) - self.at > MOST_ROW
                cut_off = e.msg.startswith("Unterminated") or e.pos >= len(self.text) - 16
                if cut_off and not long and self.more():
                    continue
                self._refuse(
                    where, f"a value of more than {MOST_ROW // MIB_BYTES} MiB" if long else f"not JSON: {e.msg}"
                )
            else:
                yield line, value

    def _refuse(self, where: str, why: str) -> None:
        """Go on behind the value that stands here: where the brackets that it opens are closed."""
        ended = self.text[self.at] in "[{" and self._skip()
        self.log.refuse(where, why + ("" if ended else "; what follows is not read"))
        if not ended:
            self.text, self.at, self.rest, self.chunks = "", 0, b"", iter(())

    def _skip(self) -> bool:
        """To the end of a value that cannot be read; nothing of it is held. False: it has none."""
        depth, inside = 0, False
        while True:
            sign = (_IN_TEXT if inside else _SIGN).search(self.text, self.at)
            if sign is None:
                self.at = len(self.text) - self.text.endswith("\\", self.at)  # it belongs to the next letter
                if not self.more():
                    return False
                continue
            self.at = sign.end()
            if sign[0] == '"':
                inside = not inside
            elif len(sign[0]) == 1:
                depth += 1 if sign[0] in "[{" else -1
                if depth == 0:
                    return True


def _open_bytes(raw: bytes) -> int:
    """Bytes at the end that begin a character which is not there to its end."""
    for back in range(1, min(4, len(raw)) + 1):
        byte = raw[-back]
        if byte < 0x80:
            return 0
        if byte >= 0xC0:
            need = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if back < need else 0
    return 0


def _parquet(path: Path, report: Report) -> Iterator[LogRow]:
    try:
        pa, pq = importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as e:
        raise StartError(f"{e.name} is not installed: pip install 'slipstream[proxy]'") from e
    try:
        file = pq.ParquetFile(path)
        size, number = max(1, file.metadata.num_rows), 0
        for batch in file.iter_batches(256):
            for row in batch.to_pylist():
                number += 1
                yield LogRow(f"{path}:{number}", {k: _plain(v) for k, v in row.items()}, number / size, number)
    except (pa.ArrowException, OSError) as e:
        report.refuse(f"{path}", f"not Parquet: {e}")


def _plain(value: Value) -> Value:
    """A value of a table as JSON has it. Days and moments stay what they are."""
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value) if isinstance(value, time | UUID) else value
