"""Packing directories for other nodes, unpacking them safely, and the directories that a node keeps for its workers."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import zipfile
from pathlib import Path

import pytest
from faults import PATIENCE
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import zfabric as zf
from zfabric.adapters.cached_directories import use
from zfabric.adapters.ignore_patterns import IgnorePatterns
from zfabric.adapters.packages import DEPTH_MAX, IGNORE_FILE, ignore_lines, pack, unpack
from zfabric.api.environments import environment_of

LIMIT = 10**7
PATHS = [
    *("a", "b", "a.log", "d/a", "d/b.log", "d/e/a", "d/e/c", "x/d/a", "x/a b", "x/[y]", "ab/cd", "d e", "a/b/a/b/a", "x/aab", "B-", "x/9]"),
    *("\u00e9", "d/\u00e9\u00e9", "d/\udcff", "#a", "!a", "x/a\\b", "aXb/c", "a]"),
]
PATHS = [path for path in PATHS if not path.startswith("a/")] + ["aa/b/a/b/a"]
"""Files; "a" is one, so no directory is called so."""
PIECES = st.sampled_from(
    [
        *(
            "a",
            "b",
            "c",
            "d",
            "e",
            "x",
            "aa",
            "*",
            "**",
            "***",
            "?",
            "/",
            "**/",
            "/**",
            "/**/",
            "!",
            "#",
            "\\",
            "[",
            "]",
            "-",
            ".log",
            " ",
            "\r",
        ),
        *("[ab]", "[!a]", "[^b]", "[a-c]", "[c-a]", "[c-ab]", "[]a]", "[a-]", "[-a]", "[!]a]", "[a/b]", "[\\]]", "[a-\\c]", "[[:alpha:]]"),
        *("[[:nothing:]]", "[[:digit:]a]", "[![:upper:]]", "[[:a]", "\u00e9", "[\u00e9]"),
    ]
)


@pytest.fixture(scope="module")
def checkout() -> str:
    if shutil.which("git") is None:
        pytest.skip("git is needed to compare with")
    place = tempfile.mkdtemp(prefix="patterns-")
    subprocess.run(["git", "init", "-q", place], check=True)
    for path in PATHS:
        os.makedirs(os.path.dirname(f"{place}/{path}"), exist_ok=True)
        Path(place, path).touch()
    return place


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    lines=st.lists(st.lists(PIECES, min_size=1, max_size=5).map("".join), min_size=1, max_size=12),
    ending=st.sampled_from(["\n", "\r\n"]),
    mark=st.sampled_from(["", "\ufeff"]),
)
@example(lines=["*", "!d/", "!d/e/", "!a"], ending="\n", mark="")
@example(lines=["/a", "**/e", "x/**", "a\\ b"], ending="\n", mark="\ufeff")
@example(lines=["aa**/a", "x/a**", "/d**"], ending="\n", mark="")
@example(lines=["d/**/a", "\\!x", "[!b].log", "d e  "], ending="\r\n", mark="")
def test_patterns_mean_what_they_mean_in_git(checkout: str, lines: list[str], ending: str, mark: str) -> None:
    content = mark + "".join(f"{line}{ending}" for line in lines)
    for name in (".gitignore", IGNORE_FILE):
        Path(checkout, name).write_bytes(content.encode())
    command = ["git", "-C", checkout, "-c", "core.excludesFile=/dev/null", "check-ignore", "--no-index", "-z", "--stdin"]
    asked = b"\0".join(map(os.fsencode, PATHS))
    found = subprocess.run(command, input=asked, check=False, capture_output=True)
    assert found.returncode in (0, 1), found.stderr
    ignored = set(map(os.fsdecode, found.stdout.split(b"\0")))
    patterns = IgnorePatterns(ignore_lines(checkout))

    def is_sent(path: str) -> bool:
        parts = path.split("/")
        above = ["/".join(parts[:length]) for length in range(1, len(parts))]
        return not any(patterns.ignores(each, True) for each in above) and not patterns.ignores(path, False)

    assert [path for path in PATHS if not is_sent(path)] == [path for path in PATHS if path in ignored]


def unpacked(tmp_path: Path, archive: bytes, name: str = "there") -> Path:
    place = tmp_path / name
    place.mkdir()
    unpack(archive, str(place))
    return place


def tree(place: Path) -> dict[str, str]:
    return {
        str(path.relative_to(place)): f"-> {os.readlink(path)}" if path.is_symlink() else path.read_text() if path.is_file() else "/"
        for path in sorted(place.rglob("*"))
    }


def test_what_is_sent_depends_on_content_alone(tmp_path: Path) -> None:
    for place in (tmp_path / "one" / "p", tmp_path / "two" / "p"):
        (place / "empty").mkdir(parents=True)
        (place / "run.sh").write_text("exit")
        (place / "run.sh").chmod(0o4755)
        (place / "a.py").write_text("1")
        (place / "__pycache__").mkdir()
        (place / "__pycache__" / "a.pyc").write_text(str(place))
    os.utime(tmp_path / "two" / "p" / "a.py", (1, 1))
    one, two = (pack(str(tmp_path / name / "p"), LIMIT) for name in ("one", "two"))
    assert one == two
    there = unpacked(tmp_path, one.archive)
    assert tree(there) == {"p": "/", "p/a.py": "1", "p/empty": "/", "p/run.sh": "exit"}
    assert ((there / "p" / "run.sh").stat().st_mode & 0o7777, (there / "p" / "a.py").stat().st_mode & 0o7777) == (0o755, 0o644)
    assert pack(str(tmp_path / "two" / "p"), LIMIT, excludes=["a.py"]).digest != one.digest


def test_links_and_special_files(tmp_path: Path) -> None:
    place, outside = tmp_path / "p", tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "x.txt").write_text("x")
    (outside / "y.txt").write_text("y")
    (place / "d").mkdir(parents=True)
    (place / "a.txt").write_text("a")
    os.symlink("a.txt", place / "inside")
    os.symlink("../a.txt", place / "d" / "up")
    os.symlink("../outside/y.txt", place / "file")
    os.symlink(outside, place / "directory")
    os.symlink(place / "a.txt", place / "absolute")
    os.symlink("nowhere", place / "broken")
    os.symlink("/nowhere", place / "lost")
    os.mkfifo(place / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(place / "socket"))
    assert tree(unpacked(tmp_path, pack(str(place), LIMIT).archive)) == {
        "p": "/",
        "p/a.txt": "a",
        "p/absolute": "a",
        "p/broken": "-> nowhere",
        "p/d": "/",
        "p/d/up": "-> ../a.txt",
        "p/directory": "/",
        "p/directory/deep": "/",
        "p/directory/deep/x.txt": "x",
        "p/directory/y.txt": "y",
        "p/file": "y",
        "p/inside": "-> a.txt",
    }
    os.symlink(place, outside / "round")
    with pytest.raises(zf.RuntimeEnvSetupError, match="a link to a directory that it is in"):
        pack(str(place), LIMIT)


def test_what_cannot_be_sent_is_refused(tmp_path: Path) -> None:
    Path(os.fsdecode(bytes(tmp_path) + b"/\xff")).touch()
    with pytest.raises(zf.RuntimeEnvSetupError, match="no UTF-8"):
        pack(str(tmp_path), LIMIT)
    (tmp_path / "x.whl").write_text("no archive")
    with pytest.raises(zf.RuntimeEnvSetupError, match="cannot be sent"):
        pack(str(tmp_path / "x.whl"), LIMIT)
    with zipfile.ZipFile(tmp_path / "big.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(LIMIT + 1))
    with pytest.raises(zf.RuntimeEnvSetupError, match=r"zeros \(9\.5 MiB\)"):
        pack(str(tmp_path / "big.whl"), LIMIT)


@pytest.mark.parametrize(
    "members",
    [
        {"../x": ""},
        {"/x": ""},
        {"a/../../x": ""},
        {"a//x": ""},
        {"link": "-> /etc"},
        {"link": "-> .."},
        {"d/": "", "a": "-> d/..", "link": "-> a/../x"},
        {"link": "-> ../there2", "link/x": "written through a link"},
    ],
)
def test_nothing_is_unpacked_outside(tmp_path: Path, members: dict[str, str]) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (0o120777 if content.startswith("-> ") else 0o40755 if name.endswith("/") else 0o100644) << 16
            archive.writestr(info, content.removeprefix("-> "))
    (tmp_path / "there2").mkdir()
    with pytest.raises((zf.RuntimeEnvSetupError, FileExistsError)):
        unpacked(tmp_path, buffer.getvalue())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["there", "there2"]
    assert not list((tmp_path / "there2").iterdir())


def test_directories_are_made_once_and_removed_when_unused(tmp_path: Path) -> None:
    made: list[str] = []

    def make(path: str) -> None:
        made.append(path.split("/")[-2])
        Path(path, "x").write_bytes(bytes(100_000))

    root = str(tmp_path)
    first = use(root, "first", make, 250_000)
    again = use(root, "first", make, 250_000)
    assert (first.path, made) == (again.path, ["first"])
    os.close(use(root, "second", make, 250_000).lock)
    os.utime(f"{root}/first/ready", (1, 1))
    os.close(use(root, "third", make, 250_000).lock)
    assert sorted(os.listdir(root)) == ["first", "third"], "the first is older, and in use"
    os.close(first.lock)
    os.close(again.lock)
    os.close(use(root, "fourth", make, 1).lock)
    assert sorted(os.listdir(root)) == ["fourth"]

    def fail(path: str) -> None:
        Path(path, "half").touch()
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        use(root, "fifth", fail, 10**9)
    found = use(root, "fifth", make, 10**9)
    assert os.listdir(found.path) == ["x"]
    os.close(found.lock)


def test_a_directory_is_made_by_one_process_at_a_time(tmp_path: Path) -> None:
    def child() -> None:
        def make(path: str) -> None:
            with open(tmp_path / "made", "a") as file:
                file.write(f"{os.getpid()}\n")
            Path(path, "x").touch()

        os._exit(0 if os.listdir(use(f"{tmp_path}/root", "one", make, 10**9).path) == ["x"] else 1)

    pids = []
    for _ in range(8):
        pids.append(os.fork())
        if pids[-1] == 0:
            child()
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 8
    assert len((tmp_path / "made").read_text().splitlines()) == 1


def test_who_comes_while_another_one_makes_a_directory_waits_no_longer_than_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not until that one, which uses it, ends."""
    users: list[int] = []
    exists = os.path.exists

    def another_comes(path: str) -> bool:
        found = exists(path)
        if path.endswith("ready") and not users:  # Between this look and what follows, another process makes the directory.
            monkeypatch.setattr(os.path, "exists", exists)
            users.append(use(str(tmp_path), "one", lambda path: None, 10**9).lock)
        return found

    monkeypatch.setattr(os.path, "exists", another_comes)
    late = threading.Thread(target=lambda: users.append(use(str(tmp_path), "one", lambda path: None, 10**9).lock), daemon=True)
    late.start()
    late.join(PATIENCE)
    assert len(users) == 2
    for lock in users:
        os.close(lock)


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(zf.RuntimeEnvSetupError, match="cannot be unpacked"):
        unpacked(tmp_path, b"no archive")


