# SPDX-License-Identifier: Apache-2.0
"""`rode data get` against a mirror on this machine: checks, resuming, and no network at all."""

import hashlib
import http.server
import io
import json
import struct
import subprocess
import tarfile
import threading
import zipfile

import pytest

FAILED, USAGE = 1, 2


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves files from memory; knows ranges, breaks off, or refuses ranges as told."""

    def do_GET(self):
        server = self.server
        server.asked.append((self.path, self.headers.get("Range")))
        body = server.files.get(self.path)
        if body is None:
            self.send_error(404)
            return
        start = 0
        wanted = self.headers.get("Range")
        if wanted and server.ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(body):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(body) - start))
        self.end_headers()
        end = len(body)
        if server.break_after:
            end, server.break_after = start + server.break_after, 0
        self.wfile.write(body[start:end])

    def log_message(self, *arguments):
        pass


@pytest.fixture
def mirror():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.files, server.asked, server.ranges, server.break_after = {}, [], True, 0
    server.url = f"http://127.0.0.1:{server.server_port}/base"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


def tokens(count):
    header = struct.pack("<3i", 20240520, 1, count) + bytes(1012)
    return header + struct.pack(f"<{count}H", *range(count))


def archive_tar():
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name in ("box/train.bin", "box/unwanted", "../escape"):
            data = name.encode() * 1000
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return packed.getvalue()


def archive_zip():
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as folder:
        folder.writestr("box/a.raw", "text " * 5000)
    return packed.getvalue()


FILES = {
    "one.bin": bytes(range(256)) * 500,
    "t.tar.gz": archive_tar(),
    "z.zip": archive_zip(),
    "web_train_000000.bin": tokens(50),
}


def manifest(tmp_path, **changes):
    """A manifest of three datasets; `changes` override fields of the first one's file."""
    one = {
        "name": "one.bin",
        "size": 128000,
        "sha256": hashlib.sha256(FILES["one.bin"]).hexdigest(),
    }
    one = {key: value for key, value in (one | changes).items() if value is not None}
    head = 'title = "t"\nlicence = "l"\nurl = "http://127.0.0.1:9/nowhere"\n'
    fields = "".join(f"{key} = {json.dumps(value)}\n" for key, value in one.items())
    text = f"[first]\n{head}[[first.files]]\n{fields}"
    text += f"[packed]\n{head}[[packed.files]]\nname = 't.tar.gz'\n"
    text += "unpack = [{from = 'box/train.bin', to = 'train.bin'}]\n"
    text += "[[packed.files]]\nname = 'z.zip'\nunpack = [{from = 'box/a.raw', to = 'a.txt'}]\n"
    text += f"[web]\n{head}tokens = {{tokenizer='gpt2', vocab_size=50257, end_of_text=50256}}\n"
    text += "[[web.files]]\nname = 'web_train_000000.bin'\n"
    path = tmp_path / "m.toml"
    path.write_text(text)
    return path


@pytest.fixture
def get(rode, mirror, tmp_path):
    if "no lab" in rode.call("tasks").stderr:
        pytest.skip("this build has no lab")
    for dataset, name in (
        *(("first", "one.bin"), ("packed", "t.tar.gz"), ("packed", "z.zip")),
        ("web", "web_train_000000.bin"),
    ):
        mirror.files[f"/base/{dataset}/{name}"] = FILES[name]

    def call(name, *more, out=None, **changes):
        done = rode.call(
            *("data", "get", name, "--manifest", manifest(tmp_path, **changes)),
            *("--mirror", mirror.url, "--out", out or tmp_path / "out", *more),
        )
        if "no libcurl" in done.stderr or "no libarchive" in done.stderr:
            pytest.skip("this build cannot download or unpack")
        return done

    return call


