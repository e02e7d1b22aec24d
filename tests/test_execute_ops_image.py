"""Resizing and sampling images: against torch, the documentation's grids and what Core ML gave Apple."""

import numpy as np
import pytest
import torch
from execute_helpers import Case, Numbers, by, check, check_precisions, coremltools, of_torch, published

coremltools()
NUMBERS = Numbers(22)
real = NUMBERS.real
F = torch.nn.functional
IMAGE = real(2, 3, 5, 7)
LINE = np.array([0, 1], np.float32).reshape(1, 1, 2)


def interpolated(mode, size=None, **how):
    return of_torch(lambda x, *_, **__: F.interpolate(x, size, mode=mode, **how))


def tensorflow_grid(size, count):
    """TensorFlow's resizing without half-pixel centres, which MIL calls DEFAULT."""
    return np.minimum(np.arange(count) * size / count, size - 1)


def offset_grid(size, count):
    return np.clip((np.arange(count) + 0.5) * max(1, size - 1) / count, 0, size - 1)


def along_grids(x, rows, columns):
    """Linear interpolation by numpy.interp on each axis."""
    for axis, grid in ((-2, rows), (-1, columns)):
        known = np.arange(x.shape[axis])
        x = np.apply_along_axis(lambda line, g=grid, k=known: np.interp(g, k, line), axis, x)
    return x


def by_grid(grid):
    return by("numpy.interp", lambda x, target_size_height, target_size_width, **_: along_grids(
        x, grid(x.shape[-2], target_size_height), grid(x.shape[-1], target_size_width)
    ))  # fmt: skip


def bilinear(h, w, mode, expect, x=IMAGE):
    return Case(
        "resize_bilinear", {"x": x}, {"target_size_height": h, "target_size_width": w, "sampling_mode": mode}, expect
    )


RESIZE = [
    *[
        case
        for h, w in ((10, 14), (3, 4), (8, 5), (1, 9))
        for case in (
            bilinear(h, w, "UNALIGN_CORNERS", interpolated("bilinear", (h, w), align_corners=False)),
            bilinear(h, w, "STRICT_ALIGN_CORNERS", interpolated("bilinear", (h, w), align_corners=True)),
            bilinear(h, w, "DEFAULT", by_grid(tensorflow_grid)),
            bilinear(h, w, "OFFSET_CORNERS", by_grid(offset_grid)),
        )
    ],
    bilinear(10, 3, "ALIGN_CORNERS", interpolated("bilinear", (10, 3), align_corners=True)),
    bilinear(1, 1, "ALIGN_CORNERS", by("numpy", lambda x, **_: x[..., 2:3, 3:4])),
    bilinear(4, 3, "UNALIGN_CORNERS", of_torch(lambda x, **_: F.interpolate(x[None], (4, 3), mode="bilinear")[0]),
             real(2, 6, 5)),
    *[
        Case(
            "resize_nearest_neighbor", {"x": IMAGE}, {"target_size_height": h, "target_size_width": w},
            interpolated("nearest-exact", (h, w)),
        )
        for h, w in ((10, 14), (3, 4), (8, 5), (5, 7))
    ],
    Case(
        "crop", {"x": IMAGE}, {"crop_height": [0, 1], "crop_width": [2, 1]},
        by("numpy", lambda x, **_: x[..., :4, 2:6]),
    ),
]  # fmt: skip


def upsampled(height, width, size):
    factors = {"scale_factor_height": height, "scale_factor_width": width}
    return [
        Case("upsample_nearest_neighbor", {"x": IMAGE}, factors, interpolated("nearest", size)),
        *[
            Case(
                "upsample_bilinear", {"x": IMAGE}, {**factors, "align_corners": aligned},
                interpolated("bilinear", size, align_corners=aligned),
            )
            for aligned in (True, False)
        ],
    ]  # fmt: skip


WHOLE = [*upsampled(2, 3, (10, 21)), *upsampled(1, 1, (5, 7))]
FRACTIONAL = upsampled(np.float32(1.5), np.float32(0.5), (7, 3))


def sampled(x, points, sampling_mode, padding_mode, coordinates_mode, align_corners, padding_value=0.0):
    """Torch's grid_sample, which wants coordinates of -1..1."""
    size = torch.tensor([x.shape[3], x.shape[2]], dtype=torch.float32)
    if coordinates_mode == "normalized_zero_to_one":
        points = points * 2 - 1
    elif coordinates_mode == "unnormalized":
        points = points / (size - 1) * 2 - 1 if align_corners else (2 * points + 1) / size - 1
    modes = {"constant": "zeros", "symmetric": "reflection"}
    grid = {"mode": sampling_mode, "padding_mode": modes.get(padding_mode, padding_mode)}
    return F.grid_sample(x, points, **grid, align_corners=align_corners)


