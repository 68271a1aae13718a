# SPDX-License-Identifier: Apache-2.0
"""EASNet: the supernet and the networks extracted from it (arXiv 2207.09796)."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vision3d.errors import ConfigError, InputError, WeightsError
from vision3d.io.checkpoints import unwrap_state_dict
from vision3d.models.normalization import Normalization
from vision3d.models.stereo.easnet.aggregation import SCALE_BINS, AdaptiveAggregation
from vision3d.models.stereo.easnet.checkpoints import dead_heads, detect_setting, is_supernet, load_network
from vision3d.models.stereo.easnet.features import DynamicFeaturePyramid, FeaturePyramid
from vision3d.models.stereo.easnet.initialization import INITIALIZATIONS, initialize
from vision3d.models.stereo.easnet.refinement import Refinement
from vision3d.models.stereo.easnet.settings import (
    FULL_SPACE,
    NAMED_SETTINGS,
    STAGE_STRIDES,
    STAGES,
    SearchSpace,
    Setting,
    largest_setting,
    parse_setting,
    published_seed,
    sample_setting,
)
from vision3d.ops import correlation_1d, disparity_regression, resize_disparity
from vision3d.registry import register_model
from vision3d.types import StereoOutput

WARP_MODES = ("official", "exact")
WARP_ENTRY = "warp_mode"


class _EASNetBase(nn.Module):
    """What the supernet and the extracted networks share: everything but the features."""

    size_multiple = 1
    max_disparity = 192
    bytes_per_pixel = 1200.0  # peak memory of a float32 pass of the small network at 544x960, measured on a CPU: 1181

    def __init__(
        self, features: nn.Module, scales: int, warp_mode: str, initialization: str, refine: bool = True
    ) -> None:
        super().__init__()
        for name, value, legal in (
            ("warp_mode", warp_mode, WARP_MODES),
            ("initialization", initialization, INITIALIZATIONS),
        ):
            if value not in legal:
                raise ConfigError(f"{name} must be one of {', '.join(legal)}, got {value!r}")
        self.warp_mode, self.refine = warp_mode, refine
        self.normalization: nn.Module = Normalization()
        self.feature_extractor = features
        self.aggregation = AdaptiveAggregation(scales)
        self.refinement = nn.ModuleList(Refinement(warp_mode) for _ in range(2))
        initialize(self, initialization)

    def forward(self, left: Tensor, right: Tensor) -> StereoOutput:
        """Disparity of the left view.

        Args:
            left, right: [B, 3, H, W], RGB in [0, 1], rectified; any size from 2x2. Multiples of 24 need no resizing
                between the scales.

        Returns:
            ``disparity`` [B, 1, H, W]; ``pyramid``: S + 2 maps for S scales, of 1/1, 1/2, 1/3, 1/6 ... of the size,
            each in pixels of its own width (none of 1/2 without refinement); in training mode ``stages``: one list of
            the same maps, finest first, in pixels of the input, and in ``auxiliary`` the scores of the bins,
            ``scores0`` the finest.

        Raises:
            InputError: shapes that do not fit.
        """
        _check_pair(left, right)
        if self.training:
            _check_training_size(left, len(self.feature_extractor.stage_lengths))  # type: ignore[arg-type]
        left, right = self.normalization(left), self.normalization(right)
        scores = self.aggregation(self._volumes(left, right))
        maps = [disparity_regression(score) for score in scores]
        if self.refine:
            halves = [F.interpolate(v, scale_factor=0.5, mode="bilinear", align_corners=False) for v in (left, right)]
            for refine, views in zip(self.refinement, (halves, [left, right]), strict=True):
                maps.insert(0, refine(maps[0], *views))
        else:
            maps.insert(0, resize_disparity(maps[0], (left.shape[-2], left.shape[-1])))
        output = StereoOutput(disparity=maps[0], pyramid=maps)
        if self.training:
            width = left.shape[-1]
            output.stages = [[map_ * (width / map_.shape[-1]) for map_ in maps]]
            output.auxiliary = {f"scores{scale}": score for scale, score in enumerate(scores)}
        return output

    def _volumes(self, left: Tensor, right: Tensor) -> list[Tensor]:
        """One similarity volume a scale, finest first."""
        if self.training:  # as published: batch statistics of each view
            pairs = list(zip(self.feature_extractor(left), self.feature_extractor(right), strict=True))
        else:
            both = self.feature_extractor(torch.cat([left, right]))
            pairs = [features.tensor_split(2) for features in both]
        dtype = torch.promote_types(pairs[0][0].dtype, torch.float32)
        return [correlation_1d(*pair, bins, dtype=dtype) for pair, bins in zip(pairs, SCALE_BINS, strict=False)]


def _check_pair(left: Tensor, right: Tensor) -> None:
    if left.dim() != 4 or left.shape[1] != 3:
        raise InputError(f"left must be [B, 3, H, W], got {list(left.shape)}: pass RGB images with a batch axis")
    if left.shape != right.shape:
        raise InputError(f"left is {list(left.shape)} but right is {list(right.shape)}: both views must be of one size")
    height, width = left.shape[-2:]
    if height < 2 or width < 2:
        raise InputError(f"height {height} and width {width} must be at least 2")


def _check_training_size(left: Tensor, scales: int) -> None:
    """Raise InputError where batch normalisation would see one number a channel."""
    batch, _, height, width = left.shape
    coarsest = math.prod(STAGE_STRIDES[:scales])
    if batch == 1 and max(height, width) <= coarsest:
        raise InputError(
            f"one pair of {height}x{width} leaves a single pixel at the coarsest scale, which cannot be normalised in "
            f"training: use a crop larger than {coarsest}, or more pairs"
        )


class EASNet(_EASNetBase):
    """One sub-network, with static layers.

    Args:
        setting: a :class:`~vision3d.models.stereo.easnet.settings.Setting` or ``{"ks": 7, "e": 8, "d": 4, "s": 4}``;
            None is the largest, and weights of another extracted network that are loaded then change it to theirs.
        warp_mode: "official" (public weights) or "exact" (samples at x - d; for training anew).
        initialization: "correlation" (scores start as the plain correlation of random features, offsets and residuals
            at 0) or "published" (all weights drawn as in the authors' code).
        refine: False leaves both refinement steps out (their weights stay): the answer is the enlarged map of 1/3.

    Raises:
        ConfigError: an illegal option or setting.
    """

    def __init__(
        self,
        setting: Setting | Mapping[str, Any] | None = None,
        *,
        warp_mode: str = "official",
        initialization: str = "correlation",
        refine: bool = True,
    ) -> None:
        checked = largest_setting() if setting is None else parse_setting(setting)
        super().__init__(FeaturePyramid(checked), checked.scales, warp_mode, initialization, refine)
        self.setting = checked
        self._takes_any_setting = setting is None
        self._freeze_dead_heads()

    def _freeze_dead_heads(self) -> None:
        for head in self.aggregation.final_conv[self.setting.scales :]:
            head.requires_grad_(False)  # kept for its names alone

    def _become(self, setting: Setting) -> None:
        """Change the layers, whose weights are to be loaded, to those of another setting."""
        example = next(self.parameters())
        self.feature_extractor = FeaturePyramid(setting)
        self.aggregation = AdaptiveAggregation(setting.scales)
        self.setting = setting
        self._freeze_dead_heads()
        self.to(example.device, example.dtype).train(self.training)

    def exported_state_dict(self) -> dict[str, Tensor]:
        """The state dict with an entry that tells the warp mode, which ``load_official_state_dict`` heeds."""
        return {**self.state_dict(), WARP_ENTRY: torch.tensor(WARP_MODES.index(self.warp_mode))}

    def _take_warp_mode(self, entry: Tensor) -> None:
        if entry.tolist() not in range(len(WARP_MODES)):
            raise WeightsError(f"entry {WARP_ENTRY!r} is {entry.tolist()}, 0 or 1 is expected: the weights are damaged")
        self.warp_mode = WARP_MODES[int(entry)]
        for refine in self.refinement:
            refine.warp_mode = self.warp_mode  # type: ignore[assignment]

    def load_official_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Load weights of this setting, or take them out of weights of the supernet.

        A network that was made without a setting takes that of the weights.
        Both name generations of the authors are understood. Final convolutions of absent scales may be there or not.
        Statistics taken out of a supernet have to be calibrated anew:
        ``vision3d.models.batch_norm.recalibrate_batch_norm``.

        Raises:
            WeightsError: the weights are of another network or setting, or damaged.
        """
        bare = unwrap_state_dict(state_dict)
        warp = bare.pop(WARP_ENTRY, None)
        if is_supernet(bare):
            supernet = EASNetSupernet()
            supernet.load_official_state_dict(bare)
            bare = dict(supernet.extract(self.setting).state_dict())
        elif self._takes_any_setting:
            found = detect_setting(bare)
            if found is not None and found != detect_setting(self.state_dict()):
                self._become(found)
        load_network(self, bare, dead_heads(self.setting.scales))
        if warp is not None:
            self._take_warp_mode(warp)


class EASNetSupernet(_EASNetBase):
    """All sub-networks in one set of weights. The largest one is active at first.

    Args:
        search_space: the legal settings; matrices of the kernels exist unless the only kernel size is 7.
        warp_mode, initialization, refine: as for :class:`EASNet`.

    Raises:
        ConfigError: an illegal option.
    """

    def __init__(
        self,
        search_space: SearchSpace = FULL_SPACE,
        *,
        warp_mode: str = "official",
        initialization: str = "correlation",
        refine: bool = True,
    ) -> None:
        if not isinstance(search_space, SearchSpace):
            raise ConfigError(f"search_space must be a SearchSpace, got {type(search_space).__name__}")
        setting = largest_setting(search_space)
        transformed = search_space.kernels[0] < 7
        super().__init__(DynamicFeaturePyramid(setting, transformed), STAGES, warp_mode, initialization, refine)
        self.search_space = search_space

    @property
    def setting(self) -> Setting:
        """The active setting."""
        return self.feature_extractor.setting  # type: ignore[return-value]

    def set_active(self, setting: Setting | Mapping[str, Any]) -> Setting:
        """Choose the sub-network that acts from now on; returns the checked setting.

        Batch-norm statistics fit it only after ``vision3d.models.batch_norm.recalibrate_batch_norm``.

        Raises:
            ConfigError: a setting outside the search space; the message names the field and its legal values.
        """
        checked = parse_setting(setting, self.search_space)
        self.feature_extractor.setting = checked  # type: ignore[assignment]
        return checked

    def sample(self, step: int, index: int = 0, space: SearchSpace | None = None) -> Setting:
        """Draw and activate the ``index``-th sub-network of a training step; the same in every process.

        Args:
            step: global training step.
            index: number of the sub-network within the step.
            space: a part of the search space (a phase of the shrinking); None is the whole.
        """
        return self.set_active(sample_setting(published_seed(step, index), space or self.search_space))

    def extract(self, setting: Setting | Mapping[str, Any] | None = None) -> EASNet:
        """The sub-network as a network of its own (copies), in the same mode and on the same device.

        Args:
            setting: None is the active one.

        Raises:
            ConfigError: a setting outside the search space.
        """
        checked = self.setting if setting is None else parse_setting(setting, self.search_space)
        example = next(self.parameters())
        network = EASNet(checked, warp_mode=self.warp_mode, refine=self.refine).to(example.device, example.dtype)
        self.feature_extractor.export_to(network.feature_extractor, checked)  # type: ignore[operator]
        own = self.aggregation.state_dict()
        network.aggregation.load_state_dict({name: own[name] for name in network.aggregation.state_dict()})
        network.refinement.load_state_dict(self.refinement.state_dict())
        network.normalization = copy.deepcopy(self.normalization)
        return network.train(self.training)

    def sort_channels(self, stage: int = 0) -> None:
        """Order the middle channels of each block by importance, which leaves the largest network's output as it is.

        To be called before the expand ratio becomes elastic: the narrower networks use the first channels.

        Args:
            stage: 0 sorts all channels together; n first parts them at the widths of the n next smaller ratios, and
                sorts each range for itself (the authors' code runs with 2: ranges at the ratios 4 and 6).

        Raises:
            ConfigError: a stage below 0 or above the number of smaller ratios.
        """
        largest = len(FULL_SPACE.expand_ratios) - 1
        if not 0 <= stage <= largest:
            raise ConfigError(f"stage must be from 0 to {largest}, got {stage}")
        self.feature_extractor.sort_channels(stage, FULL_SPACE.expand_ratios)  # type: ignore[operator]

    def load_official_state_dict(self, state_dict: Mapping[str, object]) -> None:
        """Load weights of a supernet in either name generation of the authors, or of the largest extracted network.

        Kernel matrices that the file lacks stay as they are (the identity in a new network).

        Raises:
            WeightsError: the weights are of another network.
        """
        load_network(self, state_dict)


@register_model(task="stereo", family="easnet")
def easnet_supernet(**options: object) -> EASNetSupernet:
    """The EASNet supernet. Options: :class:`EASNetSupernet`."""
    return EASNetSupernet(**options)  # type: ignore[arg-type]


@register_model(task="stereo", family="easnet")
def easnet(**options: object) -> EASNet:
    """An EASNet of any ``setting``; by default the largest. Options: :class:`EASNet`."""
    return EASNet(**options)  # type: ignore[arg-type]


def _named(name: str, options: Mapping[str, Any]) -> EASNet:
    if "setting" in options:
        raise ConfigError(f"{name}: its setting is {NAMED_SETTINGS[name]}: leave 'setting' out, or take 'easnet'")
    return EASNet(NAMED_SETTINGS[name], **options)


@register_model(task="stereo", family="easnet")
def easnet_s(**options: object) -> EASNet:
    """The small EASNet (``NAMED_SETTINGS``). Options: :class:`EASNet`, without the setting."""
    return _named("easnet_s", options)


@register_model(task="stereo", family="easnet")
def easnet_m(**options: object) -> EASNet:
    """The medium EASNet (``NAMED_SETTINGS``). Options: :class:`EASNet`, without the setting."""
    return _named("easnet_m", options)


@register_model(task="stereo", family="easnet")
def easnet_l(**options: object) -> EASNet:
    """The large EASNet (``NAMED_SETTINGS``). Options: :class:`EASNet`, without the setting."""
    return _named("easnet_l", options)