def test_downloads_checks_and_does_not_ask_twice(get, mirror, tmp_path):
    done = get("first", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["unverified"] == []
    assert (tmp_path / "out" / "one.bin").read_bytes() == FILES["one.bin"]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["dataset.json", "one.bin"]
    assert len(mirror.asked) == 1
    again = get("first")
    assert again.returncode == 0 and "already there" in again.stdout
    assert len(mirror.asked) == 1


def test_unknown_checksum_is_printed_and_marked(get):
    done = get("first", sha256=None, size=None)
    assert done.returncode == 0
    assert hashlib.sha256(FILES["one.bin"]).hexdigest() in done.stderr
    assert "not verified" in done.stderr and "unverified: one.bin" in done.stdout


@pytest.mark.parametrize("changes", [{"sha256": "0" * 64}, {"size": 127999}])
def test_wrong_checksum_or_size_is_refused_and_leaves_nothing(get, tmp_path, changes):
    done = get("first", **changes)
    assert done.returncode == FAILED and "expected" in done.stderr
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("ranges", [True, False], ids=["resumes", "starts again"])
def test_broken_download_resumes(get, mirror, tmp_path, ranges):
    mirror.break_after = 50_000
    done = get("first")
    assert done.returncode == FAILED and "to resume" in done.stderr
    assert (tmp_path / "out" / "one.bin.part").stat().st_size == 50_000
    mirror.ranges = ranges
    done = get("first")
    assert done.returncode == 0, done.stderr
    assert mirror.asked[1][1] == "bytes=50000-"
    assert len(mirror.asked) == (2 if ranges else 3)
    assert (tmp_path / "out" / "one.bin").read_bytes() == FILES["one.bin"]


def test_part_longer_than_the_file_starts_again(get, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "one.bin.part").write_bytes(b"x" * 130_000)
    assert get("first").returncode == 0
    assert (tmp_path / "out" / "one.bin").read_bytes() == FILES["one.bin"]


def test_unpacks_the_named_members_only(get, tmp_path):
    done = get("packed")
    assert done.returncode == 0, done.stderr
    names = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert names == ["a.txt", "dataset.json", "train.bin"]
    assert (tmp_path / "out" / "train.bin").read_bytes() == b"box/train.bin" * 1000
    assert (tmp_path / "out" / "a.txt").read_text() == "text " * 5000
    assert not (tmp_path / "escape").exists()


def test_token_shards_are_described(get, rode, tmp_path):
    assert get("web").returncode == 0
    info = json.loads(rode.call("data", "info", tmp_path / "out", "--json").stdout)
    assert info["vocab_size"] == 50257 and info["splits"]["train"]["tokens"] == 50


def test_missing_file_and_no_network_are_told_apart(get, rode, mirror, tmp_path):
    mirror.files.clear()
    done = get("first")
    assert done.returncode == FAILED and "status 404" in done.stderr
    assert list((tmp_path / "out").iterdir()) == []
    done = rode.call(
        "data", "get", "first", "--manifest", tmp_path / "m.toml", "--out", tmp_path / "o"
    )
    assert done.returncode == FAILED
    assert "cannot be reached" in done.stderr and "RODE_DATA_MIRROR" in done.stderr


def test_mirror_and_folder_come_from_the_environment(get, rode, mirror, tmp_path):
    manifest_path = manifest(tmp_path)
    done = subprocess.run(
        [rode.binary, "data", "get", "first", "--manifest", manifest_path],
        capture_output=True,
        text=True,
        env={"RODE_DATA_MIRROR": mirror.url + "/", "RODE_DATA_DIR": str(tmp_path / "all")},
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "all" / "first" / "one.bin").exists()


def test_unknown_names_and_the_list(rode, get):
    done = rode.call("data", "get", "cifar100")
    assert done.returncode == USAGE and "did you mean 'cifar-100'" in done.stderr
    listed = json.loads(rode.call("data", "get", "--json").stdout)["datasets"]
    assert {"cifar-100", "wikitext-103", "fineweb-sample"} <= {d["name"] for d in listed}
