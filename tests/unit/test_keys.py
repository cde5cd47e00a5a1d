"""Key files: made once, for their owner alone, and refused when others can read them or when they are damaged."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zfabric.adapters.curve import make_pair
from zfabric.cli.main import program
from zfabric.exceptions import ConfigError
from zfabric.runtime import cluster
from zfabric.runtime.cluster import KnownKeys, find_keys, make_keys
from zfabric.runtime.keys import FILE_BYTES_MAX, create_keys, create_server_pair, read_keys, read_server_pair
from zfabric.runtime.session import HEAD_SUFFIX


def test_what_was_made_is_read(tmp_path: Path) -> None:
    server = create_server_pair(f"{tmp_path}/server.key")
    keys = create_keys(f"{tmp_path}/cluster.key", server.public)
    assert read_server_pair(f"{tmp_path}/server.key") == server
    assert read_keys(f"{tmp_path}/cluster.key") == keys
    assert keys.server == server.public
    assert keys.node != server
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {"server.key": 0o600, "cluster.key": 0o600}


def test_files_are_for_their_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        create_server_pair(f"{tmp_path}/key")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o610, 0o602])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "key"
    pair = create_server_pair(str(path))
    keys = tmp_path / "keys"
    created = create_keys(str(keys), pair.public)
    for each, read in ((path, read_server_pair), (keys, read_keys)):
        each.chmod(mode)
        with pytest.raises(ConfigError, match=f"run chmod 600 {each}") as refused:
            read(str(each))
        assert pair.secret.decode() not in str(refused.value)
        assert created.node.secret.decode() not in str(refused.value)


def test_a_file_is_never_replaced(tmp_path: Path) -> None:
    path = f"{tmp_path}/key"
    pair = create_server_pair(path)
    with pytest.raises(ConfigError, match="exists"):
        create_keys(path, pair.public)
    assert read_server_pair(path) == pair
    assert os.listdir(tmp_path) == ["key"]


def test_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"cannot read the key file {tmp_path}/none: No such file"):
        read_keys(f"{tmp_path}/none")
    with pytest.raises(ConfigError, match=f"cannot write the key file {tmp_path}/none/key: No such file"):
        create_server_pair(f"{tmp_path}/none/key")
    with pytest.raises(ConfigError, match="no key file"):
        read_keys(str(tmp_path))


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(f"{tmp_path}/pipe", 0o600)
    with pytest.raises(ConfigError, match="no key file"):
        read_keys(f"{tmp_path}/pipe")


def test_a_key_file_of_one_kind_is_none_of_the_other(tmp_path: Path) -> None:
    server, keys = f"{tmp_path}/server", f"{tmp_path}/keys"
    create_keys(keys, create_server_pair(server).public)
    with pytest.raises(ConfigError, match="no key file"):
        read_keys(server)
    with pytest.raises(ConfigError, match="no key file"):
        read_server_pair(keys)


def test_a_secret_that_is_not_that_of_its_public_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    pair = create_server_pair(str(path))
    path.write_text(path.read_text().replace(pair.public.decode(), make_pair().public.decode()))
    with pytest.raises(ConfigError, match="damaged") as refused:
        read_server_pair(str(path))
    assert pair.secret.decode() not in str(refused.value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.one_of(st.binary(max_size=200), st.text("pairsevrole node#0aZ!\n ", max_size=300).map(str.encode)), st.integers(0, 200))
def test_damaged_files_are_refused(tmp_path: Path, data: bytes, cut: int) -> None:
    path = tmp_path / "key"
    path.unlink(missing_ok=True)
    pair = create_server_pair(str(path))
    whole = path.read_bytes()
    for content in (data, whole[: len(whole) - 2 - cut % 82], whole[:-30] + data[:29], whole + b"x" * FILE_BYTES_MAX, b"pair " + b"#" * 40):
        path.write_bytes(content)
        for read in (read_keys, read_server_pair):
            with pytest.raises(ConfigError) as refused:
                read(str(path))
            assert pair.secret.decode() not in str(refused.value)


def test_a_revoked_file_has_another_pair_to_join_with_and_the_same_head(tmp_path: Path) -> None:
    path = str(tmp_path / "cluster.key")
    make_keys(path)
    before = read_keys(path)
    ran = CliRunner().invoke(program, ["keys", "revoke", path])
    assert ran.exit_code == 0, ran.output
    assert "no head of these keys runs here" in ran.output
    after = read_keys(path)
    assert after.server == before.server == read_server_pair(path + HEAD_SUFFIX).public
    assert after.node != before.node
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert before.node.secret.decode() not in ran.output + Path(path).read_text()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["cluster.key", "cluster.key.head"]
    os.unlink(path + HEAD_SUFFIX)
    refused = CliRunner().invoke(program, ["keys", "revoke", path])
    assert "on the head" in str(refused.exception)
    assert read_keys(path) == after


def test_keys_are_known_by_names_and_revoked_by_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert "There are no keys here" in CliRunner().invoke(program, ["keys", "list"]).output
    for name in ("cluster", "second"):
        make_keys(f"{tmp_path}/zfabric/{name}.key")
    before = read_keys(f"{tmp_path}/zfabric/second.key")
    os.unlink(f"{tmp_path}/zfabric/second.key")
    listed = json.loads(CliRunner().invoke(program, ["keys", "list", "--json"]).output)
    assert [(each["name"], each["exists"], len(each["keys"])) for each in listed] == [("cluster", True, 2), ("second", False, 0)]
    assert "(removed)" in CliRunner().invoke(program, ["keys", "list"]).output
    assert CliRunner().invoke(program, ["keys", "revoke", "second"]).exit_code == 0
    after = read_keys(f"{tmp_path}/zfabric/second.key")
    assert (after.server, after.node == before.node) == (before.server, False)
    one = CliRunner().invoke(program, ["keys", "list", "second", "--json"])
    assert json.loads(one.output)["file"] == f"{tmp_path}/zfabric/second.key"
    assert "on the head" in str(CliRunner().invoke(program, ["keys", "revoke", "third"]).exception)


def test_keys_of_one_name_are_told_apart_by_their_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    several = [KnownKeys(f"{tmp_path}/{place}/same.key", ()) for place in ("a", "b")]
    monkeypatch.setattr(cluster, "known_keys", lambda: several)
    with pytest.raises(ConfigError, match=r"name of several keys; name one by its path: .*/a/same\.key, .*/b/same\.key"):
        find_keys("same")
    assert find_keys(several[1].path) is several[1]
