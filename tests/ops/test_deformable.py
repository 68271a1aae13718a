# SPDX-License-Identifier: Apache-2.0
"""Deformable convolution against a scalar loop, the plain convolution, the reference and ONNX Runtime."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from ops_cases import close

from vision3d import ops
from vision3d.errors import InputError
from vision3d.ops import deformable, reference

# channels in and out, deformable groups, groups, stride, padding, dilation, kernel, height, width, mask
CASES = [
    (4, 3, 1, 1, 1, 1, 1, (3, 3), 5, 7, True),
    (4, 6, 2, 1, 1, 2, 2, (3, 3), 6, 5, True),
    (4, 6, 4, 2, 2, 0, 1, (3, 3), 7, 9, False),
    (4, 4, 2, 4, 2, 1, 1, (3, 3), 4, 5, True),
    (2, 3, 1, 1, 1, 0, 1, (1, 1), 1, 1, True),
    (2, 3, 2, 1, 1, 1, 1, (3, 3), 1, 1, True),
    (2, 2, 1, 1, (2, 1), (0, 2), (1, 3), (2, 3), 4, 8, True),
    (50, 2, 2, 1, 1, 1, 1, (3, 3), 3, 4, True),
]


@pytest.fixture(params=["bags", "standard"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each of the two ways of computing, whatever the sizes."""
    chosen = request.param == "standard"
    monkeypatch.setattr(deformable, "_standard", lambda x, y: chosen)
    return request.param


