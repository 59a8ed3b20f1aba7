"""Finding and reading data: every way it can go wrong gets a sentence."""

import hashlib
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from pushforward.errors import FileError, MissingDependencyError
from reproduction.common import data
from reproduction.covertype import data as covertype

pytestmark = pytest.mark.once

CONTENT = b"seven numbers"
FILE = data.File(
    "set/numbers.bin",
    hashlib.sha256(CONTENT).hexdigest(),
    ("https://example.org/numbers.bin", "https://example.net/numbers.bin"),
)


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """A machine on which there are no data."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(data.VARIABLE, raising=False)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


def put(folder, content=CONTENT):
    (folder / "set").mkdir(parents=True)
    (folder / FILE.name).write_bytes(content)
    return folder / FILE.name


class TestFind:
    def test_the_variable_comes_first_and_the_cache_last(self, nowhere, monkeypatch):
        places = [
            nowhere / "cache" / "pushforward",
            nowhere / "shared" / "data",
            nowhere / "project" / "shared" / "data",
            nowhere / "named",
        ]
        monkeypatch.setenv(data.VARIABLE, str(nowhere / "named"))
        for folder in places:
            path = put(folder)
            assert data.find("Numbers", [FILE]) == path

    def test_any_of_the_files_will_do(self, nowhere):
        path = put(nowhere / "shared" / "data")
        other = data.File("set/other.bin", "0" * 64)
        assert data.find("Numbers", [other, FILE]) == path

    def test_nothing_there(self, nowhere):
        with pytest.raises(FileError) as caught:
            data.find("Numbers", [FILE], download=False)
        for words in ("Numbers", FILE.name, FILE.urls[0], data.VARIABLE, "pushforward"):
            assert words in str(caught.value)

    def test_a_wrong_checksum(self, nowhere):
        put(nowhere / "shared" / "data", b"eight numbers")
        with pytest.raises(FileError, match=r"numbers\.bin has the wrong checksum"):
            data.find("Numbers", [FILE])


class TestDownload:
    def pooch(self, monkeypatch, failure=None):
        asked = []

        def retrieve(url, known_hash, fname, path, progressbar):
            assert progressbar
            assert known_hash == f"sha256:{FILE.sha256}"
            asked.append(url)
            if failure is not None:
                raise failure
            path.mkdir(parents=True)
            (path / fname).write_bytes(CONTENT)

        monkeypatch.setitem(sys.modules, "pooch", SimpleNamespace(retrieve=retrieve))
        return asked

    def test_into_the_cache(self, nowhere, monkeypatch):
        asked = self.pooch(monkeypatch)
        path = data.find("Numbers", [FILE])
        assert path == nowhere / "cache" / "pushforward" / FILE.name
        assert path.read_bytes() == CONTENT
        assert asked == [FILE.urls[0]]

    @pytest.mark.parametrize(
        "failure",
        [OSError("no route to host"), ValueError("the hash does not match")],
        ids=["offline", "checksum"],
    )
    def test_that_fails_says_where_to_put_it(self, nowhere, monkeypatch, failure):
        asked = self.pooch(monkeypatch, failure)
        with pytest.raises(FileError, match=f"Numbers .*put .*failed: {failure}"):
            data.find("Numbers", [FILE])
        assert asked == list(FILE.urls)

    def test_without_pooch(self, nowhere, monkeypatch):
        monkeypatch.setitem(sys.modules, "pooch", None)
        with pytest.raises(
            MissingDependencyError, match=r"pushforward\[reproduction\]"
        ):
            data.find("Numbers", [FILE])


def write(path, x, y):
    np.savez(path, X=x, y=y)
    return path


class TestCovertype:
    x = np.zeros((5, covertype.COLUMNS), np.float32)
    y = np.array([1, 2, 3, 2, 7])

    def test_both_formats_are_read_alike(self, tmp_path):
        x, y = covertype.miniature(20)
        first = covertype.read_covertype(write(tmp_path / "c.npz", x, y))
        text = tmp_path / "c.data.gz"
        np.savetxt(text, np.column_stack([x, y]), delimiter=",", fmt="%d")
        for found, other in zip(first, covertype.read_covertype(text), strict=True):
            np.testing.assert_array_equal(found, other)

    @pytest.mark.parametrize(
        ("x", "y", "shapes"),
        [
            (x[:, :-1], y, r"\(5, 53\) and \(5,\)"),
            (x, y[:-1], r"\(5, 54\) and \(4,\)"),
            (x[:0], y[:0], r"\(0, 54\) and \(0,\)"),
        ],
        ids=["column", "row", "empty"],
    )
    def test_wrong_shapes(self, tmp_path, x, y, shapes):
        with pytest.raises(FileError, match=f"c.npz is not Covertype: .*{shapes}"):
            covertype.read_covertype(write(tmp_path / "c.npz", x, y))

    def test_a_column_of_nan(self, tmp_path):
        x = self.x.copy()
        x[:, 6] = np.nan
        with pytest.raises(FileError, match="column 7 of 54 holds numbers that are"):
            covertype.read_covertype(write(tmp_path / "c.npz", x, self.y))

    def test_wrong_classes(self, tmp_path):
        with pytest.raises(FileError, match="classes are not 1 to 7"):
            covertype.read_covertype(write(tmp_path / "c.npz", self.x, self.y - 1))

    def test_no_file(self, tmp_path):
        with pytest.raises(FileError, match=r"There is no file .*c\.npz"):
            covertype.read_covertype(tmp_path / "c.npz")

    @pytest.mark.parametrize("name", ["c.npz", "c.data.gz"])
    def test_not_such_a_file(self, tmp_path, name):
        (tmp_path / name).write_bytes(b"PK\x03\x04 no archive")
        with pytest.raises(FileError, match="cannot be read as Covertype"):
            covertype.read_covertype(tmp_path / name)

    def test_the_split(self):
        x, classes = covertype.miniature(1000)
        found = covertype.split(x, classes, seed=3, source="miniature")
        assert found.train_x.shape == (800, 55)
        assert found.test_x.shape == (200, 55)
        both = np.concatenate([found.train_x, found.test_x])
        assert both.min() == 0
        assert both.max() == 1
        assert np.all(both[:, -1] == 1)
        # Every row is somewhere, and with its own label.
        labels = np.concatenate([found.train_y, found.test_y])
        assert labels.sum() == np.sum(classes == 2)
        low, high = x.min(axis=0), x.max(axis=0)
        scaled = (x - low) / np.maximum(high - low, 1)
        order = np.lexsort(np.column_stack([scaled, classes == 2]).T)
        mine = np.lexsort(np.column_stack([both[:, :-1], labels]).T)
        np.testing.assert_allclose(both[mine, :-1], scaled[order], atol=1e-6)
        np.testing.assert_array_equal(labels[mine], (classes == 2)[order])

    def test_a_seed_repeats_and_another_differs(self):
        x, classes = covertype.miniature(100)
        splits = [covertype.split(x, classes, seed=s, source="") for s in (0, 0, 1)]
        np.testing.assert_array_equal(splits[0].train_x, splits[1].train_x)
        assert not np.array_equal(splits[0].train_x, splits[2].train_x)

    def test_the_miniature_takes_the_place_of_a_file_that_is_not_there(self, nowhere):
        found = covertype.covertype(miniature_rows=100)
        assert found.source == "miniature"
        assert found.train_x.shape == (80, 55)

    def test_but_not_of_a_damaged_one(self, nowhere):
        path = nowhere / "shared" / "data" / covertype.COVERTYPE[0].name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"damaged")
        with pytest.raises(FileError, match="has the wrong checksum"):
            covertype.covertype(miniature_rows=100)

    def test_the_real_file(self, find_data):
        x, y = covertype.read_covertype(find_data(covertype.COVERTYPE[0].name))
        assert x.shape == (covertype.ROWS, covertype.COLUMNS)
        counts = [211840, 283301, 35754, 2747, 9493, 17367, 20510]
        np.testing.assert_array_equal(np.bincount(y)[1:], counts)
        # One area and one soil for every row.
        one_hot = x[:, covertype.MEASUREMENTS :]
        assert np.all(one_hot[:, : covertype.AREAS].sum(axis=1) == 1)
        assert np.all(one_hot[:, covertype.AREAS :].sum(axis=1) == 1)
