"""Packages: directories and modules as archives, sent to other nodes and unpacked there.

A zip file depends on names, contents, executable bits and links alone: equal content has an equal hash. Links inside the directory stay
links; links to the outside are replaced by their target. Dangling links, sockets, pipes and devices are left out.
"""

from __future__ import annotations

import codecs
import hashlib
import io
import itertools
import lzma
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from zfabric.adapters.ignore_patterns import IgnorePatterns
from zfabric.exceptions import RuntimeEnvSetupError

IGNORE_FILE = ".zfabricignore"
"""The file that names what is not sent, in the syntax of ``.gitignore``."""
ignore_files: tuple[str, ...] = (IGNORE_FILE,)
"""The files that are read; ``as_ray`` adds Ray's."""
ALWAYS_IGNORED = (".git/", "__pycache__/", ".venv/", "venv/")
"""Patterns before the file's own, which can include them again."""
ARCHIVES = (".whl", ".zip")
FILES_MAX = 200_000
"""Each file costs a system call on every node."""
DEPTH_MAX = 128
"""Most nested directories: the kernel accepts paths of 4,096 bytes."""
LARGEST_SHOWN = 5
SHOWN_MAX = 80
IGNORE_BYTES_MAX = 2**17
"""Largest file of patterns: each costs time for each file."""

_ENCRYPTED = 0x1
_DAMAGED = (zipfile.BadZipFile, RuntimeError, ValueError, EOFError, OverflowError, struct.error, zlib.error, lzma.LZMAError)
"""Raised by ``zipfile`` for a damaged, encrypted or unknown archive (RuntimeError includes NotImplementedError)."""
_EPOCH = (1980, 1, 1, 0, 0, 0)


class Package(NamedTuple):
    """An archive, its hash, and the directory in it that goes on ``sys.path``: empty for the root."""

    archive: bytes
    digest: str
    entry: str


def pack(path: str, bytes_max: int, excludes: Iterable[str] = (), as_package: bool = False) -> Package:
    """Pack a directory, a module's file, a wheel or a zip file.

    With ``as_package``, a directory with ``__init__.py`` is imported by its name; otherwise it is a place of modules. ``bytes_max`` limits
    the sum of file sizes. Raises RuntimeEnvSetupError beyond a limit, or if a file cannot be read.
    """
    name = os.path.basename(path.rstrip("/")) or "root"
    try:
        if path.endswith(ARCHIVES) and os.path.isfile(path):
            return _whole_archive(path, name, bytes_max)
        if os.path.isdir(path):
            archive = _pack_entries(path, _chosen(path, name, excludes), bytes_max)
            is_package = as_package and os.path.exists(f"{path}/__init__.py")
            return _package(archive, "" if is_package else name)
        return _package(_pack_entries(path, [_Entry(name, path)], bytes_max), "")
    except OSError as error:
        raise RuntimeEnvSetupError(f"{path!r} cannot be sent to other nodes: {error}") from None


def _package(archive: bytes, entry: str) -> Package:
    return Package(archive, hashlib.sha256(archive).hexdigest()[:32], entry)


def _whole_archive(path: str, name: str, bytes_max: int) -> Package:
    archive, _ = read_regular(path, bytes_max)
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as content:
            members = content.infolist()
    except _DAMAGED as error:
        raise RuntimeEnvSetupError(f"{path!r} cannot be sent to other nodes: it is no archive, or damaged: {error}") from None
    _check_sizes(path, [(each.filename, each.file_size) for each in members], bytes_max)
    if any(each.flag_bits & _ENCRYPTED for each in members):
        raise RuntimeEnvSetupError(f"{path!r} cannot be sent to other nodes: it is encrypted")
    deep = next((each.filename for each in members if each.filename.count("/") > DEPTH_MAX), None)
    if deep is not None:
        raise RuntimeEnvSetupError(_too_deep(path, deep))
    return _package(archive, "")


class _Entry(NamedTuple):
    name: str
    """Path in the archive; a directory's ends with "/"."""
    path: str
    is_link: bool = False