def _inputs(case: tuple, spread: float = 2.0, batch: int = 2) -> tuple[dict, dict]:
    """float64 tensors and options of a case, the same in every run."""
    channels, out, deform, groups, stride, padding, dilation, kernel, height, width, masked = case
    generator = torch.Generator().manual_seed(11)
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    x, weight, bias = draw(batch, channels, height, width), draw(out, channels // groups, *kernel), draw(out)
    rows, columns = F.conv2d(x[:1], weight, **options).shape[2:]
    taps = deform * kernel[0] * kernel[1]
    offset, mask = spread * draw(batch, 2 * taps, rows, columns), draw(batch, taps, rows, columns)
    tensors = {"input": x, "offset": offset, "weight": weight, "bias": bias, "mask": mask if masked else None}
    return tensors, options


def _both(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


def _read(plane: list[list[float]], y: float, x: float) -> float:
    """Bilinear value of one plane, corners outside count as 0."""
    total = 0.0
    for row in (math.floor(y), math.floor(y) + 1):
        for column in (math.floor(x), math.floor(x) + 1):
            if 0 <= row < len(plane) and 0 <= column < len(plane[0]):
                total += plane[row][column] * (1 - abs(y - row)) * (1 - abs(x - column))
    return total


@functools.cache
def _scalar(case: tuple) -> torch.Tensor:
    """The definition, one number after the other."""
    tensors, options = _inputs(case)
    x, offset, weight, bias, mask = (tensors[name] for name in ("input", "offset", "weight", "bias", "mask"))
    (sy, sx), (py, px), (dy, dx) = (_both(options[name]) for name in ("stride", "padding", "dilation"))
    out, per_group, kh, kw = weight.shape
    planes, taps = x.tolist(), kh * kw
    size = x.shape[1] // (offset.shape[1] // (2 * taps))
    result = torch.zeros(x.shape[0], out, *offset.shape[2:], dtype=torch.float64)
    for b, o, r, c in ((*i,) for i in torch.cartesian_prod(*(torch.arange(n) for n in result.shape)).tolist()):
        total = float(bias[o])
        for k in range(per_group):
            channel = o // (out // options["groups"]) * per_group + k
            for tap in range(taps):
                i, j = divmod(tap, kw)
                plane = channel // size * taps + tap
                y = r * sy - py + i * dy + float(offset[b, 2 * plane, r, c])
                column = c * sx - px + j * dx + float(offset[b, 2 * plane + 1, r, c])
                factor = 1.0 if mask is None else float(mask[b, plane, r, c])
                total += float(weight[o, k, i, j]) * factor * _read(planes[b][channel], y, column)
        result[b, o, r, c] = total
    return result


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_equal_a_scalar_loop(case: tuple, form: str) -> None:
    tensors, options = _inputs(case)
    close(ops.deform_conv2d(**tensors, **options), _scalar(case), 1e-12)


@pytest.mark.parametrize("case", [case for case in CASES if isinstance(case[4], int)], ids=str)
def test_reference_equals_a_scalar_loop(case: tuple) -> None:
    tensors, options = _inputs(case)
    close(reference.deform_conv2d(**tensors, **options), _scalar(case), 1e-12)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_offset_and_mask_of_ones_is_a_convolution(case: tuple, form: str) -> None:
    tensors, options = _inputs(case, spread=0.0)
    mask = None if tensors["mask"] is None else torch.ones_like(tensors["mask"])
    expected = F.conv2d(tensors["input"], tensors["weight"], tensors["bias"], **options)
    close(ops.deform_conv2d(**{**tensors, "mask": mask}, **options), expected, 1e-12)


@pytest.mark.parametrize("block", [1, 1 << 20])
@pytest.mark.parametrize("case", [CASES[1], CASES[2], CASES[3], CASES[6]], ids=str)
def test_gradients(case: tuple, block: int, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vision3d.ops._deformable_cpu._BLOCK", block)  # a block of one pixel, and one block in all
    tensors, options = _inputs((*case[:8], case[8] - 1, case[9] - 2, case[10]), batch=2 if block > 1 else 1)
    names = [name for name, value in tensors.items() if value is not None]
    function = lambda *values: ops.deform_conv2d(**dict(zip(names, values, strict=True)), **options)  # noqa: E731
    leaves = tuple(tensors[name].requires_grad_() for name in names)
    assert torch.autograd.gradcheck(function, leaves, fast_mode=True)


@pytest.mark.parametrize("wanted", ["input", "offset", "weight", "bias", "mask"])
def test_one_gradient_alone_is_that_of_the_reference(wanted: str, form: str) -> None:
    tensors, options = _inputs(CASES[1])
    tensors[wanted].requires_grad_()
    seed = torch.linspace(-1, 1, 6 * 6 * 5 * 2, dtype=torch.float64).reshape(2, 6, 6, 5)
    found, expected = (
        torch.autograd.grad((op(**tensors, **options) * seed).sum(), tensors[wanted])[0]
        for op in (ops.deform_conv2d, reference.deform_conv2d)
    )
    close(found, expected, 1e-12)


def test_blocks_and_large_maps_equal_the_reference() -> None:
    generator = torch.Generator().manual_seed(3)
    x, offset, mask = (torch.randn(1, c, 45, 90, generator=generator) for c in (64, 36, 18))
    offset = (3 * offset).floor() + 0.1 + 0.8 * torch.rand(offset.shape, generator=generator)  # clear of the kinks
    weight = torch.randn(8, 64, 3, 3, generator=generator) / 24
    tensors = [value.requires_grad_() for value in (x, offset, weight, mask)]
    results = []
    for op in (ops.deform_conv2d, reference.deform_conv2d):  # float32, two blocks
        result = op(*tensors[:3], mask=tensors[3], padding=2, dilation=2)
        results.append((result, *torch.autograd.grad(result.square().sum(), tensors)))
    for found, expected in zip(*results, strict=True):
        scale = float(expected.detach().abs().max())
        close(found.detach() / scale, expected.detach() / scale, 1e-5)


def test_far_positions_read_nothing_and_have_no_gradient(form: str) -> None:
    tensors, options = _inputs(CASES[1])
    height, width = tensors["input"].shape[2:]
    for far in (1e9, -1e9, math.inf, -math.inf, float(3 * height), -3.0 * width):
        offset = torch.full_like(tensors["offset"], far).requires_grad_()
        result = ops.deform_conv2d(**{**tensors, "offset": offset}, **options)
        close(result, tensors["bias"][:, None, None].expand_as(result), 1e-12)
        result.sum().backward()
        assert offset.grad is not None
        assert (offset.grad == 0).all()


def test_rim_fades_to_zero_over_one_pixel(form: str) -> None:
    x = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    weight = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    for dy, expected in ((-1.0, 0.0), (-0.75, 0.25), (0.0, 1.0), (0.25, 0.75), (1.0, 0.0), (-1.5, 0.0)):
        offset = torch.tensor([dy, 0.0], dtype=torch.float64).reshape(1, 2, 1, 1)
        assert float(ops.deform_conv2d(x, offset, weight)) == pytest.approx(expected)
        assert float(ops.deform_conv2d(x, offset.flip(1), weight)) == pytest.approx(expected)


def test_nan_position_gives_nan_there_alone(form: str) -> None:
    tensors, options = _inputs(CASES[1])
    exact = ops.deform_conv2d(**tensors, **options)
    tensors["offset"][0, 3, 2, 1] = math.nan
    result = ops.deform_conv2d(**tensors, **options)
    assert result[0, :, 2, 1].isnan().all()
    result[0, :, 2, 1] = exact[0, :, 2, 1]
    close(result, exact, 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_types(dtype: torch.dtype, form: str) -> None:
    tensors, options = _inputs((*CASES[1][:8], 6, 300, True))
    rounded = {name: value.to(dtype) for name, value in tensors.items()}
    exact = ops.deform_conv2d(**{name: value.double() for name, value in rounded.items()}, **options)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = ops.deform_conv2d(**rounded, **options)
    assert result.dtype == dtype
    # at column 300 a position rounded to bfloat16 would be off by a pixel
    scale = float(exact.abs().max())
    close(
        result.double() / scale, exact / scale, {torch.float32: 5e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}[dtype]
    )
    mixed = ops.deform_conv2d(rounded["input"], tensors["offset"].float(), tensors["weight"].float(), **options)
    assert mixed.dtype == dtype
    leaf = rounded["input"].requires_grad_()
    ops.deform_conv2d(**rounded, **options).sum().backward()
    assert leaf.grad is not None
    assert leaf.grad.dtype == dtype
    assert leaf.grad.isfinite().all()


def test_strides_and_memory_formats(form: str) -> None:
    tensors, options = _inputs(CASES[1])
    expected = ops.deform_conv2d(**tensors, **options)
    last = {
        name: value if value.dim() < 4 else value.contiguous(memory_format=torch.channels_last)
        for name, value in tensors.items()
    }
    close(ops.deform_conv2d(**last, **options), expected, 1e-12)
    views = {name: value.repeat_interleave(2, dim=-1)[..., ::2] for name, value in tensors.items()}
    close(ops.deform_conv2d(**views, **options), expected, 1e-12)


def test_empty_inputs() -> None:
    tensors, options = _inputs(CASES[1])
    for name in ("input", "offset", "mask"):
        tensors[name] = tensors[name][:0].requires_grad_()
    tensors["weight"].requires_grad_()
    result = ops.deform_conv2d(**tensors, **options)
    assert result.shape == (0, 6, 6, 5)
    result.sum().backward()
    assert (tensors["weight"].grad == 0).all()
    x, offset = torch.zeros(2, 3, 0, 4), torch.zeros(2, 18, 2, 6)  # no rows, but padding
    assert (ops.deform_conv2d(x, offset, torch.ones(5, 3, 3, 3), padding=2) == 0).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"input": (2, 4, 6)}, ["input", "[B, C, H, W]"]),
        ({"input": (2, 5, 6, 5)}, ["[6, 4, 3, 3]", "[2, 5, 6, 5]"]),
        ({"weight": (6, 3, 3, 3)}, ["[6, 3, 3, 3]", "[2, 4, 6, 5]"]),
        ({"weight": (6, 4, 9)}, ["weight", "[6, 4, 9]"]),
        ({"bias": (5,)}, ["bias", "[6]", "[5]"]),
        ({"offset": (2, 35, 6, 5)}, ["[2, 35, 6, 5]", "18"]),
        ({"offset": (2, 54, 6, 5)}, ["[2, 54, 6, 5]", "divide"]),
        ({"offset": (2, 36, 6, 4)}, ["[2, 36, 6, 4]", "[2, 36, 6, 5]"]),
        ({"offset": (1, 36, 6, 5)}, ["[1, 36, 6, 5]", "[2, 36, 6, 5]"]),
        ({"mask": (2, 9, 6, 5)}, ["mask", "[2, 9, 6, 5]", "[2, 18, 6, 5]"]),
        ({"groups": 3}, ["3 groups"]),
        ({"stride": 0}, ["stride", "0"]),
        ({"padding": -1}, ["padding", "-1"]),
        ({"dilation": (2, 0)}, ["dilation", "0"]),
        ({"dilation": 9}, ["kernel", "[2, 4, 6, 5]"]),
    ],
)
def test_wrong_arguments_are_named(change: dict, words: list[str]) -> None:
    tensors, options = _inputs(CASES[1])
    arguments = {**tensors, **options}
    for name, value in change.items():
        arguments[name] = torch.zeros(value) if name in tensors else value
    with pytest.raises(InputError) as caught:
        ops.deform_conv2d(**arguments)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


