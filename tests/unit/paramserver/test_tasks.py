"""Tasks: loading, fingerprints, the built-in ones, and evaluation."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from ringleader.errors import ConfigError
from ringleader.paramserver.evaluation import evaluate
from ringleader.paramserver.tasks.loading import load_task
from ringleader.paramserver.tasks.samples import Samples, batch_length

LINE = """
import torch
from torch import nn
def model(): return nn.Linear(3, 2)
def dataset(split): return torch.arange(30.).reshape(10, 3), torch.arange(10) % 2
def loss(model, batch): return nn.functional.cross_entropy(model(batch[0]), batch[1])
"""


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_a_file_with_three_functions_is_a_task(tmp_path: Path) -> None:
    task = load_task(write(tmp_path / "line.py", LINE))

    assert task.name == "line"
    assert task.batch_size == 32
    assert len(task.samples("train")) == 10
    optimizer = task.optimizer(task.model())
    assert isinstance(optimizer, torch.optim.SGD)


def test_initial_weights_are_the_same_in_every_call() -> None:
    task = load_task("digits")
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first, second = task.model().state_dict(), task.model().state_dict()

    assert torch.equal(torch.rand(3), expected)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (("Linear(3, 2)", "Linear(3, 2, bias=False)"), {"code", "model"}),
        (("arange(30.)", "arange(1., 31.)"), {"code", "data"}),
        (("def loss", "# spaces count too\ndef loss"), {"code"}),
    ],
)
def test_a_difference_is_named(
    tmp_path: Path, change: tuple[str, str], parts: set[str]
) -> None:
    (tmp_path / "other").mkdir()
    ours = load_task(write(tmp_path / "line.py", LINE)).fingerprint()
    text = LINE.replace(*change)
    theirs = load_task(write(tmp_path / "other" / "line.py", text)).fingerprint()

    assert ours.keys() == theirs.keys()
    assert {part for part in ours if ours[part] != theirs[part]} == parts


def test_line_ends_do_not_change_the_fingerprint(tmp_path: Path) -> None:
    unix = load_task(write(tmp_path / "line.py", LINE)).fingerprint()
    (tmp_path / "line.py").write_bytes(LINE.replace("\n", "\r\n").encode())

    assert load_task(str(tmp_path / "line.py")).fingerprint() == unix


def test_a_fingerprint_fits_the_protocol() -> None:
    parts = load_task("digits").fingerprint()

    assert len(parts) <= 32
    assert all(0 < len(value) < 100 for value in parts.values())


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("def model(): pass", r"must define dataset\(\), loss\(\)"),
        ("import nothing_like_it", "importing it failed: ModuleNotFoundError"),
        (
            "model = dataset = loss = 1\nbatch_size = 0",
            "batch_size must be 1 or more, not 0",
        ),
        ("model = dataset = loss = 1\nclasses = 'ab'", "classes must be a list"),
    ],
)
def test_a_file_that_is_no_task_is_refused(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_task(write(tmp_path / "bad.py", text))


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        ("nothing", "unknown task 'nothing'"),
        ("missing.py", "cannot read it"),
        ("chars", "write chars:TEXTFILE"),
        ("images", "write images:DIRECTORY"),
        ("digits:here", "has its own data"),
        ("chars:/nowhere/at all", "cannot read"),
        ("images:/nowhere/at all", "is not a directory"),
    ],
)
def test_an_unknown_task_is_refused_by_name(spec: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_task(spec)


def test_digits_are_all_there_and_split_once() -> None:
    task = load_task("digits")
    train, test = task.samples("train"), task.samples("test")
    images, labels = train.batch(torch.arange(len(train)))
    seen, shown = test.batch(torch.arange(len(test)))

    assert (len(train), len(test)) == (1437, 360)
    assert images.shape == (1437, 1, 8, 8)
    assert set(labels.tolist()) == set(shown.tolist()) == set(range(10))
    rows = {image.numpy().tobytes() for image in images}
    assert not rows & {image.numpy().tobytes() for image in seen}


def test_chars_windows_follow_the_text(tmp_path: Path) -> None:
    text = "the quick brown fox jumps over the lazy dog. " * 40
    task = load_task(f"chars:{write(tmp_path / 'book.txt', text)}")
    before, after = task.samples("train").batch(torch.arange(2))

    assert "".join(task.classes[i] for i in before[0]) == text[:64]
    assert "".join(task.classes[i] for i in after[0]) == text[1:65]
    assert float(task.loss(task.model(), (before, after)).detach()) > 0
    rest, _ = task.samples("test").batch(torch.arange(1))
    assert "".join(task.classes[i] for i in rest[0]) == text[1620:1684]


def test_chars_model_is_causal(tmp_path: Path) -> None:
    path = write(tmp_path / "book.txt", "the quick brown fox jumps over it. " * 40)
    task = load_task(f"chars:{path}")
    model = task.model().eval()
    text, _ = task.samples("train").batch(torch.arange(1))
    other = text.clone()
    other[:, 40:] = 0

    assert torch.allclose(model(text)[:, :40], model(other)[:, :40], atol=1e-6)
    assert not torch.allclose(model(text)[:, 40:], model(other)[:, 40:], atol=1e-3)


def test_a_text_that_is_too_short_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="5 characters; it needs at least 651"):
        load_task(f"chars:{write(tmp_path / 'note.txt', 'hello')}")


def idx(path: Path, shape: tuple[int, ...], data: bytes) -> None:
    head = struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)
    path.write_bytes(head + data)


def idx_directory(directory: Path, labels: bytes = bytes([0, 1, 2, 1])) -> None:
    for name in ("train", "t10k"):
        pixels = bytes(range(256)) * (4 * 784 // 256 + 1)
        idx(directory / f"{name}-images-idx3-ubyte", (4, 28, 28), pixels[: 4 * 784])
        idx(directory / f"{name}-labels-idx1-ubyte", (4,), labels)


def test_idx_files_are_read_as_mnist_s(tmp_path: Path) -> None:
    idx_directory(tmp_path)
    task = load_task(f"images:{tmp_path}")
    images, labels = task.samples("test").batch(torch.arange(4))

    assert images.shape == (4, 1, 28, 28)
    assert float(images[0, 0, 0, 5]) == pytest.approx((5 / 255 - 0.1307) / 0.3081)
    assert labels.tolist() == [0, 1, 2, 1]
    assert task.model()(images).shape == (4, 3)


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda data: data[:-1], "announces 3136"),
        (lambda data: data + b"x", "announces 3136"),
        (lambda data: b"\0\0\x08\x01" + data[4:], "not an IDX file"),
        (lambda data: data[:3], "cannot be read"),
        (lambda data: data[:4] + b"\xff" * 12, r"claims \d+ bytes"),
    ],
)
def test_damaged_idx_files_are_refused(
    tmp_path: Path, spoil: object, complaint: str
) -> None:
    idx_directory(tmp_path)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(spoil(path.read_bytes()))  # type: ignore[operator]

    with pytest.raises(ConfigError, match=complaint):
        load_task(f"images:{tmp_path}")


def test_folders_of_pictures_are_split_and_named(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for shade, name in ((10, "cat"), (240, "dog")):
        (tmp_path / name).mkdir()
        for i in range(10):
            made = image.fromarray(np.full((40, 30, 3), shade, np.uint8))
            made.save(tmp_path / name / f"{i}.png")
    task = load_task(f"images:{tmp_path}")
    images, labels = task.samples("train").batch(torch.arange(16))

    assert task.classes == ("cat", "dog")
    assert (len(task.samples("train")), len(task.samples("test"))) == (16, 4)
    assert images.shape == (16, 1, 28, 28)
    assert ((images.mean(dim=(1, 2, 3)) > 0) == labels.bool()).all()


def test_pictures_for_tests_are_those_of_their_folder(tmp_path: Path) -> None:
    """CS-12: nothing is trained on what it is tested with."""
    image = pytest.importorskip("PIL.Image")
    for split, shades in (("train", (10, 240)), ("test", (60, 190))):
        for shade, name in zip(shades, ("cat", "dog"), strict=True):
            (tmp_path / split / name).mkdir(parents=True)
            made = image.fromarray(np.full((28, 28), shade, np.uint8))
            made.save(tmp_path / split / name / "1.png")
    task = load_task(f"images:{tmp_path}")
    images, _ = task.samples("train").batch(torch.arange(2))
    others, labels = task.samples("test").batch(torch.arange(2))

    assert labels.tolist() == [0, 1]
    darkest = torch.cat([images, others]).mean(dim=(1, 2, 3)).argsort()
    assert darkest.tolist() == [0, 2, 3, 1], "as the shades are"


def test_a_class_that_is_in_the_test_data_only_is_refused(tmp_path: Path) -> None:
    """CS-12: the number of classes is counted, not guessed."""
    idx_directory(tmp_path)
    idx(tmp_path / "t10k-labels-idx1-ubyte", (4,), bytes([0, 1, 3, 1]))
    with pytest.raises(ConfigError, match="label 3 in test, none above 2 in train"):
        load_task(f"images:{tmp_path}").samples("test")


class Lazy:
    """A dataset that reads lazily."""

    def __init__(self, last: int = 9) -> None:
        self.last = last

    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> dict[str, object]:
        return {"x": torch.full((2,), float(i)), "y": self.last if i == 9 else i}


def test_lazy_datasets_are_collated_and_hashed() -> None:
    samples = Samples(Lazy(), "here")
    batch = samples.batch(torch.tensor([3, 1]))

    assert batch["x"].tolist() == [[3, 3], [1, 1]]
    assert batch["y"].tolist() == [3, 1]
    assert batch_length(batch) == 2
    assert samples.digest() == Samples(Lazy(), "there").digest()
    assert samples.digest() != Samples(Lazy(8), "there").digest()


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ((torch.zeros(2), torch.zeros(3)), "different lengths: 2, 3"),
        (torch.zeros(0, 4), "no sample"),
        (iter([1, 2]), "not list_iterator"),
    ],
)
def test_a_dataset_without_samples_is_refused(source: object, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Samples(source, "dataset('train')")


def test_the_task_of_the_guide_is_one(tmp_path: Path) -> None:
    guide = Path(__file__).parents[3] / "docs" / "internet.md"
    code = guide.read_text().split("```python\n")[1].split("```")[0]
    task = load_task(write(tmp_path / "sum.py", code))
    found = evaluate(task, task.model(), torch.device("cpu"), num_examples=4)

    assert found.num_samples == 1000
    assert found.loss > 0
    assert (found.accuracy, found.confusion, found.examples) == (None, None, ())


def test_evaluation_counts_every_sample_once(tmp_path: Path) -> None:
    """The means over uneven batches equal sums in float64."""
    task = load_task("digits")
    model = task.model().eval()
    found = evaluate(task, model, torch.device("cpu"), num_examples=5)
    images, labels = task.samples("test").batch(torch.arange(360))
    with torch.no_grad():
        scores = model.double()(images.double())
    loss = torch.nn.functional.cross_entropy(scores, labels)

    assert found.loss == pytest.approx(float(loss), abs=1e-6)
    assert found.accuracy == float((scores.argmax(1) == labels).double().mean())
    assert found.confusion is not None
    assert torch.equal(found.confusion.sum(1), labels.bincount(minlength=10))
    assert [int(e.true) for e in found.examples] == labels[:5].tolist()
