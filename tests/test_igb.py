import gzip
import tracemalloc
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gfunk.errors import InputError
from gfunk.files.igb import HEADER_BYTES, TYPES, Igb, read_igb, write_igb

ORDERS = {"<": "little_endian", ">": "big_endian"}


def igb_bytes(header: str, body: bytes) -> bytes:
    return header.encode("latin-1").ljust(HEADER_BYTES - 1, b" ") + b"\f" + body


def read_bytes(folder: Path, content: bytes) -> Igb:
    (folder / "v.igb").write_bytes(content)
    return read_igb(folder / "v.igb")


def a_film(n_frames: int = 4, n_nodes: int = 5, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(n_frames, n_nodes)).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n_frames", [1, 2, 7])
def test_what_is_written_is_read_back_to_the_last_bit(tmp_path: Path, dtype: type, n_frames: int):
    values, times_ms = a_film(n_frames, dtype=dtype), 3.0 + 0.25 * np.arange(n_frames)
    write_igb(tmp_path / "v.igb", values, times_ms, unit="mV/ms")
    film = read_igb(tmp_path / "v.igb")
    np.testing.assert_array_equal(film.values, values)
    assert film.values.dtype == dtype
    np.testing.assert_allclose(film.times_ms, times_ms, rtol=1e-15)
    assert (film.unit, film.is_truncated, film.remarks) == ("mV/ms", False, ())


def test_a_written_header_is_of_1024_bytes_short_lines_and_a_form_feed(tmp_path: Path):
    write_igb(tmp_path / "v.igb", a_film(3, 10**6 + 7, np.float64), 1e5 / 3 + np.arange(3) / 7, unit="x" * 40)
    head = (tmp_path / "v.igb").read_bytes()[:HEADER_BYTES]
    assert head[-1:] == b"\f"
    assert max(map(len, head.split(b"\n"))) < 80
    assert head.count(b"\f") == 1


@pytest.mark.parametrize("name", sorted(TYPES))
@pytest.mark.parametrize("order", ORDERS)
def test_every_type_is_read_in_either_byte_order(tmp_path: Path, name: str, order: str):
    dtype, n_numbers = TYPES[name]
    raw = np.arange(3 * 5 * n_numbers).astype(order + dtype)
    film = read_bytes(tmp_path, igb_bytes(f"x:5 y:1 z:1 t:3 type:{name} systeme:{ORDERS[order]} inc_t:2", raw.tobytes()))
    shape = (3, 5) if n_numbers == 1 else (3, 5, n_numbers)
    np.testing.assert_array_equal(film.values, np.arange(raw.size).reshape(shape))
    assert film.times_ms.tolist() == [0, 2, 4]
    assert film.remarks == ()


def test_a_long_of_four_bytes_is_known_by_the_size_of_the_file(tmp_path: Path):
    film = read_bytes(
        tmp_path, igb_bytes("x:5 y:1 t:3 type:long systeme:big_endian inc_t:1", np.arange(15, dtype=">i4").tobytes())
    )
    np.testing.assert_array_equal(film.values, np.arange(15).reshape(3, 5))


def test_values_are_divided_by_facteur_then_moved_by_zero(tmp_path: Path):
    header = "x:3 y:1 t:1 type:short systeme:little_endian facteur:10 zero:-80"
    film = read_bytes(tmp_path, igb_bytes(header, np.array([0, 5, -20], dtype="<i2").tobytes()))
    np.testing.assert_array_equal(film.values, [[-80, -79.5, -82]])


@pytest.mark.parametrize(
    ("header", "times_ms"),
    [
        ("inc_t:0.5", [0, 0.5, 1]),
        ("inc_t:0.5 dim_t:99", [0, 0.5, 1]),
        ("dim_t:4 org_t:1", [1, 3, 5]),
        ("inc_t:0.5 unites_t:s", [0, 500, 1000]),
        ("inc_t:500 unites_t:us", [0, 0.5, 1]),
        ("\r\n# inc_t:3\r\ninc_t:2\0\0\r\n", [0, 2, 4]),
    ],
)
def test_times_come_from_the_step_or_else_the_duration(tmp_path: Path, header: str, times_ms: list[float]):
    film = read_bytes(tmp_path, igb_bytes(f"x:2 y:1 t:3 type:byte systeme:little_endian {header}", bytes(6)))
    np.testing.assert_allclose(film.times_ms, times_ms, rtol=1e-15)
    assert film.remarks == ()


def test_what_a_header_leaves_out_is_assumed_aloud(tmp_path: Path):
    film = read_bytes(tmp_path, igb_bytes("x:2 t:3 type:byte unites_t:weeks", bytes(6)))
    assert film.times_ms.tolist() == [0, 1, 2]
    assert [word in " ".join(film.remarks) for word in ("byte order", "time step", "weeks")] == [True] * 3


@given(st.integers(HEADER_BYTES + 5 * 4, HEADER_BYTES + 4 * 5 * 4 - 1), st.booleans())
def test_a_killed_run_gives_its_whole_frames(n_bytes: int, is_zipped: bool):
    values = a_film()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "v.igb"
        write_igb(path, values, np.arange(4.0))
        content = path.read_bytes()[:n_bytes]
        film = read_bytes(Path(folder), gzip.compress(content) if is_zipped else content)
    n_frames = (n_bytes - HEADER_BYTES) // 20
    assert film.is_truncated
    assert f"{n_frames} whole frames of the 4" in film.remarks[0]
    assert len(film.times_ms) == n_frames
    np.testing.assert_array_equal(film.values, values[:n_frames])