class _Layer(torch.nn.Module):
    """Two deformable layers with offsets and masks from their own convolutions, as networks use them."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(5)
        shapes = ((54, 4, 3, 3), (6, 4, 3, 3), (18, 6, 3, 3), (5, 6, 3, 3))
        self.weights = torch.nn.ParameterList(torch.randn(shape, generator=generator) * 0.3 for shape in shapes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        maps = F.conv2d(x, self.weights[0], padding=2, dilation=2)
        mask = 2 * maps[:, 36:].sigmoid()
        x = ops.deform_conv2d(x, maps[:, :36], self.weights[1], mask=mask, padding=2, dilation=2)
        offset = F.conv2d(x, self.weights[2], padding=1, stride=2)
        return ops.deform_conv2d(x, offset, self.weights[3], padding=1, stride=2)


def _picture(height: int, width: int) -> torch.Tensor:
    return torch.randn(2, 4, height, width, generator=torch.Generator().manual_seed(9))


def test_exported_graph_takes_any_height_and_width() -> None:
    layer = _Layer().eval()
    free = {2: torch.export.Dim("height", min=8, max=4096), 3: torch.export.Dim("width", min=8, max=4096)}
    program = torch.export.export(layer, (_picture(16, 20),), dynamic_shapes=(free,)).module()
    for size in ((16, 20), (11, 33)):
        close(program(_picture(*size)).detach(), layer(_picture(*size)).detach(), 1e-4)


def test_onnx_graph_takes_any_height_and_width(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    layer, path = _Layer().eval(), tmp_path / "layer.onnx"
    free = {2: torch.export.Dim("height", min=8, max=4096), 3: torch.export.Dim("width", min=8, max=4096)}
    torch.onnx.export(layer, (_picture(16, 20),), path, dynamo=True, dynamic_shapes=(free,), verbose=False)
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for size in ((16, 20), (11, 33)):
        found = session.run(None, {session.get_inputs()[0].name: _picture(*size).numpy()})[0]
        close(torch.from_numpy(found), layer(_picture(*size)).detach(), 1e-4)
