# SPDX-License-Identifier: Apache-2.0
"""``vision3d data``: list, check and make data sets."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from vision3d.cli.data_sets import add_list
from vision3d.cli.data_verify import add_verify
from vision3d.cli.options import image_size, positive
from vision3d.cli.output import console


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add ``vision3d data``."""
    parser = subparsers.add_parser("data", help="list, check and make data sets")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    add_list(actions)
    add_verify(actions)
    synthesize = actions.add_parser(
        "synthesize",
        help="write synthetic stereo scenes with exact disparity",
        description="Write synthetic stereo scenes with exact disparity. A seed and a size always give the same scene. "
        "'--kind rooms --layout irs' writes ray-cast rooms with normals in the folders and file formats of IRS.",
    )
    synthesize.add_argument("out", type=Path, metavar="OUT", help="the folder to write")
    synthesize.add_argument("--scenes", type=positive, default=100, metavar="N", help="how many (default 100)")
    synthesize.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the first scene (default 0)")
    synthesize.add_argument("--size", type=image_size, default=(540, 960), metavar="HxW", help="default 540x960")
    synthesize.add_argument(
        "--layout",
        default="sceneflow",
        metavar="NAME",
        help="sceneflow: folders of PNG and PFM (default); pool: memory-mapped arrays, faster to train from; "
        "panorama_pool: the same of panoramas of rooms; sequence: walks through rooms with poses and depth; or the "
        "folders and file formats of another data set of 'vision3d data list', to try its reader",
    )
    synthesize.add_argument(
        "--rectification-error",
        type=float,
        default=0.0,
        metavar="PX",
        help="largest vertical misalignment of the right view (default 0), of layered scenes only",
    )
    synthesize.add_argument(
        "--kind",
        choices=["layered", "rooms", "mixture"],
        default="layered",
        help="layered: textured shapes in front of each other (default); rooms: ray-cast furnished rooms with normals "
        "(extra '3d'); mixture: rooms at even seeds, layered scenes at odd ones",
    )
    for name, what in (("baseline", "metres (default 0.1 0.1)"), ("focal", "shares of the width (default 0.5 0.5)")):
        synthesize.add_argument(
            f"--{name}", type=float, nargs=2, metavar=("LOW", "HIGH"), help=f"range of the rigs in rooms, {what}"
        )
    synthesize.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other option of the scenes (docs/synthetic.md), as photometric=0.4 or furniture=[3,8]; repeatable",
    )
    synthesize.add_argument(
        "--views",
        type=positive,
        metavar="N",
        help="multi-view sets of N views with depth instead of pairs, with --kind rooms --layout pool; frames of a "
        "sequence (default 16), with --kind rooms --layout sequence",
    )
    synthesize.add_argument(
        "--turn",
        type=float,
        default=1.0,
        metavar="X",
        help="factor on the rotation of sequences, 1 to 2 degrees a frame",
    )
    synthesize.add_argument("--split", choices=["TRAIN", "TEST"], default="TRAIN", help="of sceneflow (default TRAIN)")
    synthesize.add_argument("--workers", type=positive, default=1, metavar="N", help="processes (default 1)")
    synthesize.set_defaults(run=run_synthesize)