def test_a_gzipped_file_is_the_same_film_also_in_pieces_or_cut_short(tmp_path: Path):
    values = a_film(50, 400)
    write_igb(tmp_path / "v.igb", values, np.arange(50.0))
    content = (tmp_path / "v.igb").read_bytes()
    for packed in (gzip.compress(content), gzip.compress(content[:3000]) + gzip.compress(content[3000:])):
        film = read_bytes(tmp_path, packed)
        np.testing.assert_array_equal(film.values, values)
        assert not film.is_truncated
    film = read_bytes(tmp_path, gzip.compress(content)[:40_000])
    assert film.is_truncated
    assert 10 < len(film.values) < 50
    np.testing.assert_array_equal(film.values, values[: len(film.values)])


def test_bytes_beyond_what_the_header_says_are_left_out_aloud(tmp_path: Path):
    for pack in (bytes, gzip.compress):
        film = read_bytes(tmp_path, pack(igb_bytes("x:2 t:2 type:byte systeme:little_endian inc_t:1", bytes(9))))
        assert film.values.shape == (2, 2)
        assert "longer than its header" in film.remarks[0]


def peak_bytes(folder: Path, content: bytes) -> int:
    tracemalloc.start()
    try:
        read_bytes(folder, content)
    except InputError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


@pytest.mark.parametrize(
    "header", ["x:1000000000 t:1", "x:10 t:1000000000", "x:999999999999999 y:999999999999999 t:9999999"]
)
def test_claims_of_a_small_file_cost_nothing(tmp_path: Path, header: str):
    content = igb_bytes(f"{header} type:double systeme:little_endian inc_t:1", bytes(2000))
    assert peak_bytes(tmp_path, content) < 200_000
    assert peak_bytes(tmp_path, gzip.compress(content)) < 200_000


def test_a_bomb_is_not_unpacked_beyond_its_claim_nor_its_claim_believed(tmp_path: Path):
    body = bytes(80 * 2**20)
    modest = gzip.compress(igb_bytes("x:10 t:10 type:byte systeme:little_endian inc_t:1", body), 6)
    assert peak_bytes(tmp_path, modest) < 2 * 2**20
    bold = gzip.compress(igb_bytes(f"x:{len(body)} t:1 type:byte systeme:little_endian", body), 6)
    with pytest.raises(InputError, match="gunzip it"):
        read_bytes(tmp_path, bold)
    assert peak_bytes(tmp_path, bold) < 2 * 2**20


GOOD = "x:5 y:1 z:1 t:2 type:float systeme:little_endian inc_t:1"


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ("y:1 t:2 type:float", "not an .igb"),
        ("x:5 t:2", "not an .igb"),
        ("", "not an .igb"),
        (GOOD.replace("x:5", "x:-5"), "header: x:'-5' is not a number of nodes"),
        (GOOD.replace("x:5", "x:0"), "header: x:'0' is not"),
        (GOOD.replace("x:5", "x:five"), "header: x:'five' is not"),
        (GOOD.replace("x:5", "x:\xb2"), "header: x:'\\xb2' is not"),
        (GOOD.replace("t:2", "t:"), "header: t:'' is not a number of frames"),
        (GOOD.replace("float", "rgba"), "header: type 'rgba' is not one of byte"),
        (GOOD.replace("little", "middle"), "header: systeme 'middle_endian' is not one of"),
        (GOOD.replace("inc_t:1", "inc_t:nan"), "header: inc_t:'nan' is not a finite number"),
        (GOOD.replace("inc_t:1", "inc_t:-1"), "header: inc_t -1 and dim_t 0 give no time"),
        (GOOD + " facteur:0", "header: facteur is 0"),
        (GOOD + " zero:x", "header: zero:'x' is not a finite number"),
        (GOOD.replace("x:5", "x:500"), "not one whole frame of 500 float is there (40 bytes after the header)"),
    ],
)
def test_a_bad_header_is_refused_by_what_is_wrong(tmp_path: Path, header: str, said: str):
    for pack in (bytes, gzip.compress):
        with pytest.raises(InputError) as caught:
            read_bytes(tmp_path, pack(igb_bytes(header, bytes(40))))
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)


def test_files_that_are_not_there_or_no_files_are_refused(tmp_path: Path):
    for path in (tmp_path / "none.igb", tmp_path, tmp_path / "a\0b", tmp_path / ("x" * 5000)):
        with pytest.raises(InputError):
            read_igb(path)
    for content in (b"", b"x:5", b"\x1f\x8b", b"\x1f\x8b\x08" + bytes(40), gzip.compress(b"")):
        with pytest.raises(InputError, match=r"not an \.igb"):
            read_bytes(tmp_path, content)


def test_uneven_times_and_units_a_header_cannot_hold_are_not_written(tmp_path: Path):
    values = a_film(3)
    for times_ms, unit in (
        (np.array([0.0, 1.0, 3.0]), "mV"),
        (np.array([0.0, 0.0, 0.0]), "mV"),
        (np.array([2.0, 1.0, 0.0]), "mV"),
        (np.array([0.0, 1.0, np.nan]), "mV"),
        (np.arange(3.0), "milli volt"),
        (np.arange(3.0), "a:b"),
        (np.arange(3.0), ""),
    ):
        with pytest.raises(InputError):
            write_igb(tmp_path / "v.igb", values, times_ms, unit)
    with pytest.raises(InputError):
        write_igb(tmp_path / "v.igb", values[:, :0], np.arange(3.0))
    assert list(tmp_path.iterdir()) == []
