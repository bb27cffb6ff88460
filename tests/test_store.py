import os
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import box, cloud, sphere, turning_square
from scipy.sparse import csr_array

from gfunk import store
from gfunk.domain import Domain, make_domain
from gfunk.errors import InputError
from gfunk.laplacian import Laplacian, laplacian
from gfunk.parallel import in_parallel
from gfunk.spectrum import Spectrum, lowest_modes
from gfunk.store import (
    CorruptFile,
    Sample,
    cached_modes,
    fingerprint,
    is_sample_whole,
    read_arrays,
    read_json,
    read_sample,
    sample_path,
    sample_seeds,
    spectrum_key,
    write_arrays,
    write_bytes,
    write_json,
    write_sample,
)

matrices = laplacian(turning_square(0.05))
modes = lowest_modes(matrices, 5)


def assert_same_spectrum(got: Spectrum, expected: Spectrum):
    np.testing.assert_array_equal(got.eigenvalues, expected.eigenvalues)
    np.testing.assert_array_equal(got.eigenvectors, expected.eigenvectors)


def a_sample(domain: Domain, seed: int = 3) -> Sample:
    values = np.random.default_rng(seed).normal(size=(2, 4, domain.n_nodes)).astype(np.float32)
    return Sample(seed=seed, domain=domain, times=np.linspace(0, 0.02, 4), values=values)


def names_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_arrays_come_back_to_the_last_bit_with_their_types_and_note(tmp_path: Path):
    arrays = {
        "double": np.array([0.1, -0.0, np.nan, np.inf, 5e-324]),
        "single": np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32),
        "transposed": np.arange(6.0).reshape(2, 3).T,
        "whole": np.arange(5),
        "empty": np.empty((0, 3), dtype=np.int64),
    }
    write_arrays(tmp_path / "a.safetensors", arrays, {"made by": "a test"})
    back, note = read_arrays(tmp_path / "a.safetensors")
    assert note == {"made by": "a test"}
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype and back[name].shape == array.shape
        assert back[name].tobytes() == np.ascontiguousarray(array).tobytes()


def test_modes_from_the_cache_are_those_that_were_solved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "not there yet"
    assert_same_spectrum(cached_modes(matrices, 5, folder), modes)
    monkeypatch.setattr(store, "lowest_modes", None)
    assert_same_spectrum(cached_modes(matrices, 5, folder), modes)
    assert names_in(folder) == [f"{spectrum_key(matrices, 5)}.safetensors"]


def test_without_a_folder_nothing_is_cached():
    assert_same_spectrum(cached_modes(matrices, 5, None), modes)


@given(data=st.data(), part=st.sampled_from(["stiffness", "mass"]), field=st.sampled_from(["data", "indices"]))
def test_any_changed_entry_changes_the_key(data: st.DataObject, part: str, field: str):
    changed = {"stiffness": matrices.stiffness.copy(), "mass": matrices.mass.copy()}
    entries = getattr(changed[part], field)
    place = data.draw(st.integers(0, len(entries) - 1))
    entries[place] = np.nextafter(entries[place], np.inf) if field == "data" else (entries[place] + 1) % matrices.n_nodes
    assert spectrum_key(Laplacian(**changed), 5) != spectrum_key(matrices, 5)


def test_another_number_of_modes_or_another_method_changes_the_key(monkeypatch: pytest.MonkeyPatch):
    key = spectrum_key(matrices, 5)
    assert spectrum_key(matrices, 6) != key
    monkeypatch.setattr(store, "SPECTRUM_VERSION", store.SPECTRUM_VERSION + 1)
    assert spectrum_key(matrices, 5) != key


def test_a_fingerprint_sees_names_types_shapes_and_settings():
    array = np.arange(6.0)
    prints = [
        fingerprint({"a": array}),
        fingerprint({"b": array}),
        fingerprint({"a": array.reshape(2, 3)}),
        fingerprint({"a": array.view(np.int64)}),
        fingerprint({"a": array}, n=1),
        fingerprint({"a": array}, n=2),
        fingerprint({"a": array}, m=1),
        fingerprint({"a": array, "b": array[:0]}),
    ]
    assert len(set(prints)) == len(prints)
    assert fingerprint({"a": array, "b": array}) == fingerprint({"b": array, "a": array})
    assert fingerprint({"a": array[::2]}) == fingerprint({"a": array[::2].copy()})


def assert_cache_heals(damaged: bytes, folder: Path):
    path = folder / f"{spectrum_key(matrices, 5)}.safetensors"
    path.write_bytes(damaged)
    assert_same_spectrum(cached_modes(matrices, 5, folder), modes)
    arrays, _ = read_arrays(path)
    np.testing.assert_array_equal(arrays["eigenvectors"], modes.eigenvectors)
    assert names_in(folder) == [path.name]


@given(where=st.floats(0, 1, exclude_max=True))
def test_a_cache_entry_cut_at_any_length_is_solved_again_and_repaired(where: float):
    with TemporaryDirectory() as folder:
        cached_modes(matrices, 5, Path(folder))
        good = next(Path(folder).iterdir()).read_bytes()
        assert_cache_heals(good[: int(where * len(good))], Path(folder))


@given(where=st.floats(0, 1, exclude_max=True), in_header=st.booleans(), flip=st.integers(1, 255))
def test_a_cache_entry_with_any_byte_changed_is_solved_again_and_repaired(where: float, in_header: bool, flip: int):
    with TemporaryDirectory() as folder:
        cached_modes(matrices, 5, Path(folder))
        damaged = bytearray(next(Path(folder).iterdir()).read_bytes())
        damaged[int(where * (200 if in_header else len(damaged)))] ^= flip
        assert_cache_heals(bytes(damaged), Path(folder))