def _chosen(root: str, top: str, excludes: Iterable[str]) -> Iterator[_Entry]:
    try:
        patterns = IgnorePatterns([*ALWAYS_IGNORED, *ignore_lines(root), *excludes])
    except ValueError as error:
        raise RuntimeEnvSetupError(f"{root!r} cannot be sent to other nodes: {IGNORE_FILE} or 'excludes': {error}") from None
    yield _Entry(f"{top}/", root)
    yield from _Walk(os.path.realpath(root), f"{top}/", patterns).entries(root, "", ())


def ignore_lines(directory: str) -> list[bytes]:
    """Return the lines of a directory's pattern files.

    Raises RuntimeEnvSetupError for an unusable file: the files that it excludes would be sent.
    """
    return [line for name in ignore_files for line in _lines_of(f"{directory}/{name}")]


def _lines_of(path: str) -> list[bytes]:
    if not os.path.lexists(path):
        return []
    data = read_regular(path, IGNORE_BYTES_MAX)[0].removeprefix(codecs.BOM_UTF8)
    if b"\0" in data:
        raise RuntimeEnvSetupError(f"{path!r} is no text of UTF-8: save it as such")
    return data.split(b"\n")


def read_regular(path: str, bytes_max: int) -> tuple[bytes, int]:
    """Return a regular file's content and mode. A file without a size, as in ``/proc``, is empty.

    Never waits for a writer. Raises OSError, or RuntimeEnvSetupError if the path is no regular file or too large.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise RuntimeEnvSetupError(f"{path!r} is not a regular file")
        if found.st_size > bytes_max:
            raise RuntimeEnvSetupError(f"{path!r} has {_shown(found.st_size)}, and at most {_shown(bytes_max)} are read")
        pieces: list[bytes] = []
        left = found.st_size
        while left and (data := os.read(descriptor, left)):
            pieces.append(data)
            left -= len(data)
    finally:
        os.close(descriptor)
    return b"".join(pieces), found.st_mode


class _Walk(NamedTuple):
    root: str
    prefix: str
    patterns: IgnorePatterns

    def entries(self, directory: str, relative: str, above: tuple[str, ...]) -> Iterator[_Entry]:
        """Yield entries of a directory at ``relative`` in the archive; ``above`` are the real paths of its parents."""
        if len(above) >= DEPTH_MAX:
            raise RuntimeEnvSetupError(f"{_too_deep(self.root, relative)}: name it in {IGNORE_FILE}")
        real = os.path.realpath(directory)
        if real in above:
            raise RuntimeEnvSetupError(f"{directory!r} is a link to a directory that it is in: name it in {IGNORE_FILE}")
        for found in sorted(os.scandir(directory), key=lambda each: each.name):
            name = f"{relative}{found.name}"
            if self.patterns.ignores(name, found.is_dir(follow_symlinks=False)):
                continue
            if found.is_symlink() and self._stays_inside(found.path, relative):
                yield _Entry(f"{self.prefix}{name}", found.path, is_link=True)
            elif found.is_dir():
                yield _Entry(f"{self.prefix}{name}/", found.path)
                yield from self.entries(found.path, f"{name}/", (*above, real))
            elif found.is_file():
                yield _Entry(f"{self.prefix}{name}", found.path)

    def _stays_inside(self, link: str, relative: str) -> bool:
        target = os.readlink(link)
        lexical, actual = os.path.normpath(f"{relative}{target}"), os.path.realpath(link)
        if os.path.isabs(target) or lexical == ".." or lexical.startswith("../"):
            return False
        return actual == self.root or actual.startswith(f"{self.root}/")


def _pack_entries(root: str, entries: Iterable[_Entry], bytes_max: int) -> bytes:
    entries = list(itertools.islice(entries, 2 * FILES_MAX))  # Links to directories with links may name endlessly many.
    if len(entries) == 2 * FILES_MAX:
        raise RuntimeEnvSetupError(
            f"{root!r} has over {2 * FILES_MAX:,} files and directories. Leave some out with a file {IGNORE_FILE} there"
        )
    files = [entry for entry in entries if not entry.name.endswith("/")]
    sizes = [(entry.name.partition("/")[2], 0 if entry.is_link else os.stat(entry.path).st_size) for entry in files]
    _check_sizes(root, sizes, bytes_max)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for entry in entries:
            bytes_max -= _add(archive, entry, bytes_max)
    return buffer.getvalue()


def _add(archive: zipfile.ZipFile, entry: _Entry, bytes_max: int) -> int:
    """Add a file. Return the bytes of its content, at most ``bytes_max``, since the file may have grown."""
    try:
        entry.name.encode()
    except UnicodeEncodeError:
        raise RuntimeEnvSetupError(f"{entry.path!r} cannot be sent to other nodes: its name is no text (it has no UTF-8)") from None
    info = zipfile.ZipInfo(entry.name, _EPOCH)
    info.compress_type = zipfile.ZIP_DEFLATED
    content = b""
    if entry.name.endswith("/"):
        mode = stat.S_IFDIR | 0o755
    elif entry.is_link:
        mode, content = stat.S_IFLNK | 0o777, os.fsencode(os.readlink(entry.path))
    else:
        content, mode = read_regular(entry.path, bytes_max)
        mode = stat.S_IFREG | (0o755 if mode & 0o100 else 0o644)
    info.external_attr = mode << 16
    archive.writestr(info, content, compresslevel=1)
    return 0 if entry.is_link else len(content)


def _too_deep(root: str, name: str) -> str:
    return f"{root} has directories more than {DEPTH_MAX} deep ({name[:SHOWN_MAX]}{'…' * (len(name) > SHOWN_MAX)}), which are not sent"


def _check_sizes(path: str, sizes: list[tuple[str, int]], bytes_max: int) -> None:
    total = sum(size for _, size in sizes)
    if total <= bytes_max and len(sizes) <= FILES_MAX:
        return
    largest = ", ".join(f"{name} ({_shown(size)})" for name, size in sorted(sizes, key=lambda each: -each[1])[:LARGEST_SHOWN])
    what = f"{_shown(total)} in {len(sizes):,} files"
    raise RuntimeEnvSetupError(
        f"{path!r} has {what}, and at most {_shown(bytes_max)} (config 'package_bytes') in {FILES_MAX:,} files are sent. "
        f"The largest: {largest}. Leave out what tasks do not need with a file {IGNORE_FILE} there, in the syntax of .gitignore"
    )


def _shown(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB" if size >= 2**20 else f"{size:,} bytes"


def unpack(archive: bytes | memoryview, directory: str) -> None:
    """Unpack into an empty directory. Raises RuntimeEnvSetupError if the archive is invalid or would write outside."""
    try:
        _unpack(archive, directory)
    except _DAMAGED as error:
        raise RuntimeEnvSetupError(f"an archive cannot be unpacked: {error}") from None


def _unpack(archive: bytes | memoryview, directory: str) -> None:
    root = os.path.realpath(directory)
    links: list[tuple[str, str]] = []
    with zipfile.ZipFile(io.BytesIO(archive)) as content:
        for info in content.infolist():
            path = f"{root}/{_checked(info.filename)}"
            mode = info.external_attr >> 16
            if info.is_dir():
                os.makedirs(path, exist_ok=True)
                continue
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if stat.S_ISLNK(mode):
                links.append((path, os.fsdecode(content.read(info))))
                continue
            with open(path, "xb") as file, content.open(info) as source:
                while data := source.read(2**20):
                    file.write(data)
            os.chmod(path, 0o755 if mode & 0o100 else 0o644)
    for path, target in links:  # After all files, so that none is written through a link.
        os.symlink(target, path)
    for path, _ in links:
        if not os.path.realpath(path).startswith(f"{root}/"):
            raise RuntimeEnvSetupError(f"an archive has a link to outside of its directory: {os.path.relpath(path, root)!r}")


def _checked(name: str) -> str:
    parts = name.removesuffix("/").split("/")
    if len(parts) > DEPTH_MAX + 1:
        raise RuntimeEnvSetupError(_too_deep("an archive", name))
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise RuntimeEnvSetupError(f"an archive has a path to outside of its directory: {name!r}")
    return "/".join(parts)
