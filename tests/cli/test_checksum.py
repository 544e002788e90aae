# SPDX-License-Identifier: Apache-2.0
"""Checksums in files: as docs/files.md describes them, and what `rode step` does with damage."""

import ctypes
import json
import random
import struct

import pytest
from safetensors import safe_open

from harness import tensors_of
from problems import problem

FAILED = 1
TAG = b"rode-xxh3-128:"
DIGITS = 32
SEED = 20240520


class Hash128(ctypes.Structure):
    _fields_ = (("low", ctypes.c_uint64), ("high", ctypes.c_uint64))


@pytest.fixture(scope="module")
def xxh3():
    """XXH3-128 of xxHash's own library, with which the header that rode compiles in is packaged."""
    try:
        library = ctypes.CDLL("libxxhash.so.0")
    except OSError as error:
        pytest.skip(f"no xxHash library to compare with: {error}")
    library.XXH3_128bits.restype = Hash128
    library.XXH3_128bits.argtypes = (ctypes.c_char_p, ctypes.c_size_t)

    def digits(data):
        found = library.XXH3_128bits(bytes(data), len(data))
        return f"{found.high:016x}{found.low:016x}"

    return digits


@pytest.fixture
def stepped(rode):
    """An output of `rode step`."""
    done, target = rode.try_step("rode", tensors_of({"w": problem((8, 6))}))
    assert done.returncode == 0, done.stderr
    return target


def test_the_checksum_is_where_and_what_the_documentation_says(stepped, xxh3):
    data = bytearray(stepped.read_bytes())
    header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    key, value = next(iter(header["__metadata__"].items()))
    at = data.index(TAG) + len(TAG)
    digits = data[at : at + DIGITS].decode()
    assert (key, value) == ("rode.checksum", TAG.decode() + digits)
    data[at : at + DIGITS] = b"0" * DIGITS
    assert xxh3(data) == digits


def test_other_readers_open_the_file(stepped):
    with safe_open(stepped, framework="pt") as file:
        assert file.get_tensor("param.w").shape == (8, 6)
        assert file.metadata()["rode.step"] == "1"


def test_a_damaged_input_is_refused_with_file_expectation_and_remedy(rode, stepped):
    good = stepped.read_bytes()
    header = 8 + struct.unpack("<Q", good[:8])[0]
    target = rode.scratch / "kept.safetensors"
    target.write_bytes(b"as it was")
    draw = random.Random(SEED)
    print("seed", SEED)
    name = good.index(b"momentum")
    places = [name, draw.randrange(header, len(good)), draw.randrange(header, len(good))]
    for place in places:
        bad = bytearray(good)
        bad[place] ^= 1 << draw.randrange(6)
        stepped.write_bytes(bad)
        done = rode.call(*rode.step_arguments("rode", stepped, target))
        assert done.returncode == FAILED, (place, done.stderr)
        for word in (str(stepped), "checksum", "expected", "restore it from a copy"):
            assert word in done.stderr, (place, done.stderr)
        assert target.read_bytes() == b"as it was"


def test_a_whole_output_is_read_without_a_note(rode, stepped):
    done = rode.call(*rode.step_arguments("rode", stepped, stepped), "--on-missing", "skip")
    assert done.returncode == 0 and "checksum" not in done.stderr, done.stderr