def test_a_whole_file_of_another_kind_under_the_name_of_a_cache_entry_is_replaced(tmp_path: Path):
    path = tmp_path / f"{spectrum_key(matrices, 5)}.safetensors"
    write_arrays(path, {"something else": np.arange(3)})
    assert_same_spectrum(cached_modes(matrices, 5, tmp_path), modes)
    assert read_arrays(path)[0].keys() == {"eigenvalues", "eigenvectors"}


def write_the_same_entry(folder: Path) -> None:
    for _ in range(20):
        write_arrays(folder / "entry.safetensors", {"a": np.arange(1000.0)})
        read_arrays(folder / "entry.safetensors")


def test_processes_writing_one_entry_at_once_leave_one_good_entry(tmp_path: Path):
    list(in_parallel(write_the_same_entry, [tmp_path] * 3, 3))
    assert names_in(tmp_path) == ["entry.safetensors"]
    np.testing.assert_array_equal(read_arrays(tmp_path / "entry.safetensors")[0]["a"], np.arange(1000.0))


def test_a_folder_that_cannot_be_written_is_an_error_that_names_the_file(tmp_path: Path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(InputError, match=r"file/below/.*: can't be written"):
        cached_modes(matrices, 5, tmp_path / "file" / "below")
    with pytest.raises(InputError, match=r"000003\.safetensors: can't be written"):
        write_sample(tmp_path / "file", a_sample(turning_square(0.05)))


@pytest.mark.parametrize("failing", ["replace", "fsync"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
):
    path = tmp_path / "a.json"
    write_bytes(path, b"old")

    def fails(*_: object):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, fails)
    with pytest.raises(InputError, match=r"a\.json: can't be written \(No space left on device\)"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert names_in(tmp_path) == ["a.json"]


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.json"
    write_bytes(path, b"old")

    def interrupted(*_: object):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert names_in(tmp_path) == ["a.json"]


def per_cell_square() -> Domain:
    square = turning_square(0.05)
    return make_domain(square.points, square.cells, square.cell_diffusion(), diffusion_at="cell")


@pytest.mark.parametrize(
    "domain",
    [turning_square(0.05), per_cell_square(), sphere(1), box(3), cloud(40, np.eye(2))],
    ids=["plane", "tensors per cell", "sphere", "tetrahedra", "cloud"],
)
def test_a_sample_comes_back_to_the_last_bit(tmp_path: Path, domain: Domain):
    sample = a_sample(domain)
    write_sample(tmp_path, sample)
    back = read_sample(tmp_path, sample.seed)
    assert back.seed == sample.seed and back.domain.diffusion_at == domain.diffusion_at
    for name in ("points", "cells", "diffusion", "fibres"):
        np.testing.assert_array_equal(getattr(back.domain, name), getattr(domain, name))
    np.testing.assert_array_equal(back.times, sample.times)
    np.testing.assert_array_equal(back.values, sample.values)
    assert back.values.dtype == np.float32


def test_a_sample_of_an_old_schema_is_refused_with_both_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as before:
        before.setattr(store, "DATASET_SCHEMA", 0)
        write_sample(tmp_path, a_sample(turning_square(0.05)))
    with pytest.raises(InputError, match=r"000003\.safetensors: dataset schema 0, this version reads 1"):
        read_sample(tmp_path, 3)


def test_a_sample_is_whole_only_if_it_is_there_and_its_checksum_holds(tmp_path: Path):
    assert not is_sample_whole(tmp_path, 3)
    write_sample(tmp_path, a_sample(turning_square(0.05)))
    assert is_sample_whole(tmp_path, 3)
    path = sample_path(tmp_path, 3)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert not is_sample_whole(tmp_path, 3)
    with pytest.raises(CorruptFile, match="its checksum fails"):
        read_sample(tmp_path, 3)


def test_samples_are_listed_in_the_order_of_their_seeds(tmp_path: Path):
    for seed in (12, 3, 100):
        write_sample(tmp_path, a_sample(turning_square(0.05), seed))
    (tmp_path / "notes.txt").write_text("not a sample")
    assert sample_seeds(tmp_path) == [3, 12, 100]


def test_a_dataset_that_is_absent_or_empty_is_refused(tmp_path: Path):
    with pytest.raises(InputError, match="no such dataset"):
        sample_seeds(tmp_path / "absent")
    with pytest.raises(InputError, match="holds no trajectories"):
        sample_seeds(tmp_path)


def test_json_comes_back_and_broken_json_is_refused_by_name(tmp_path: Path):
    content = {"name": "heat", "numbers": [1, 2.5, None], "text": "µ"}
    write_json(tmp_path / "a.json", content)
    assert read_json(tmp_path / "a.json") == content
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(CorruptFile, match=r"a\.json: not valid JSON"):
        read_json(tmp_path / "a.json")
    with pytest.raises(InputError, match=r"b\.json: no such file"):
        read_json(tmp_path / "b.json")


def test_matrices_that_hold_the_same_entries_share_a_key():
    copy = Laplacian(stiffness=csr_array(matrices.stiffness, copy=True), mass=csr_array(matrices.mass, copy=True))
    assert spectrum_key(copy, 5) == spectrum_key(matrices, 5)
