"""Images and classifiers, as MLModel.predict takes and gives them."""

import contextlib
import io
import sys
import warnings

import numpy as np
import pytest
from execute_helpers import coremltools

from anemone.errors import ExecuteError
from anemone.execute import Program

ct = coremltools()
Image = pytest.importorskip("PIL.Image")

from coremltools.converters.mil.mil import Builder as mb  # noqa: E402

RNG = np.random.default_rng(9)
COVERS = {"classify": "python"}
HEIGHT, WIDTH = 4, 5
PHOTO = RNG.integers(0, 256, (HEIGHT, WIDTH, 3)).astype(np.uint8)
GREY = PHOTO[..., 0].copy()


def package(path, build, shape, inputs=None, outputs=None, precision="FLOAT32", **options):
    """build(x) of one input with this shape, converted with Apple's default passes."""

    @mb.program(input_specs=[mb.TensorSpec(shape=shape)], opset_version=ct.target.iOS16)
    def program(x):
        return build(x)

    program.functions["main"].set_output_types(outputs)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        model = ct.convert(
            program, convert_to="mlprogram", minimum_deployment_target=ct.target.iOS16, skip_model_load=True,
            inputs=inputs, compute_precision=getattr(ct.precision, precision), **options,
        )  # fmt: skip
        model.save(str(path))
    return path


def image_type(shape, layout, **options):
    return ct.ImageType("x", shape=shape, color_layout=getattr(ct.colorlayout, layout), **options)


@pytest.mark.parametrize("precision", ["FLOAT32", "FLOAT16"])
@pytest.mark.parametrize("layout", ["RGB", "BGR"])
def test_colours(layout, precision, tmp_path):
    """Channels in the layout's order, scaled and shifted by the program."""
    shape = (1, 3, HEIGHT, WIDTH)
    scale, bias = 1 / 64, [-1.0, 0.5, 0.25]
    path = package(
        tmp_path / "a.mlpackage", lambda x: mb.relu(x=x, name="y"), shape,
        [image_type(shape, layout, scale=scale, bias=bias)], precision=precision,
    )  # fmt: skip
    program = Program(path)
    assert program.functions["main"].inputs["x"].layout == layout
    planes = PHOTO.transpose(2, 0, 1)[:: 1 if layout == "RGB" else -1]
    wanted = np.maximum(planes[None] * scale + np.reshape(bias, (1, 3, 1, 1)), 0)
    for given in (Image.fromarray(PHOTO), PHOTO):
        np.testing.assert_allclose(program.predict({"x": given})["y"], wanted, atol=3e-3)


@pytest.mark.parametrize(("layout", "mode"), [("GRAYSCALE", "L"), ("GRAYSCALE_FLOAT16", "F")])
def test_grey(layout, mode, tmp_path):
    shape = (1, 1, HEIGHT, WIDTH)
    path = package(
        tmp_path / "a.mlpackage", lambda x: mb.mul(x=x, y=np.float32(0.5), name="y"), shape,
        [image_type(shape, layout)], precision="FLOAT16",
    )  # fmt: skip
    got = Program(path).predict({"x": Image.fromarray(GREY).convert(mode)})["y"]
    np.testing.assert_array_equal(got[0, 0], GREY * np.float32(0.5))


@pytest.mark.parametrize(
    ("layout", "mode"), [("RGB", "RGBA"), ("BGR", "RGBA"), ("GRAYSCALE", "L"), ("GRAYSCALE_FLOAT16", "F")]
)
def test_images_come_out(layout, mode, tmp_path):
    shape = (1, 3 if mode == "RGBA" else 1, HEIGHT, WIDTH)
    path = package(
        tmp_path / "a.mlpackage", lambda x: mb.add(x=x, y=np.float32(40.25), name="y"), shape,
        [image_type(shape, layout)], [ct.ImageType("y", color_layout=getattr(ct.colorlayout, layout))], "FLOAT16",
    )  # fmt: skip
    given = Image.fromarray(PHOTO if mode == "RGBA" else GREY)
    program = Program(path)
    assert program.functions["main"].outputs["y"].layout == layout
    got = program.predict({"x": given.convert("F") if mode == "F" else given})["y"]
    assert (got.mode, got.size) == (mode, (WIDTH, HEIGHT))
    whole = np.minimum(np.asarray(given, np.int32) + 40, 255)
    if mode == "RGBA":
        np.testing.assert_array_equal(np.asarray(got)[..., :3], whole)
        assert (np.asarray(got)[..., 3] == 255).all()
    elif mode == "F":
        np.testing.assert_allclose(np.asarray(got), GREY + 40.25, rtol=1e-3)
    else:
        np.testing.assert_array_equal(np.asarray(got), whole)