def test_directories_inside_each_other_have_a_limit(tmp_path: Path) -> None:
    deep = Path("p", *["d"] * (DEPTH_MAX - 1))
    (tmp_path / deep).mkdir(parents=True)
    (tmp_path / deep / "file").touch()
    archive = pack(str(tmp_path / "p"), LIMIT).archive
    assert (unpacked(tmp_path, archive) / deep / "file").exists()
    (tmp_path / deep / "d").mkdir()
    with pytest.raises(zf.RuntimeEnvSetupError, match=f"more than {DEPTH_MAX} deep.*name it in {IGNORE_FILE}"):
        pack(str(tmp_path / "p"), LIMIT)
    for depth in (DEPTH_MAX + 1, 1200, 30_000):
        path = tmp_path / f"{depth}.zip"
        with zipfile.ZipFile(path, "w") as content:
            content.writestr("d/" * depth + "file", "")
        with pytest.raises(zf.RuntimeEnvSetupError, match=f"an archive has directories more than {DEPTH_MAX} deep"):
            unpacked(tmp_path, path.read_bytes(), str(depth))
        with pytest.raises(zf.RuntimeEnvSetupError, match=f"{depth}.zip has directories more than {DEPTH_MAX} deep"):
            pack(str(path), LIMIT)


def test_damaged_and_encrypted_archives_are_typed_errors(tmp_path: Path) -> None:
    source = io.BytesIO()
    with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.py", "x = 1\n" * 100)
        archive.writestr("b.py", os.urandom(200))
    whole = source.getvalue()
    encrypted = bytearray(whole)
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = 0
        while (start := whole.find(signature, start)) >= 0:
            encrypted[start + offset] |= 1
            start += 1
    Path(tmp_path, "locked.zip").write_bytes(encrypted)
    with pytest.raises(zf.RuntimeEnvSetupError, match="it is encrypted"):
        pack(str(tmp_path / "locked.zip"), LIMIT)
    with pytest.raises(zf.RuntimeEnvSetupError, match="encrypted"):
        unpacked(tmp_path, bytes(encrypted))
    for index in range(len(whole)):  # Each byte of the archive, damaged in a way that sets and clears bits.
        damaged = whole[:index] + bytes([whole[index] ^ 0x5A]) + whole[index + 1 :]
        with contextlib.suppress(zf.RuntimeEnvSetupError, OSError):
            unpacked(tmp_path, damaged, f"damaged-{index}")
    for length in range(len(whole)):
        with pytest.raises(zf.RuntimeEnvSetupError):
            unpacked(tmp_path, whole[:length], f"cut-{length}")