def resample(points, sampling, padding, coordinates, aligned):
    params = {
        "sampling_mode": sampling, "padding_mode": padding, "coordinates_mode": coordinates,
        "align_corners": aligned, "padding_value": np.float32(0),
    }  # fmt: skip
    return Case("resample", {"x": IMAGE, "coordinates": points}, params, of_torch(sampled))


SPREAD = NUMBERS.rng.uniform(-1.6, 1.6, (2, 4, 6, 2)).astype(np.float32)
RESAMPLE = [
    *[
        resample(SPREAD, sampling, padding, "normalized_minus_one_to_one", padding == "reflection")
        for sampling in ("bilinear", "nearest")
        for padding in ("constant", "border", "reflection", "symmetric")
    ],
    *[
        resample((SPREAD + 1) * scale, "bilinear", padding, coordinates, aligned)
        for scale, coordinates in ((0.5, "normalized_zero_to_one"), (3.0, "unnormalized"))
        for padding, aligned in (("constant", True), ("border", False))
    ],
    *[
        Case(
            "affine", {"x": IMAGE, "transform_matrix": real(count, 6, low=-1, high=1)},
            {
                "output_height": h, "output_width": w, "sampling_mode": "bilinear", "padding_mode": "constant",
                "padding_value": np.float32(0), "coordinates_mode": "normalized_minus_one_to_one",
                "align_corners": aligned,
            },
            of_torch(
                lambda x, matrix, output_height, output_width, align_corners, **_: F.grid_sample(
                    x,
                    F.affine_grid(
                        matrix.reshape(-1, 2, 3).expand(2, 2, 3), (2, 3, output_height, output_width),
                        align_corners=align_corners,
                    ),
                    align_corners=align_corners,
                )
            ),
        )
        for count, h, w, aligned in ((2, 4, 6, True), (1, 6, 3, True), (2, 5, 7, False))
    ],
]  # fmt: skip

FAMILIES = {"resize": RESIZE, "upsample": WHOLE, "resample": RESAMPLE}


@pytest.mark.parametrize("opset", ["iOS15", "iOS16", "iOS17", "iOS18"])
@pytest.mark.parametrize("family", FAMILIES)
def test_family(family, opset, tmp_path):
    if family != "resample" or opset != "iOS18":
        check_precisions(FAMILIES[family], tmp_path, opset)
    else:  # rounded coordinates move the point, so that fp16 has another result
        check(FAMILIES[family], tmp_path, 2e-5, opset)


def resized(shape, dims, how, mode, expect, x=IMAGE):
    given = {"resized_dims": np.uint32(dims), "interpolation_mode": how, "sampling_mode": mode}
    return [
        Case("resize", {"x": x}, {"shape": shape, **given}, expect),
        Case("resize", {"x": x, "shape": np.array(shape, np.int32)}, given, expect),
    ]


RESIZE_17 = [
    *resized([1, 8, 5], 2, "LINEAR", "UNALIGN_CORNERS", interpolated("bilinear", (8, 5))),
    *resized([8, 5], 2, "LINEAR", "ALIGN_CORNERS", interpolated("bilinear", (8, 5), align_corners=True)),
    *resized([1, 0, 14], 2, "LINEAR", "UNALIGN_CORNERS", interpolated("bilinear", (5, 14))),
    *resized([8, 5], 2, "NEAREST_NEIGHBOR", "DEFAULT", interpolated("nearest-exact", (8, 5))),
    *resized([3, 4], 2, "NEAREST_NEIGHBOR", "UNALIGN_CORNERS", interpolated("nearest-exact", (3, 4))),
    *resized([4, 3, 9], 3, "LINEAR", "UNALIGN_CORNERS",
             of_torch(lambda x, *_, **__: F.interpolate(x[:, None], (4, 3, 9), mode="trilinear")[:, 0])),
    *resized([1, 1, 5], 2, "LINEAR", "DEFAULT", published([[[0, 0.4, 0.8, 1, 1]]]), LINE),
    *resized([1, 3, 2], 2, "NEAREST_NEIGHBOR", "DEFAULT", published([[[-6.0, -6], [9, 9], [9, 9]]]),
             np.array([-6, 9], np.float32).reshape(1, 2, 1)),
]  # fmt: skip