def run_synthesize(arguments: argparse.Namespace) -> int:
    """Make the scenes and write them."""
    from rich.progress import track

    from vision3d.datasets.sceneflow import write_sceneflow_tree
    from vision3d.datasets.synthetic import SceneOptions
    from vision3d.datasets.synthetic.kinds import make_pair
    from vision3d.datasets.toy import list_layouts, write_toy_tree
    from vision3d.errors import UnknownNameError
    from vision3d.io.files import ensure_folder

    if arguments.layout == "panorama_pool":
        return _synthesize_panoramas(arguments)
    if arguments.layout == "sequence":
        return _synthesize_sequences(arguments)
    if arguments.layout not in list_layouts():
        raise UnknownNameError("layout", arguments.layout, [*list_layouts(), "panorama_pool", "sequence"])

    ensure_folder(arguments.out)
    height, width = arguments.size
    layered, rooms = _split_settings(arguments.set, arguments.kind)
    rooms |= _room_options(arguments)
    options = SceneOptions(rectification_error=arguments.rectification_error, **layered)
    make: Callable[[int], Any]
    make = partial(make_pair, height=height, width=width, kind=arguments.kind, layered=options, rooms=rooms)
    if arguments.views is not None:
        make = _view_maker(arguments, rooms)
    seeds = range(arguments.seed, arguments.seed + arguments.scenes)
    samples = track(
        _samples(make, seeds, arguments.workers),
        total=arguments.scenes,
        description="scenes",
        console=console(stderr=True),
    )
    if arguments.views is not None:
        from vision3d.datasets.multiview_pool import write_multiview_pool

        write_multiview_pool(arguments.out, samples)
    elif arguments.layout == "sceneflow":
        write_sceneflow_tree(arguments.out, samples, arguments.split)
    else:
        write_toy_tree(arguments.layout, arguments.out, samples)
    print(f"{arguments.scenes} scenes in {arguments.out}")
    return 0


def _synthesize_panoramas(arguments: argparse.Namespace) -> int:
    """Write a pool of panoramas of rooms.

    Raises:
        ConfigError: options that panoramas do not have.
    """
    from rich.progress import track

    from vision3d.datasets.panorama_pool import write_panorama_pool
    from vision3d.datasets.synthetic.rooms import RoomOptions, make_room_panorama
    from vision3d.errors import ConfigError
    from vision3d.io.files import ensure_folder

    height, width = arguments.size
    stereo = arguments.baseline or arguments.focal or arguments.rectification_error or arguments.views
    if arguments.kind != "rooms" or stereo:
        raise ConfigError("--layout panorama_pool needs --kind rooms, and none of the options of pairs and of views")
    if width != 2 * height:
        raise ConfigError(f"--size {height}x{width}: a panorama is twice as wide as high, e.g. 256x512")
    _, rooms = _split_settings(arguments.set, arguments.kind)
    make = partial(make_room_panorama, height=height, options=RoomOptions(**rooms))
    seeds = range(arguments.seed, arguments.seed + arguments.scenes)
    samples = track(
        _samples(make, seeds, arguments.workers),
        total=arguments.scenes,
        description="panoramas",
        console=console(stderr=True),
    )
    write_panorama_pool(ensure_folder(arguments.out), samples)
    print(f"{arguments.scenes} panoramas in {arguments.out}")
    return 0


def _synthesize_sequences(arguments: argparse.Namespace) -> int:
    """Write walks through rooms, each in its own folder.

    Raises:
        ConfigError: options that sequences do not have.
    """
    from rich.progress import track

    from vision3d.datasets.synthetic.rooms import RoomOptions, make_room_sequence, write_room_sequence
    from vision3d.errors import ConfigError

    if arguments.kind != "rooms" or arguments.baseline or arguments.rectification_error:
        raise ConfigError("--layout sequence needs --kind rooms, and none of the options of pairs")
    height, width = arguments.size
    _, rooms = _split_settings(arguments.set, arguments.kind)
    options = RoomOptions(**(rooms | _room_options(arguments)))
    make = partial(
        make_room_sequence,
        frames=arguments.views or 16,
        height=height,
        width=width,
        options=options,
        turn=arguments.turn,
    )
    seeds = range(arguments.seed, arguments.seed + arguments.scenes)
    samples = _samples(make, seeds, arguments.workers)
    for sample in track(samples, total=arguments.scenes, description="sequences", console=console(stderr=True)):
        write_room_sequence(arguments.out / sample.name, sample)
    print(f"{arguments.scenes} sequences in {arguments.out}")
    return 0


