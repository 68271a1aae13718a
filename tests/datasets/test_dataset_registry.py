# SPDX-License-Identifier: Apache-2.0
"""Names, mixtures and folders of data sets; their cards; the command."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

from vision3d.cli.main import main
from vision3d.datasets import registry
from vision3d.datasets.cards import load_dataset_card
from vision3d.datasets.mixture import MixedDataset, parse_mixture
from vision3d.datasets.pairs import StereoPairs
from vision3d.datasets.registry import find_dataset, list_datasets, open_dataset, register_dataset
from vision3d.datasets.roots import find_root
from vision3d.datasets.synthetic import SceneOptions, make_scene
from vision3d.datasets.toy import write_toy_tree
from vision3d.errors import ConfigError, FileFormatError, InputError, UnknownNameError
from vision3d.resources import resource_folder


@pytest.fixture
def trees(tmp_path: Path) -> dict[str, Path]:
    options = SceneOptions(max_disparity=(5.0, 10.0))
    for name, count in (("eth3d", 3), ("kitti2015", 2)):
        write_toy_tree(name, tmp_path / name, [make_scene(seed, 32, 48, options) for seed in range(count)])
    return {name: tmp_path / name for name in ("eth3d", "kitti2015")}


@pytest.fixture(autouse=True)
def _no_folders_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VISION3D_DATASETS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for name in list_datasets():
        monkeypatch.delenv(f"VISION3D_ROOT_{name.upper()}", raising=False)


@pytest.mark.parametrize(
    ("spec", "terms"),
    [
        ("kitti2015", [(1, "kitti2015")]),
        ("sceneflow + 2*kitti2015", [(1, "sceneflow"), (2, "kitti2015")]),
        (" 3 * a+b + 10*c_1 ", [(3, "a"), (1, "b"), (10, "c_1")]),
    ],
)
def test_mixture_syntax(spec: str, terms: list[tuple[int, str]]) -> None:
    assert parse_mixture(spec) == terms


@pytest.mark.parametrize(
    ("spec", "position", "expected"),
    [
        ("", 1, "a name"),
        ("a +", 4, "a name"),
        ("a + + b", 5, "a name"),
        ("a b", 3, "'\\+'"),
        ("a - b", 3, "'\\+'"),
        ("2*", 1, "a name"),
        ("a + 0*b", 5, "at least 1"),
        ("0.5*a", 1, "a name"),
        ("a*2", 2, "'\\+'"),
    ],
)
def test_bad_mixtures_say_where(spec: str, position: int, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"position {position}: .*{expected}"):
        parse_mixture(spec)


def test_open_a_mixture(trees: dict[str, Path]) -> None:
    data = open_dataset("eth3d + 2*kitti2015", trees, split="all", kitti2015={"truth": "noc"})
    assert isinstance(data, MixedDataset)
    assert data.name == "eth3d + 2*kitti2015"
    assert len(data) == len(data.scenes) == 3 + 2 * 2
    assert data.scenes[2:5] == ["eth3d/toy_2l", "kitti2015/000000_10", "kitti2015/000001_10"]
    assert [sample.scene for sample in data] == [name.split("/")[1] for name in data.scenes]
    assert data[3].occlusion is None
    assert data[-1].scene == "000001_10"
    with pytest.raises(IndexError):
        data[7]
    with pytest.raises(ConfigError, match="several folders"):
        open_dataset("eth3d + kitti2015", trees["eth3d"], split="all")
    with pytest.raises(UnknownNameError, match="did you mean kitti2015"):
        open_dataset("eth3d + kitti2105", trees)
    with pytest.raises(UnknownNameError, match="among the roots"):
        open_dataset("eth3d", trees)
    with pytest.raises(ConfigError, match="unknown option 'truth'"):
        open_dataset("eth3d + kitti2015", trees, split="all", truth="noc")
    assert len(open_dataset("3*eth3d", trees["eth3d"])) == 9  # type: ignore[arg-type]


def test_synthetic_scenes_in_a_mixture(trees: dict[str, Path]) -> None:
    small = {"height": 32, "width": 48, "scenes": 4, "seed": 5}
    data = open_dataset("eth3d + synthetic", trees["eth3d"], synthetic=small)
    assert data.scenes[3:] == [f"eth3d/{name}" for name in ()] + [f"synthetic/synthetic_{n:08d}" for n in range(5, 9)]  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="without end"):
        open_dataset("eth3d + synthetic", trees["eth3d"], synthetic={"height": 32, "width": 48})
    with pytest.raises(ConfigError, match="heigth"):
        open_dataset("synthetic", heigth=32)


def test_where_the_folder_is_found(trees: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--root DIR.*VISION3D_ROOT_ETH3D=DIR.*datasets\.yaml") as caught:
        open_dataset("eth3d")
    assert "\n" not in str(caught.value)
    home = tmp_path / "home/.config/vision3d"
    home.mkdir(parents=True)
    (home / "datasets.yaml").write_text(f"eth3d: {tmp_path / 'from_home'}\nkitti2015: {tmp_path / 'k'}\n")
    assert find_root("eth3d") == tmp_path / "from_home"
    Path("datasets.yaml").write_text("eth3d: relative/eth3d\n")
    assert find_root("eth3d") == Path("relative/eth3d")
    assert find_root("kitti2015") == tmp_path / "k"
    monkeypatch.setenv("VISION3D_DATASETS", str(tmp_path / "chosen.yaml"))
    with pytest.raises(FileFormatError, match="no such file"):
        find_root("eth3d")
    (tmp_path / "chosen.yaml").write_text("eth3d: eth3d\n")
    assert find_root("eth3d") == tmp_path / "eth3d"
    assert len(open_dataset("eth3d")) == 3  # type: ignore[arg-type]
    monkeypatch.setenv("VISION3D_ROOT_ETH3D", "/variable")
    assert find_root("eth3d") == Path("/variable")
    assert find_root("eth3d", "argument") == Path("argument")
    for text in ("- eth3d\n", "eth3d: 3\n", "a: [\n"):
        (tmp_path / "chosen.yaml").write_text(text)
        with pytest.raises(ConfigError, match=r"chosen\.yaml") as caught:
            find_root("kitti2015")
        assert "\n" not in str(caught.value)


def test_register(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))

    @register_dataset("warehouse")
    def open_warehouse(root: Path, split: str = "train", shelf: int = 0) -> list[str]:
        return [f"{root}/{split}/{shelf}"]

    assert "warehouse" in list_datasets("stereo")
    assert open_dataset("warehouse", "r", "test", shelf=3)[0] == "r/test/3"
    with pytest.raises(ConfigError, match="its options: shelf"):
        open_dataset("warehouse", "r", shelve=3)
    with pytest.raises(ConfigError, match="registered twice"):
        register_dataset("warehouse", "somewhere:else")
    with pytest.raises(ConfigError, match="letters"):
        register_dataset("ware house", "somewhere:else")
    with pytest.raises(UnknownNameError, match="task"):
        register_dataset("other", "somewhere:else", task="stero")
    with pytest.raises(UnknownNameError, match="task"):
        list_datasets("stero")


def test_nothing_heavy_is_imported_early() -> None:
    code = (
        "import sys, vision3d.datasets.registry as r; r.list_datasets(); "
        "sys.exit(any(m in sys.modules for m in ('vision3d.datasets.kitti', 'OpenEXR', 'cv2', 'lightning')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=Path(__file__).parents[2]).returncode == 0


@pytest.mark.parametrize("name", list_datasets("stereo"))
def test_readers_and_cards_agree(name: str) -> None:
    card = load_dataset_card(name)
    reader = find_dataset(name).load()
    for field in ("title", "license", "pairs", "tree", "encoding", "protocol"):
        assert getattr(card, field), field
    assert reader.__doc__
    if inspect.isclass(reader) and issubclass(reader, StereoPairs):
        assert reader.name == name
        assert set(card.splits) == set(reader.splits)
        assert set(card.options) == set(inspect.signature(reader.list_entries).parameters) - {"self", "split"}
        assert card.url.startswith("http")
        assert card.citation
    assert f"`{name}`" in (resource_folder("datasets") / "README.md").read_text()


def test_data_list_of_a_family(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list", "middlebury", "--json"]) == 0
    names = [card["name"] for card in json.loads(capsys.readouterr().out)["datasets"]]
    assert names == [name for name in list_datasets() if name.startswith("middlebury")]
    assert main(["data", "list", "eth3d", "--json"]) == 0  # a family that is a data set too
    assert json.loads(capsys.readouterr().out)["name"] == "eth3d"
    assert main(["data", "list", "middelbury"]) == 2
    assert "did you mean" in capsys.readouterr().err


def test_data_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list", "--json"]) == 0
    names = [card["name"] for card in json.loads(capsys.readouterr().out)["datasets"]]
    assert names == list_datasets()
    assert main(["data", "list", "irs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["family"] == "irs"
    assert main(["data", "list", "kitti2012"]) == 0
    assert "CC BY-NC-SA 3.0" in capsys.readouterr().out
    assert main(["data", "list"]) == 0
    assert "sintel" in capsys.readouterr().out
    assert main(["data", "list", "kiti2012"]) == 2
    assert "did you mean kitti2012" in capsys.readouterr().err


def test_data_synthesize_in_a_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = ["data", "synthesize", str(out), "--scenes", "2", "--size", "48x96", "--layout"]
    assert main([*command, "eth3d"]) == 0
    assert main([*command, "eth3e"]) == 2
    assert "did you mean eth3d" in capsys.readouterr().err
    data = open_dataset("eth3d", out)
    assert data.scenes == ["toy_0l", "toy_1l"]  # type: ignore[attr-defined]
    assert data[1].left.shape == (48, 96, 3)
