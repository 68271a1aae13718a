# SPDX-License-Identifier: Apache-2.0
"""The registry of data sets: readers by name, imported when first used."""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from vision3d.datasets.mixture import MixedDataset, parse_mixture
from vision3d.datasets.roots import find_root
from vision3d.errors import ConfigError, UnknownNameError
from vision3d.registry import TASKS

if TYPE_CHECKING:
    from torch.utils.data import Dataset

Reader = TypeVar("Reader", bound=Callable[..., Any])
Root = str | os.PathLike[str]


@dataclass(frozen=True)
class DatasetEntry:
    """A registered data set.

    Attributes:
        name, task: as listed.
        reader: ``reader(root, split=..., **options)``, or where it lies, ``"module:name"``. ``split`` is passed if it
            has such an argument.
        needs_root: whether it reads files.
    """

    name: str
    task: str
    reader: str | Callable[..., Any]
    needs_root: bool = True

    def load(self) -> Callable[..., Any]:
        """The reader, imported."""
        if not isinstance(self.reader, str):
            return self.reader
        module, _, attribute = self.reader.partition(":")
        return getattr(importlib.import_module(module), attribute)  # type: ignore[no-any-return]


_ENTRIES: dict[str, DatasetEntry] = {}


def register_dataset(
    name: str, reader: str | Callable[..., Any] | None = None, *, task: str = "stereo", needs_root: bool = True
) -> Callable[[Reader], Reader]:
    """Register a reader under a name; as a decorator where ``reader`` is None.

    Args:
        name: what ``open_dataset`` takes.
        reader: the class or function, or ``"module:name"``, which is imported when the set is opened.
        task: a task of ``vision3d.list_models``.
        needs_root: False for sets that are made, not read.

    Raises:
        UnknownNameError: unknown task. ConfigError: the name is taken, or not of letters, digits and ``_``.

    Example:
        >>> @register_dataset("warehouse")  # doctest: +SKIP
        ... def open_warehouse(root, split="train"): ...
    """
    if task not in TASKS:
        raise UnknownNameError("task", task, TASKS)
    if not name.isidentifier():
        raise ConfigError(f"data set name '{name}': use letters, digits and _ only")

    def register(function: Any) -> Any:
        known = _ENTRIES.get(name)
        if known is not None and known.reader != function:
            raise ConfigError(f"data set name '{name}' is registered twice: choose another one")
        _ENTRIES[name] = DatasetEntry(name, task, function, needs_root)
        return function

    if reader is not None:
        register(reader)
    return register


def list_datasets(task: str | None = None) -> list[str]:
    """Names of the registered data sets, sorted; ``task`` keeps those of one task.

    Raises:
        UnknownNameError: unknown task.
    """
    if task is not None and task not in TASKS:
        raise UnknownNameError("task", task, TASKS)
    return sorted(name for name, entry in _ENTRIES.items() if task in (None, entry.task))


def find_dataset(name: str) -> DatasetEntry:
    """The entry of a name.

    Raises:
        UnknownNameError: not registered; the message lists the nearest ones.
    """
    if name not in _ENTRIES:
        raise UnknownNameError("data set", name, _ENTRIES)
    return _ENTRIES[name]


def open_dataset(
    spec: str, root: Root | Mapping[str, Root] | None = None, split: str = "train", **options: Any
) -> Dataset[Any]:
    """Open a data set, or a mixture of several.

    Args:
        spec: a registered name, or a mixture ``"sceneflow + 2*kitti2015"``; the weights say how often each pair counts
            in an epoch.
        root: its folder; for a mixture a mapping from names to folders. Where it is not given, see
            :func:`vision3d.datasets.roots.find_root`.
        split: ``train``, ``validation``, ``test`` or ``all``, as far as the set has them (its card says it); sets
            without splits give all that they have.
        options: those of the reader. An option that is a mapping and named like a set of the mixture holds the options
            (also ``split``) of that set alone.

    Returns:
        A torch data set with ``name`` and ``scenes``; stereo sets give :class:`vision3d.types.StereoSample`.

    Raises:
        ConfigError: bad syntax of the mixture (the message says where), unknown split or option, or no known folder.
        UnknownNameError: a set that is not registered.
        FileFormatError: no such folder, or it does not hold the set.

    Example:
        >>> data = open_dataset("kitti2015", "kitti2015", split="validation")  # doctest: +SKIP
    """
    terms = parse_mixture(spec)
    entries = [find_dataset(name) for _, name in terms]
    names = {entry.name for entry in entries}
    if isinstance(root, Mapping):
        for name in root:
            if name not in names:
                raise UnknownNameError("data set among the roots", name, names)
    elif root is not None and sum(entry.needs_root for entry in entries) > 1:
        raise ConfigError(f"root {os.fspath(root)}: '{spec}' has several folders; pass a mapping from names to folders")
    own = {key: value for key, value in options.items() if key in names and isinstance(value, Mapping)}
    common = {key: value for key, value in options.items() if key not in own}
    parts = []
    for entry in entries:
        folder = root.get(entry.name) if isinstance(root, Mapping) else root
        parts.append(_open(entry, folder, {"split": split, **common, **own.get(entry.name, {})}))
    if len(parts) == 1 and terms[0][0] == 1:
        return parts[0]
    return MixedDataset(spec, parts, [weight for weight, _ in terms])