@pytest.mark.parametrize("opset", ["iOS17", "iOS18"])
def test_resize(opset, tmp_path):
    check_precisions(RESIZE_17, tmp_path, opset)


SIXTEEN = np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4)
SQUARE = np.array([11, 22, 33, 44], np.float32).reshape(1, 1, 2, 2)
POINTS = np.array([-1, -2, -3.7, -1, 0, 0, 3.5, 1.2], np.float32).reshape(1, 2, 2, 2)


def at_points(sampling, padding, value, coordinates, aligned, *expect):
    params = {
        "sampling_mode": sampling, "padding_mode": padding, "padding_value": np.float32(value),
        "coordinates_mode": coordinates, "align_corners": aligned,
    }  # fmt: skip
    return Case("resample", {"x": SQUARE, "coordinates": POINTS}, params, published(np.reshape(expect, (1, 1, 2, 2))))


PUBLISHED = [
    at_points("bilinear", "constant", 6.17, "normalized_minus_one_to_one", True, 8.585, 6.17, 27.5, 6.17),
    at_points("nearest", "border", -1, "unnormalized", False, 11.0, 11, 11, 44),
    at_points("bilinear", "reflection", -1, "normalized_zero_to_one", True, 22, 36.3, 11, 34.1),
    at_points("nearest", "symmetric", -1, "normalized_zero_to_one", False, 22.0, 33, 11, 33),
    Case(
        "affine",
        {"x": SQUARE, "transform_matrix": np.array([[-1, -2, -3.7, -1, 3.5, 1.2]], np.float32)},
        {
            "output_height": 2, "output_width": 5, "sampling_mode": "bilinear", "padding_mode": "constant",
            "padding_value": np.float32(0), "coordinates_mode": "normalized_minus_one_to_one", "align_corners": True,
        },
        published([[[[10.752501, 5.94, 2.5025, 0.44, 0], [0, 0, 0, 0, 0]]]]),
    ),
    *[
        Case("resize_bilinear", {"x": LINE}, {"target_size_width": 5, "sampling_mode": mode}, published([[values]]))
        for mode, values in (
            ("STRICT_ALIGN_CORNERS", [0, 0.25, 0.5, 0.75, 1]), ("DEFAULT", [0, 0.4, 0.8, 1, 1]),
            ("OFFSET_CORNERS", [0.1, 0.3, 0.5, 0.7, 0.9]), ("UNALIGN_CORNERS", [0, 0.1, 0.5, 0.9, 1]),
        )
    ],
    Case(
        "upsample_bilinear", {"x": LINE},
        {"scale_factor_height": np.float32(1), "scale_factor_width": np.float32(2.6), "align_corners": False},
        published([[[0, 0.1, 0.5, 0.9, 1]]]),
    ),
    *[
        Case(
            "upsample_nearest_neighbor", {"x": np.array([[[[1.5, -2.5, 3.5]]]], np.float32)},
            {"scale_factor_height": np.float32(h), "scale_factor_width": np.float32(w)}, published([[rows]]),
        )
        for h, w, rows in ((3.17, 0.67, [[1.5, -2.5]] * 3), (2.0, 1.12, [[1.5, -2.5, 3.5]] * 2))
    ],
]  # fmt: skip


HALF_PIXEL = [
    Case(
        "upsample_bilinear", {"x": IMAGE},
        {"scale_factor_height": 2, "scale_factor_width": 3, "align_corners": False, "half_pixel_centers": half},
        expect,
    )
    for half, expect in (
        (True, interpolated("bilinear", (10, 21))),
        (False, by("numpy.interp", lambda x, **_: along_grids(x, tensorflow_grid(5, 10), tensorflow_grid(7, 21)))),
    )
]  # fmt: skip


@pytest.mark.parametrize("opset", ["iOS16", "iOS18"])
def test_upsampling_by_fractions_and_half_pixels(opset, tmp_path):
    check(FRACTIONAL + HALF_PIXEL, tmp_path, 2e-5, opset)


def test_published_values(tmp_path):
    check(PUBLISHED, tmp_path, 1e-5)


def cropped(box, size, expect, **params):
    """A box of the image 1..16 before iOS17."""
    roi = np.array(box, np.float32).reshape(1, 1, -1, 1, 1)
    params = {"target_height": size, "target_width": size, "sampling_mode": "ALIGN_CORNERS", **params}
    return Case("crop_resize", {"x": SIXTEEN, "roi": roi}, params, published(np.reshape(expect, (1, 1, 1, size, size))))


