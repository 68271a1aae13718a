# SPDX-License-Identifier: Apache-2.0
"""DispMVS: multi-view stereo by epipolar disparity flow, without a volume over depths.

Yan, Wang, Zhao, Li, Chu, Deng, "Rethinking Disparity: A Depth Range Free Multi-View Stereo Based on Disparity", AAAI
2023 (arXiv 2211.16905). From a random depth, a recurrent network moves each pixel along its epipolar line in every
source view; the depths of the views are merged by learned weights, and the merged depth gives each view its next
position.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from vision3d.errors import ConfigError, InputError
from vision3d.io.checkpoints import load_into, unwrap_state_dict
from vision3d.models.mvs.dispmvs_encoder import Encoder
from vision3d.models.mvs.dispmvs_stage import Stage, StageInputs, Switches
from vision3d.models.mvs.dispmvs_update import UpdateBlock, UpdateWidths
from vision3d.models.normalization import Normalization
from vision3d.ops import pad_to_multiple
from vision3d.registry import register_model
from vision3d.types import DepthOutput

_COARSE, _FINE = 16, 4  # scales of the two stages: 1/16 and 1/4 of the image
_COARSE_LEVELS, _COARSE_RADIUS = 4, 4
_FINE_LEVELS, _FINE_RADIUS = 2, 2


@dataclass(frozen=True)
class DispMVSWidths:
    """Channels: of the encoders at 1/2, 1/4, 1/8, 1/16, of matching features and state of both stages, of updates."""

    encoder: tuple[int, int, int, int] = (64, 96, 128, 128)
    coarse: int = 128
    fine: int = 96
    update: UpdateWidths = field(default_factory=UpdateWidths)


_TINY = DispMVSWidths((32, 48, 64, 64), 64, 48, UpdateWidths((64, 48), (32, 16), 64, 64))


class DispMVS(nn.Module):
    """Depth of a reference view from two or more views with known cameras.

    The defaults are the published network's and are what its weights need; each option names the other behaviour.

    Args:
        iterations: of the fine stage (1/4, result at 1/1) and of the coarse stage (1/16, result at 1/4).
        epipolar: "official", or "closed_form": exact formulas that keep the sign beyond infinity and start each view
            before its camera (see :func:`vision3d.ops.epipolar_lines`).
        upsampling_border: "zeros" draws the rim of the image towards the far end of the range, "replicate" does not.
        mask_hidden_views: give no weight to a source view that the pixel lies behind or outside of.
        half_pixel_pyramid: sample averaged features where they lie.
        clip_output: keep the last result inside the depth range. Without, the range is a start and a scale alone.
        per_view_statistics: in training, batch normalisation of the matching features sees one view at a time.
        deformable_context: deformable convolutions at the end of the context encoder.
        zero_offsets: train them from zero offsets on; the published code starts from random ones.
        widths: channels.
        views_per_pass: source views that go through the network at once in eval mode; None: one on a processor, all on
            an accelerator. Memory grows with it, results are the same.
        seed: of the start depth in eval mode.
    """

    size_multiple = 16
    bytes_per_pixel = 1400.0  # peak memory of a float32 pass with 5 views, one at a time, measured on a CPU
    half_pixel_intrinsics = False  # how intrinsics follow a resize (Camera.resized); the published weights need False

    def __init__(
        self,
        iterations: tuple[int, int] = (2, 8),
        epipolar: str = "official",
        upsampling_border: str = "zeros",
        mask_hidden_views: bool = False,
        half_pixel_pyramid: bool = False,
        clip_output: bool = True,
        per_view_statistics: bool = True,
        deformable_context: bool = True,
        zero_offsets: bool = True,
        widths: DispMVSWidths | None = None,
        views_per_pass: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if min(iterations) < 1:
            raise ConfigError(f"DispMVS: iterations must be at least 1 in both stages, got {tuple(iterations)}")
        if views_per_pass is not None and views_per_pass < 1:
            raise ConfigError(f"DispMVS: views_per_pass must be at least 1, got {views_per_pass}")
        w = widths or DispMVSWidths()
        self.iterations = (int(iterations[0]), int(iterations[1]))
        self.switches = Switches(epipolar, upsampling_border, mask_hidden_views, half_pixel_pyramid)
        self.clip_output, self.per_view_statistics = clip_output, per_view_statistics
        self.views_per_pass, self.seed = views_per_pass, seed
        self.normalization = Normalization((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
        self.fnet = Encoder("instance", w.encoder, (w.coarse, w.fine), "unit")
        head = "deformable" if deformable_context else "plain"
        self.cnet = Encoder("batch", w.encoder, (2 * w.coarse, 2 * w.fine), head, zero_offsets)
        self.update_block_4 = UpdateBlock(_COARSE_LEVELS * (2 * _COARSE_RADIUS + 1), w.coarse, w.update)
        self.update_block_2 = UpdateBlock(_FINE_LEVELS * (2 * _FINE_RADIUS + 1), w.fine, w.update)

    def load_official_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Load the authors' weights or this project's, with or without ``module.`` and an outer dictionary.

        ``norm3`` of a residual block is its ``downsample.1`` under a second name; the latter's values are taken.

        Raises:
            WeightsError: the weights are of another network; the first names that differ are listed.
        """
        weights = unwrap_state_dict(state_dict)
        for name in [name for name in weights if ".downsample.1." in name]:
            second = name.replace(".downsample.1.", ".norm3.")
            if second in self.state_dict():
                weights[second] = weights[name]
        load_into(self, weights)

    def forward(
        self,
        images: Tensor,
        intrinsics: Tensor,
        world_to_camera: Tensor,
        depth_range: Tensor,
        init_depth: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> DepthOutput:
        """Estimate the depth of view 0.

        Args:
            images: [B, N, 3, H, W] RGB in [0, 1], N of 2 or more, any size (padded right and below to multiples of 16).
            intrinsics: [B, N, 3, 3] pixels of these images.
            world_to_camera: [B, N, 4, 4].
            depth_range: [B, 2] least and largest depth, in the unit of the cameras.
            init_depth: [B, 1, ceil(H / 16), ceil(W / 16)] start, or None for a random one, uniform in inverse depth.
            generator: draws the start; None: always the same in eval mode, PyTorch's global one in training mode.

        Returns:
            ``depth`` [B, 1, H, W]; ``confidence``: the weight of the strongest source view (1 with one, 0 where no view
            says anything); ``iterations``: the maps of the coarse stage, [B, 1, ceil(H / 4), ceil(W / 4)], then those
            of the fine stage, [B, 1, H, W].

        Raises:
            InputError: shapes that do not fit each other, or a depth range that is not positive and increasing.
        """
        _check_inputs(images, intrinsics, world_to_camera, depth_range)
        height, width = images.shape[-2:]
        batch, views = images.shape[:2]
        padded, _ = pad_to_multiple(self.normalization(images.flatten(0, 1)), _COARSE)
        padded = padded.unflatten(0, (batch, views))
        sizes = {scale: (-(-height // scale), -(-width // scale)) for scale in (1, _FINE, _COARSE)}
        ends = 1.0 / depth_range.to(torch.float32).flip(1)[:, :, None, None, None]
        far, near = ends[:, 0], ends[:, 1]
        grid = sizes[_COARSE]
        start = self._start(batch, grid, far, near, images.device, generator) if init_depth is None else init_depth
        _check_start(start, (batch, 1, *grid))

        coarse_features, fine_features = self._features(padded)
        coarse_context, fine_context = self.cnet(padded[:, 0])
        cameras = (intrinsics, world_to_camera)
        shared = StageInputs(cameras, far, near, self._group(images, views - 1), self.switches)
        coarse = Stage(self.update_block_4, _COARSE, _COARSE_LEVELS, _COARSE_RADIUS, sizes[_COARSE])
        coarse_maps, _ = coarse.run(shared, coarse_features, coarse_context, start.float(), self.iterations[1])
        fine = Stage(self.update_block_2, _FINE, _FINE_LEVELS, _FINE_RADIUS, sizes[_FINE])
        fine_maps, confidence = fine.run(
            shared, fine_features, fine_context, coarse_maps[-1].detach(), self.iterations[0], self.clip_output
        )
        maps = [m[..., : sizes[_FINE][0], : sizes[_FINE][1]] for m in coarse_maps]
        maps += [m[..., :height, :width] for m in fine_maps]
        return DepthOutput(depth=maps[-1], confidence=confidence[..., :height, :width], iterations=maps)

    def _group(self, images: Tensor, sources: int) -> int:
        """Source views that go through the network at once."""
        if self.training or torch.is_grad_enabled():
            return sources
        if self.views_per_pass is not None:
            return min(self.views_per_pass, sources)
        return 1 if images.device.type == "cpu" else sources

    def _features(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Matching features of all views, [B, N, C, h, w], of the coarse and of the fine stage."""
        views = images.shape[1]
        group = self._group(images, views) if not (self.training and self.per_view_statistics) else 1
        parts = [self.fnet(part.flatten(0, 1)) for part in images.split(group, 1)]
        batch = images.shape[0]
        coarse, fine = zip(*parts, strict=True)
        return (
            torch.cat([part.unflatten(0, (batch, -1)) for part in coarse], 1),
            torch.cat([part.unflatten(0, (batch, -1)) for part in fine], 1),
        )

    def _start(
        self,
        batch: int,
        size: tuple[int, int],
        far: Tensor,
        near: Tensor,
        device: torch.device,
        generator: torch.Generator | None,
    ) -> Tensor:
        """A random depth at 1/16. In eval mode all samples of a batch start alike, as each would alone."""
        count = batch if self.training or generator is not None else 1
        if generator is None and not self.training:
            generator = torch.Generator().manual_seed(self.seed)
        place = torch.device("cpu") if generator is None else generator.device
        share = torch.rand(count, 1, *size, generator=generator, device=place).to(device)
        return 1.0 / (share * (near - far) + far)


def _check_inputs(images: Tensor, intrinsics: Tensor, world_to_camera: Tensor, depth_range: Tensor) -> None:
    if images.dim() != 5 or images.shape[1] < 2 or images.shape[2] != 3 or 0 in images.shape:
        raise InputError(
            f"DispMVS: images must be [B, N, 3, H, W] with a reference and at least one source view, got "
            f"{list(images.shape)}"
        )
    batch, views = images.shape[:2]
    for name, tensor, shape in (
        ("intrinsics", intrinsics, [batch, views, 3, 3]),
        ("world_to_camera", world_to_camera, [batch, views, 4, 4]),
        ("depth_range", depth_range, [batch, 2]),
    ):
        if list(tensor.shape) != shape:
            raise InputError(
                f"DispMVS: {name} must be {shape} for images {list(images.shape)}, got {list(tensor.shape)}"
            )
    if torch.compiler.is_compiling():
        return
    if not bool(
        ((depth_range[:, 0] > 0) & (depth_range[:, 1] > depth_range[:, 0]) & depth_range.isfinite().all(1)).all()
    ):
        raise InputError(
            f"DispMVS: depth_range must be rows of two positive increasing depths, got {depth_range.tolist()}"
        )


def _check_start(start: Tensor, shape: tuple[int, ...]) -> None:
    if start.shape[0] not in (1, shape[0]) or tuple(start.shape[1:]) != shape[1:]:
        raise InputError(f"DispMVS: init_depth must be {list(shape)} (1/16 of the images), got {list(start.shape)}")


@register_model(task="mvs", family="dispmvs")
def dispmvs(**options: object) -> DispMVS:
    """DispMVS as published."""
    return DispMVS(**options)  # type: ignore[arg-type]


@register_model(task="mvs", family="dispmvs")
def dispmvs_tiny(**options: object) -> DispMVS:
    """DispMVS with about a third of the time and the recommended behaviour, for training and use on a processor."""
    recommended: dict[str, object] = {
        "epipolar": "closed_form",
        "upsampling_border": "replicate",
        "mask_hidden_views": True,
        "half_pixel_pyramid": True,
        "per_view_statistics": False,
        "deformable_context": False,
        "widths": _TINY,
    }
    network = DispMVS(**{**recommended, **options})  # type: ignore[arg-type]
    network.bytes_per_pixel = 800.0
    network.half_pixel_intrinsics = True
    return network