@pytest.mark.parametrize("kind", ["pipe", "endless", "lost", "directory", "large", "utf-16", "long"])
def test_a_file_of_patterns_that_cannot_be_used_is_an_error(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "p"
    place.mkdir()
    path = place / IGNORE_FILE
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "lost":
        path.symlink_to("nowhere")
    elif kind == "directory":
        path.mkdir()
    else:
        content = {"large": b"x\n" * 2**20, "utf-16": "secret\n".encode("utf-16"), "long": b"*a" * 4096}
        path.write_bytes(content[kind])
    with pytest.raises(zf.RuntimeEnvSetupError, match=IGNORE_FILE):
        pack(str(place), LIMIT)


@pytest.mark.parametrize("name", [IGNORE_FILE, "data"])
def test_files_without_a_size_are_not_read(tmp_path: Path, name: str) -> None:
    """Reading one of ``/proc`` may wait for ever (``kmsg``), or take what another program waits for."""
    place = tmp_path / "p"
    place.mkdir()
    (place / name).symlink_to("/proc/self/environ" if os.access("/proc/self/environ", os.R_OK) else "/proc/kmsg")
    assert tree(unpacked(tmp_path, pack(str(place), LIMIT).archive)) == {"p": "/", f"p/{name}": ""}


def test_a_file_that_becomes_a_pipe_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "a.py"
    module.write_text("x = 1")
    stat = os.stat

    def replaced(path: str) -> os.stat_result:
        found = stat(path)
        if str(path) == str(module):
            module.unlink()
            os.mkfifo(module)
        return found

    monkeypatch.setattr(os, "stat", replaced)
    with pytest.raises(zf.RuntimeEnvSetupError, match="not a regular file"):
        pack(str(module), LIMIT)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a" * 25, "a" * 250 + "b"),
        ("**/*a*a*b" * 400, "/".join(["a" * 20] * 200)),
        ("**/a" * 1000 + "/b", "/".join("a" * 2000)),
        ("/".join(["*a*a*a"] * 500), "/".join(["a" * 7] * 500) + "b"),
        ("**/*" * 1000 + "/b", "/".join("a" * 2000)),
    ],
)
def test_patterns_take_time_in_proportion(pattern: str, path: str) -> None:
    """Any of these took years; the test would not end."""
    assert not IgnorePatterns([pattern]).ignores(path, False)


def test_a_file_of_requirements_is_read_as_pip_would_and_no_pipe_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "requirements.txt"
    path.write_bytes("\ufeffpolars\r\n# no\r\ncloudpickle \\\r\n  >= 3\r\n".encode())
    assert environment_of({"pip": str(path)}).pip[0] == ("polars", "cloudpickle    >= 3")
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(zf.OptionError, match="not a regular file"):
        environment_of({"pip": path})
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(zf.OptionError, match="not a regular file"):
        environment_of({"pip": path})