CROP_15 = [
    cropped([1, 1, 2, 2], 2, [6.0, 7, 10, 11]),
    cropped([1, 1, 2, 2], 4, np.linspace([6, 7 + 1 / 3, 8 + 2 / 3, 10], [7, 8 + 1 / 3, 9 + 2 / 3, 11], 4).T),
    cropped([1, 1, 2, 2], 1, [8.5]),
    cropped([0, 0, 0, 1 / 3, 1 / 3], 2, [1.0, 2, 5, 6], normalized_coordinates=True),
    cropped([2, 2, 1, 1], 2, [11.0, 10, 7, 6]),
]


@pytest.mark.parametrize("opset", ["iOS15", "iOS16"])
def test_crop_resize_of_regions(opset, tmp_path):
    check(CROP_15, tmp_path, 1e-5, opset)


def roi_align(x, boxes, indices, target_height, target_width, **_):
    """Each box cut into equal parts, sampled at their centres, by torch's grid_sample."""
    results = []
    for (top, left, bottom, right), index in zip(boxes, indices, strict=True):
        rows = top + (torch.arange(target_height) + 0.5) * (bottom - top) / target_height
        columns = left + (torch.arange(target_width) + 0.5) * (right - left) / target_width
        grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1)[None]
        grid = grid / torch.tensor([x.shape[3] - 1, x.shape[2] - 1]) * 2 - 1
        results.append(F.grid_sample(x[int(index)][None], grid, align_corners=True)[0])
    return torch.stack(results)


BOXES = np.array([[0.5, 1, 3.5, 5], [1, 0.25, 2.5, 6], [0, 0, 4, 6]], np.float32)
CENTRED = np.hstack([(BOXES[:, :2] + BOXES[:, 2:]) / 2, BOXES[:, 2:] - BOXES[:, :2]])
OF_IMAGES = np.array([1, 0, 1], np.int32)
CROP_17 = [
    Case(
        "crop_resize",
        {"x": SIXTEEN, "boxes": np.array([[0.1, 0.3, 1.3, 1], [0.5, 1.8, 1, 0.3], [0, 0.4, 0.6, 0.7]], np.float32),
         "box_indices": np.zeros(3, np.int32)},
        {"target_height": 2, "target_width": 2, "normalized_coordinates": True, "sampling_mode": "ALIGN_CORNERS",
         "pad_value": np.float32(10)},
        published(np.reshape([3.1, 5.2, 10, 10, 10, 7.9, 10, 13.9, 2.2, 3.1, 9.4, 10.3], (3, 1, 2, 2))),
    ),
    *[
        Case(
            "crop_resize", {"x": IMAGE, "boxes": boxes, "box_indices": OF_IMAGES},
            {"target_height": 3, "target_width": 4, "sampling_mode": "OFFSET_CORNERS",
             "box_coordinate_mode": convention, "spatial_scale": np.float32(scale)},
            of_torch(lambda x, _, indices, b=BOXES, **how: roi_align(x, torch.from_numpy(b), indices, **how)),
        )
        for convention, boxes, scale in (
            ("CORNERS_HEIGHT_FIRST", BOXES, 1),
            ("CORNERS_WIDTH_FIRST", BOXES[:, [1, 0, 3, 2]] * 2, 0.5),
            ("CENTER_SIZE_HEIGHT_FIRST", CENTRED, 1),
            ("CENTER_SIZE_WIDTH_FIRST", CENTRED[:, [1, 0, 3, 2]], 1),
        )
    ],
    *[
        Case(
            "crop_resize", {"x": IMAGE, "boxes": np.array([[0, 0, 4, 6], [0, 0, 4, 6]], np.float32)},
            {"target_height": 8, "target_width": 5, "sampling_mode": mode}, expect,
        )  # the whole image is a box like any other
        for mode, expect in (
            ("STRICT_ALIGN_CORNERS", interpolated("bilinear", (8, 5), align_corners=True)),
            ("UNALIGN_CORNERS", of_torch(lambda x, *_, **__: F.interpolate(x, (8, 5), mode="bilinear"))),
            ("DEFAULT", by("numpy.interp", lambda x, *_, **__: along_grids(
                x, tensorflow_grid(5, 8), tensorflow_grid(7, 5)))),
        )
    ],
]  # fmt: skip


@pytest.mark.parametrize("opset", ["iOS17", "iOS18"])
def test_crop_resize_of_boxes(opset, tmp_path):
    check(CROP_17, tmp_path, 2e-5, opset)
