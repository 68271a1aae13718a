# SPDX-License-Identifier: Apache-2.0
"""Training pairs keyed by their position in the run.

The order, the crop and the colours of the n-th pair of a run are functions of (seed, n) alone. A resumed run thus sees
exactly the pairs that an uninterrupted one would, whatever the number of loader processes, and no loader state is kept.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Sampler, Subset

from vision3d.datasets.augment import training_augmentation
from vision3d.datasets.mixture import parse_mixture
from vision3d.datasets.registry import find_dataset, open_dataset
from vision3d.datasets.transforms import center_crop, published_colors, vertical_flip
from vision3d.errors import ConfigError, check_option_names
from vision3d.training.config import DataConfig, SourceConfig
from vision3d.types import StereoBatch, StereoSample


def open_source(source: SourceConfig, split: str = "train") -> Dataset:
    """Open one data set of a recipe, or a mixture of several.

    Args:
        source: its ``kind`` is what ``open_dataset`` takes; without ``root`` the folder is found as described there.
        split: used where the options do not name one.

    Raises:
        ConfigError: an option that its reader does not have, or no known folder.
    """
    _check_reader_options(source.kind, source.options)
    return open_dataset(source.kind, source.root or None, **{"split": split, **source.options})


def _check_reader_options(kind: str, options: dict[str, Any]) -> None:
    """Raise ConfigError, with the nearest name, for an option that no reader of the kind has (see ``open_dataset``)."""
    entries = {name: find_dataset(name) for _, name in parse_mixture(kind)}
    own = {key: value for key, value in options.items() if key in entries and isinstance(value, Mapping)}
    common = [key for key in options if key not in own]
    for name, entry in entries.items():
        known = {**_reader_options(entry.load()), "split": None}
        check_option_names(f"data set {name}", known, [*common, *own.get(name, {})])


def _reader_options(reader: Callable[..., Any]) -> dict[str, Any]:
    """The options of a reader, with those that it hands on: to its bases, listing of pairs, or the synthetic scenes."""
    from vision3d.datasets.synthetic.scene import SceneOptions
    from vision3d.datasets.synthetic.scenes import SyntheticScenes

    functions = [reader, getattr(reader, "list_entries", None), SceneOptions if reader is SyntheticScenes else None]
    functions += [vars(base).get("__init__") for base in getattr(reader, "__mro__", ())[1:-1]]
    parameters: dict[str, Any] = {}
    for function in filter(None, functions):
        parameters.update(inspect.signature(function).parameters)
    parameters = {name: item for name, item in parameters.items() if name not in ("self", "root")}
    return {name: item for name, item in parameters.items() if item.kind not in (item.VAR_KEYWORD, item.VAR_POSITIONAL)}


def data_length(dataset: Dataset) -> int | None:
    """The number of pairs, or None if there is no end."""
    try:
        return len(dataset)  # type: ignore[arg-type]
    except TypeError:
        return None


def open_sources(sources: list[SourceConfig], split: str = "train") -> Dataset:
    """Chain the data sets of a recipe; ``split`` holds for those that do not name one.

    Raises:
        ConfigError: an endless set beside others, or an illegal ``repeat``.
    """
    opened: list[Dataset] = []
    for source in sources:
        if source.repeat < 1:
            raise ConfigError(f"data set {source.kind} {source.root}: repeat must be at least 1, got {source.repeat}")
        opened += [open_source(source, split)] * source.repeat
    if len(opened) == 1:
        return opened[0]
    if any(data_length(dataset) is None for dataset in opened):
        raise ConfigError("an endless synthetic set cannot be chained with others: give it a number of scenes")
    return ConcatDataset(opened)


class TrainingPairs(Dataset):
    """Augmented training pairs by their position in the run; see the module's text."""

    def __init__(self, dataset: Dataset, config: DataConfig, seed: int) -> None:
        self.dataset, self.config, self.seed = dataset, config, seed
        self.length = data_length(dataset)
        steps = [(step.name, step.options) for step in config.augment]
        self.augment = training_augmentation(steps, config.crop, config.crop_top)
        self._order: tuple[int, np.ndarray] | None = None

    def index_of(self, position: int) -> int:
        """Which pair of the data set stands at ``position``: each epoch visits each pair once, in a new order."""
        if self.length is None:
            return position
        epoch, place = divmod(position, self.length)
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, np.random.default_rng([self.seed, 1, epoch]).permutation(self.length)
        return int(self._order[1][place])

    def __getitem__(self, position: int) -> StereoSample:
        return self.transformed(self.index_of(position), np.random.default_rng([self.seed, 2, position]))

    def transformed(self, index: int, generator: np.random.Generator) -> StereoSample:
        """Pair ``index`` of the data set with the random transforms that the generator draws."""
        sample = self.augment(self.dataset[index], generator)
        if self.config.vertical_flip and generator.random() < self.config.vertical_flip:
            sample = vertical_flip(sample)
        return published_colors(sample, generator) if self.config.color == "published" else sample


class ValidationPairs(Dataset):
    """Validation pairs, cut from the centre if the recipe says so."""

    def __init__(self, dataset: Dataset, crop: tuple[int, int] | None) -> None:
        self.dataset, self.crop = dataset, crop

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> StereoSample:
        sample = self.dataset[index]
        return sample if self.crop is None else center_crop(sample, *self.crop)


class RunBatches(Sampler[list[int]]):
    """Endless batches of run positions, starting at the batch number that ``first_batch()`` tells when iterated."""

    def __init__(self, first_batch: Callable[[], int], batch_size: int, rank: int = 0, world: int = 1) -> None:
        self.first_batch, self.batch_size, self.rank, self.world = first_batch, batch_size, rank, world

    def __iter__(self) -> Iterator[list[int]]:
        number = self.first_batch()
        while True:
            start = (number * self.world + self.rank) * self.batch_size
            yield list(range(start, start + self.batch_size))
            number += 1


def train_loader(
    pairs: TrainingPairs,
    first_batch: Callable[[], int],
    batch_size: int,
    workers: int,
    rank: int,
    world: int,
    collate: Callable[..., Any] = StereoBatch.collate,
) -> DataLoader:
    """The endless loader of batches, made by ``collate``, for one process of a run."""
    batches = RunBatches(first_batch, batch_size, rank, world)
    return DataLoader(pairs, batch_sampler=batches, num_workers=workers, collate_fn=collate)


def validation_loader(
    config: DataConfig, workers: int, rank: int, world: int, collate: Callable[..., Any] = StereoBatch.collate
) -> DataLoader | None:
    """The validation pairs of one process, one a batch, or None if the recipe has none."""
    if not config.validation:
        return None
    pairs: Dataset = ValidationPairs(open_sources(config.validation, "validation"), config.validation_crop)
    length = data_length(pairs)
    if length is None and config.validation_pairs is None:
        raise ConfigError("data.validation has no end: set data.validation_pairs")
    if config.validation_pairs is not None:
        length = config.validation_pairs if length is None else min(length, config.validation_pairs)
    pairs = Subset(pairs, range(rank, length or 0, world))
    return DataLoader(pairs, batch_size=1, num_workers=workers, collate_fn=collate)