def _open(entry: DatasetEntry, root: Root | None, options: dict[str, Any]) -> Any:
    reader = entry.load()
    signature = inspect.signature(reader)
    if "split" not in signature.parameters:
        options = {key: value for key, value in options.items() if key != "split"}
    places = (find_root(entry.name, root),) if entry.needs_root else ()
    try:
        signature.bind(*places, **options)
        return reader(*places, **options)
    except TypeError as error:  # of the binding, or of a reader that hands its options on
        hint = ", ".join(_option_names(reader)) or "none"
        message = re.sub(r"^\w+\.__init__\(\) ", "", str(error))
        raise ConfigError(f"data set {entry.name}: {message}; its options: {hint}") from error


def _option_names(reader: Any) -> list[str]:
    """Options of a reader, and of the readers that it hands further options on to."""
    names: dict[str, None] = {}
    for owner in inspect.getmro(reader) if inspect.isclass(reader) else (reader,):
        if inspect.isclass(owner) and "__init__" not in vars(owner):
            continue
        parameters = inspect.signature(owner).parameters.values()
        names |= dict.fromkeys(one.name for one in parameters if one.kind != one.VAR_KEYWORD)
        if all(one.kind != one.VAR_KEYWORD for one in parameters):
            break
    return [name for name in names if name not in ("root", "split")]


for _name, _reader in (
    ("sceneflow", "sceneflow:SceneFlowStereo"),
    ("flyingthings3d", "sceneflow:FlyingThings3DStereo"),
    ("driving", "sceneflow:DrivingStereoSceneFlow"),
    ("monkaa", "sceneflow:MonkaaStereo"),
    ("kitti2012", "kitti:Kitti2012Stereo"),
    ("kitti2015", "kitti:Kitti2015Stereo"),
    ("irs", "irs:IrsStereo"),
    ("middlebury2001", "middlebury:Middlebury2001Stereo"),
    ("middlebury2003", "middlebury:Middlebury2003Stereo"),
    ("middlebury2005", "middlebury:Middlebury2005Stereo"),
    ("middlebury2006", "middlebury:Middlebury2006Stereo"),
    ("middlebury2014", "middlebury:Middlebury2014Stereo"),
    ("middlebury2021", "middlebury:Middlebury2021Stereo"),
    ("middlebury_v3", "middlebury:MiddleburyV3Stereo"),
    ("eth3d", "eth3d:Eth3dStereo"),
    ("sintel", "sintel:SintelStereo"),
    ("instereo2k", "instereo2k:InStereo2KStereo"),
    ("drivingstereo", "drivingstereo:DrivingStereo"),
    ("vkitti2", "vkitti2:VirtualKitti2Stereo"),
    ("tartanair", "tartanair:TartanAirStereo"),
    ("folder", "folder:FolderStereo"),
    ("pool", "cache:PoolStereo"),
):
    register_dataset(_name, f"vision3d.datasets.{_reader}")
for _name, _task, _reader in (
    ("dtu", "mvs", "dtu:DtuTraining"),
    ("dtu_test", "mvs", "dtu:DtuTest"),
    ("blendedmvs", "mvs", "blendedmvs:BlendedMvs"),
    ("tanks_and_temples", "mvs", "tanks_and_temples:TanksAndTemples"),
    ("mvsnet_folder", "mvs", "multiview:MVSNetFolder"),
    ("posed_images", "mvs", "posed_images:PosedImages"),
    ("multiview_pool", "mvs", "multiview_pool:MultiViewPool"),
    ("image_folder", "nerf", "posed_images:ImageFolder"),
    ("nerfbuster", "nerf", "nerf_scenes:NerfBuster"),
    ("llff", "nerf", "nerf_scenes:Llff"),
    ("stanford2d3d", "panorama", "panorama_sets:Stanford2D3D"),
    ("matterport3d", "panorama", "panorama_sets:Matterport3D"),
    ("panorama3d60", "panorama", "panorama_sets:Panorama3D60"),
    ("pano3d", "panorama", "panorama_sets:Pano3D"),
    ("structured3d", "panorama", "panorama_sets:Structured3D"),
    ("panorama_list", "panorama", "panorama:PanoramaList"),
    ("panorama_pool", "panorama", "panorama_pool:PoolPanoramas"),
):
    register_dataset(_name, f"vision3d.datasets.{_reader}", task=_task)
register_dataset("synthetic", "vision3d.datasets.synthetic.scenes:SyntheticScenes", needs_root=False)
register_dataset(
    "synthetic_panoramas", "vision3d.datasets.panorama_pool:RoomPanoramas", task="panorama", needs_root=False
)
register_dataset("synthetic_rooms", "vision3d.datasets.synthetic.rooms:RoomStereo", needs_root=False)