def test_sizes_may_be_listed_or_free(tmp_path):
    def build(x):
        return mb.reduce_mean(x=x, axes=[2, 3], keep_dims=False, name="y")

    shapes = {
        "listed": ct.EnumeratedShapes([(1, 3, 4, 5), (1, 3, 8, 10)]),
        "free": ct.Shape((1, 3, ct.RangeDim(4, 9, default=4), ct.RangeDim(5, 12, default=5))),
    }
    for name, shape in shapes.items():
        from coremltools.converters.mil.mil import get_new_symbol

        symbolic = (1, 3, get_new_symbol(), get_new_symbol())
        program = Program(package(tmp_path / f"{name}.mlpackage", build, symbolic, [image_type(shape, "RGB")]))
        large = RNG.integers(0, 256, (8, 10, 3)).astype(np.uint8)
        for photo in (PHOTO, large):
            got = program.predict({"x": Image.fromarray(photo)})["y"]
            np.testing.assert_allclose(got[0], photo.mean((0, 1)), rtol=1e-4)
        with pytest.raises(ExecuteError, match=r"input 'x' takes images of .* got one of 20x5 \(height x width\)"):
            program.predict({"x": np.zeros((20, 5, 3), np.uint8)})


@pytest.fixture(scope="module")
def colours(tmp_path_factory):
    shape = (1, 3, HEIGHT, WIDTH)
    folder = tmp_path_factory.mktemp("colours")
    return package(
        folder / "a.mlpackage", lambda x: mb.relu(x=x, name="y"), shape, [image_type(shape, "RGB")],
        [ct.ImageType("y", color_layout=ct.colorlayout.RGB)],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (Image.fromarray(GREY), r"input 'x' takes an image of PIL's mode RGB, got mode L; convert it"),
        (Image.fromarray(PHOTO).convert("RGBA"), "mode RGB, got mode RGBA"),
        (Image.fromarray(PHOTO).resize((3, 3)), r"\[1, 3, 4, 5\], got one of 3x3 \(height x width\)"),
        (np.zeros((1, 3, 4, 5), np.float32), r"a PIL image of mode RGB, got ndarray of float32 \[1, 3, 4, 5\]"),
        (PHOTO / 255.0, "got ndarray of float64"),
        ("photo.png", "got str of"),
    ],
)
def test_wrong_images_are_explained(given, message, colours):
    with pytest.raises(ExecuteError, match=message):
        Program(colours).predict({"x": given})


def test_images_in_need_no_pillow_and_images_out_say_so(colours, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ExecuteError, match=r"output 'y' is an image, which needs Pillow: pip install"):
        Program(colours).predict({"x": PHOTO})


def classifier(path, labels, **options):
    return package(
        path, lambda x: mb.softmax(x=x, axis=-1, name="scores"), (1, 3),
        classifier_config=ct.ClassifierConfig(labels, **options),
    )  # fmt: skip


@pytest.mark.parametrize("labels", [["cat", "dog", "élan"], [7, -2, 9]])
def test_classifiers(labels, tmp_path):
    program = Program(classifier(tmp_path / "a.mlpackage", labels, predicted_feature_name="which"))
    x = np.array([[0.5, 2, -1]], np.float32)
    got = program.predict({"x": x})
    assert got["which"] == labels[1]
    assert type(got["which"]) is type(labels[1])
    (probabilities,) = (value for name, value in got.items() if name != "which")
    wanted = np.exp(x[0]) / np.exp(x[0]).sum()
    assert list(probabilities) == labels
    np.testing.assert_allclose(list(probabilities.values()), wanted, rtol=1e-6)
    assert all(type(p) is float for p in probabilities.values())