def _view_maker(arguments: argparse.Namespace, rooms: dict[str, Any]) -> Callable[[int], Any]:
    """The maker of multi-view sets that ``--views`` asks for.

    Raises:
        ConfigError: options that do not go with it.
    """
    from vision3d.datasets.synthetic.rooms import RoomOptions, make_room_views
    from vision3d.errors import ConfigError

    if arguments.kind != "rooms" or arguments.layout != "pool" or arguments.views < 2:
        raise ConfigError("--views makes multi-view sets of 2 or more views: add --kind rooms --layout pool")
    height, width = arguments.size
    return partial(make_room_views, views=arguments.views, height=height, width=width, options=RoomOptions(**rooms))


def _split_settings(texts: Sequence[str], kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of layered scenes and of rooms among ``NAME=VALUE`` (values in YAML).

    Raises:
        ConfigError: no option of this kind of scenes, or not of that form.
    """
    import yaml

    from vision3d.datasets.synthetic import SceneOptions
    from vision3d.datasets.synthetic.rooms import RoomOptions
    from vision3d.errors import ConfigError, check_option_names

    found: dict[str, dict[str, Any]] = {"layered": {}, "rooms": {}}
    names = {"layered": SceneOptions.__dataclass_fields__, "rooms": RoomOptions.__dataclass_fields__}
    used = list(found) if kind == "mixture" else [kind]
    for text in texts:
        name, separator, value = text.partition("=")
        try:
            content = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {text}: the value is not YAML") from error
        if not separator:
            raise ConfigError(f"--set {text}: write it as NAME=VALUE")
        check_option_names(f"--set for {kind} scenes", {key: None for each in used for key in names[each]}, [name])
        for each in used:
            if name in names[each]:
                found[each][name] = _like(content, names[each][name].default, text)
    return found["layered"], found["rooms"]


def _like(value: Any, default: Any, text: str) -> Any:
    """``value`` in the form of the default: a number, true or false, or as many numbers.

    Raises:
        ConfigError: it is of another form.
    """
    from vision3d.errors import ConfigError

    def number(item: Any) -> bool:
        return isinstance(item, (int, float)) and not isinstance(item, bool)

    if isinstance(default, bool):
        fits, form = isinstance(value, bool), "true or false"
    elif isinstance(default, tuple):
        fits = isinstance(value, list) and len(value) == len(default) and all(map(number, value))
        form = f"{len(default)} numbers as [LOW,HIGH]"
    else:
        fits, form = number(value), "a number"
    if not fits:
        raise ConfigError(f"--set {text}: the value must be {form}")
    return tuple(value) if isinstance(value, list) else value


def _room_options(arguments: argparse.Namespace) -> dict[str, object]:
    """The options of rooms that were given; illegal combinations are refused before anything is written."""
    from vision3d.errors import ConfigError

    given: dict[str, Any] = {
        name: tuple(getattr(arguments, name)) for name in ("baseline", "focal") if getattr(arguments, name)
    }
    if given and arguments.kind == "layered":
        raise ConfigError(f"--{next(iter(given))} belongs to rooms: add --kind rooms or --kind mixture")
    if given and arguments.layout == "irs":
        raise ConfigError(f"--{next(iter(given))}: the layout irs has one camera for all pairs: leave the option out")
    if arguments.rectification_error and arguments.kind == "rooms":
        raise ConfigError("--rectification-error belongs to layered scenes: leave it out with --kind rooms")
    if arguments.kind != "layered":
        from vision3d.datasets.synthetic.rooms import RoomOptions

        RoomOptions(**given)
    return given


def _samples(make: Callable[[int], Any], seeds: Sequence[int], workers: int) -> Iterator[Any]:
    """The scene of each seed; the number of processes does not change them."""
    if workers == 1:
        yield from map(make, seeds)
        return
    with ProcessPoolExecutor(workers) as pool:
        for start in range(0, len(seeds), 4 * workers):  # so that scenes that wait to be written do not fill the memory
            yield from pool.map(make, seeds[start : start + 4 * workers])
