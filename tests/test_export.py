# SPDX-License-Identifier: Apache-2.0
"""Export: files against the torch network, cards, exported files in the pipelines and the command, bad input."""

from __future__ import annotations

import dataclasses
import io
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vision3d import create_model, predict_panorama, predict_stereo
from vision3d.cli.main import main
from vision3d.errors import FileFormatError, InputError, MissingExtraError, OutputError, Vision3DError, WeightsError
from vision3d.export import ExportCard, check_export, export_onnx, export_torch, load_exported, load_network, read_card
from vision3d.export.check import check_shapes
from vision3d.export.networks import example_inputs
from vision3d.io.images import write_image
from vision3d.models.stereo.easnet import EASNet

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

CARD = ExportCard(
    model="covonet",
    task="stereo",
    weights="covonet.rooms",
    license="Apache-2.0",
    inputs=("left", "right"),
    outputs=("disparity",),
    normalization={"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]},
    size_multiple=16,
    minimum_size=(32, 32),
    fixed_size=None,
    batch=None,
    max_disparity=192,
    bytes_per_pixel=650.0,
    version="0.1.0",
)


def mean_network(path: Path, card: str | None) -> Path:
    """An ONNX file by hand: the disparity is the mean of the left channels times 100."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    image = ["b", 3, "h", "w"]
    nodes = [
        helper.make_node("ReduceMean", ["left", "axes"], ["grey"], keepdims=1),
        helper.make_node("Mul", ["grey", "factor"], ["disparity"]),
    ]
    graph = helper.make_graph(
        nodes,
        "mean",
        [helper.make_tensor_value_info(name, kind, image) for name in ("left", "right")],
        [helper.make_tensor_value_info("disparity", kind, ["b", 1, "h", "w"])],
        [
            helper.make_tensor("axes", onnx.TensorProto.INT64, [1], [1]),
            helper.make_tensor("factor", kind, [], [100.0]),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    if card is not None:
        helper.set_model_props(model, {"vision3d": card})
    onnx.save(model, str(path))
    return path


def changed(**entries: Any) -> str:
    """The JSON of the card with other entries."""
    return json.dumps({**json.loads(CARD.to_json()), **entries})


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path, np.ndarray]:
    picture = np.random.default_rng(0).integers(0, 256, (70, 90, 3), dtype=np.uint8)
    paths = tmp_path / "left.png", tmp_path / "right.png"
    for path in paths:
        write_image(path, picture)
    return *paths, picture


def test_card_survives_its_json_form(tmp_path: Path) -> None:
    path = mean_network(tmp_path / "a.onnx", CARD.to_json())
    assert read_card(path) == CARD
    entries = json.loads(CARD.to_json())
    assert entries["normalization_in_graph"] is True
    assert entries["input_range"] == [0.0, 1.0]


def test_file_runs_through_the_whole_stereo_pipeline(tmp_path: Path, pair: tuple[Path, Path, np.ndarray]) -> None:
    left, right, picture = pair
    path = mean_network(tmp_path / "a.onnx", CARD.to_json())
    result = predict_stereo(left, right, str(path), check_pair=False)
    np.testing.assert_allclose(result.disparity, picture.mean(2) / 255 * 100, rtol=1e-5)
    assert result.confidence is not None
    assert result.model == "covonet (a.onnx)"
    out = tmp_path / "out"
    arguments = ["predict", str(left), str(right), "--runtime", "onnx", "--model", str(path), "--out", str(out)]
    assert main([*arguments, "--no-view"]) == 0
    assert json.loads((out / "report.json").read_text())["model"] == "covonet (a.onnx)"


def test_checked_sizes_are_three_that_the_file_takes() -> None:
    for multiple in (16, 24, 32, 64, 128):
        card = dataclasses.replace(CARD, size_multiple=multiple, minimum_size=(2 * multiple, 2 * multiple))
        shapes = check_shapes(card)
        assert len(set(shapes)) == 3
        assert all(card.takes(height, width) for _, height, width in shapes)
        for _, height, width in check_shapes(dataclasses.replace(card, task="panorama")):
            assert width == 2 * height
    fixed = dataclasses.replace(CARD, fixed_size=(48, 96), batch=2)
    assert check_shapes(fixed) == [(2, 48, 96)]


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"format": 99, "version": "7.0"}, "written by vision3d 7.0 in export format 99.*export it again"),
        ({"format": "x"}, "damaged"),
        ({"nothing": 0, "inputs": None, "format": 0}, "format 0"),
    ],
)
def test_file_of_another_version_is_refused(tmp_path: Path, entries: dict[str, Any], message: str) -> None:
    path = mean_network(tmp_path / "a.onnx", changed(**entries))
    with pytest.raises(FileFormatError, match=message):
        load_exported(path)
    with pytest.raises(FileFormatError, match=message):
        read_card(path)


def test_files_that_are_no_exports_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"carries no card.*export the network"):
        load_exported(mean_network(tmp_path / "a.onnx", None))
    entries = json.loads(CARD.to_json())
    del entries["outputs"]
    with pytest.raises(FileFormatError, match="incomplete"):
        load_exported(mean_network(tmp_path / "b.onnx", json.dumps(entries)))
    for name in ("broken.onnx", "broken.pt2"):
        (tmp_path / name).write_bytes(b"\x00no such format" * 9)
        for read in (load_exported, read_card):
            with pytest.raises(FileFormatError, match="export it again"):
                read(tmp_path / name)
    with pytest.raises(FileFormatError, match="no such file"):
        load_exported(tmp_path / "absent.onnx")
    with pytest.raises(FileFormatError, match=r"\.onnx or \.pt2"):
        load_exported(tmp_path / "a.bin")


class _Touch:
    """Pickled, it makes a file when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_programme_runs_no_pickled_code(tmp_path: Path) -> None:
    programme = torch.export.export(torch.nn.Identity(), (torch.zeros(1, 3, 32, 32),))
    good, bad, witness = tmp_path / "good.pt2", tmp_path / "bad.pt2", tmp_path / "witness"
    torch.export.save(programme, good, extra_files={"vision3d.json": CARD.to_json()})
    load_exported(good)
    payload = io.BytesIO()
    torch.save(_Touch(witness), payload)
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(bad, "w") as target:
        for name in source.namelist():
            target.writestr(name, payload.getvalue() if name.endswith("sample_inputs/model.pt") else source.read(name))
    with pytest.raises(FileFormatError, match="not a torch"):
        load_exported(bad)
    assert not witness.exists()
    torch.load(io.BytesIO(payload.getvalue()), weights_only=False)
    assert witness.exists()  # it would have


@pytest.mark.parametrize(
    ("entries", "size", "message"),
    [
        ({}, (16, 64), "32x32 .* or more in multiples of 16, the padded ones are 16x64"),
        ({"minimum_size": [96, 96]}, (80, 96), "96x96"),
        ({"fixed_size": [64, 64]}, (80, 96), "64x64 .* alone"),
        ({"batch": 4}, (80, 96), "4 at a time, not 1.*--batch free"),
    ],
)
def test_sizes_that_the_graph_does_not_take(
    tmp_path: Path, entries: dict[str, Any], size: tuple[int, int], message: str
) -> None:
    network = load_exported(mean_network(tmp_path / "a.onnx", changed(**entries)))
    with pytest.raises(InputError, match=message):
        network(*torch.zeros(2, 1, 3, *size))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--runtime", "onnx"], "--runtime onnx needs --model FILE.onnx"),
        (["--runtime", "onnx", "--model", "covonet"], "--runtime onnx needs --model FILE.onnx"),
        (["--runtime", "torch", "--model", "FILE"], "not run by torch"),
        (["--model", "FILE", "--precision", "bfloat16"], "leave --precision out"),
        (["--model", "FILE", "--weights", "w.pth"], "leave --weights out"),
        (["--runtime", "onnx", "--model", "absent.onnx"], "no such file"),
    ],
)
def test_wrong_runtimes_are_one_line(
    tmp_path: Path, pair: tuple[Path, Path, np.ndarray], capsys: Any, options: list[str], message: str
) -> None:
    path = mean_network(tmp_path / "a.onnx", CARD.to_json())
    options = [str(path) if option == "FILE" else option for option in options]
    assert main(["predict", str(pair[0]), str(pair[1]), "--out", str(tmp_path / "out"), *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_file_of_another_task_names_the_command(tmp_path: Path) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (32, 64, 3), dtype=np.uint8)
    path = str(mean_network(tmp_path / "a.onnx", CARD.to_json()))
    with pytest.raises(InputError, match="vision3d predict"):
        predict_panorama(picture, path)
    path = str(mean_network(tmp_path / "b.onnx", changed(task="panorama", model="spheredepth")))
    with pytest.raises(InputError, match="vision3d panorama"):
        predict_stereo(picture, picture, path)


@pytest.mark.parametrize(
    ("name", "options", "kind", "message"),
    [
        ("covonet_sgm", {}, InputError, r"OpenCV: export the network inside it, covonet\.rooms"),
        ("easnet_supernet", {}, InputError, "export a sub-network"),
        ("dispmvs", {}, InputError, "its task is 'mvs'"),
        ("fadnetpp", {}, InputError, "pass --weights FILE, or --untrained"),
        ("covonet", {"weights": "rooms", "untrained": True}, InputError, "leave out either"),
        ("covonett", {}, Vision3DError, "did you mean covonet"),
        ("covonet.nothing", {}, Vision3DError, "unknown weight tag"),
        ("fadnetpp_micro", {"weights": "covonet.rooms"}, WeightsError, "not those of FADNetPP"),
        ("fadnetpp_micro", {"weights": "absent.pth"}, WeightsError, "no such weights file"),
    ],
)
def test_networks_that_cannot_be_exported(name: str, options: dict[str, Any], kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        load_network(name, **options)


def test_weights_and_their_licence_are_named() -> None:
    assert (load_network("covonet").weights, load_network("covonet").license) == ("covonet.rooms", "Apache-2.0")
    assert load_network("covonet.synthetic").weights == "covonet.synthetic"
    assert load_network("covonet", weights="synthetic").weights == "covonet.synthetic"


def test_wrong_outputs_and_sizes_show_before_the_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = load_network("fadnetpp_micro", untrained=True)
    with pytest.raises(OutputError, match="does not exist"):
        export_onnx(source, tmp_path / "absent" / "a.onnx")
    with pytest.raises(OutputError, match="cannot be written"):
        export_onnx(source, "/proc/a.onnx")
    with pytest.raises(InputError, match=r"must end in \.onnx"):
        export_onnx(source, tmp_path / "a.pt2")
    with pytest.raises(InputError, match="too small for fadnetpp_micro: take 128x128"):
        export_onnx(source, tmp_path / "a.onnx", size=(64, 256))
    with pytest.raises(InputError, match="opset 12"):
        export_onnx(source, tmp_path / "a.onnx", opset=12)
    with pytest.raises(InputError, match="twice as wide"):
        export_torch(load_network("panoramadepth_tiny", untrained=True), tmp_path / "a.pt2", size=(64, 64))
    with pytest.raises(InputError, match="no registered name"):
        export_torch(torch.nn.Identity(), tmp_path / "a.pt2")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtraError, match=r"vision3d-zoo\[export\]"):
        export_onnx(source, tmp_path / "a.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"vision3d-zoo\[export\]"):
        load_exported(mean_network(tmp_path / "a.onnx", CARD.to_json()))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.onnx"]


def test_onnx_file_equals_the_network_at_three_sizes(tmp_path: Path, capsys: Any) -> None:
    path = str(tmp_path / "a.onnx")
    assert main(["export", "onnx", "fadnetpp_micro", "--untrained", "--check", "--json", "--out", path]) == 0
    report = json.loads(capsys.readouterr().out)
    card = read_card(path)
    assert report["card"]["outputs"] == ["disparity"]
    assert (card.size_multiple, card.minimum_size, card.max_disparity) == (64, (128, 128), 192)
    assert [row["shape"] for row in report["differences"]] == [[1, 128, 128], [1, 192, 512], [2, 256, 384]]
    for row in report["differences"]:
        assert row["passed"]
        assert row["maximum"] < 1e-4 * row["magnitude"]
    graph = onnx.load(path).graph
    assert {node.domain for node in graph.node} == {""}  # standard operators alone
    source = load_network("fadnetpp_micro", untrained=True)
    views = np.random.default_rng(0).integers(0, 256, (2, 130, 150, 3), dtype=np.uint8)
    results = [predict_stereo(*views, model, check_pair=False) for model in (source.network, path)]
    scale = float(np.abs(results[0].disparity).max())
    np.testing.assert_allclose(results[1].disparity, results[0].disparity, atol=1e-4 * scale)
    with torch.no_grad():  # a check that finds nothing is worth nothing
        source.network.dispnetres.pred_res0.weight.mul_(1.5)  # type: ignore[union-attr, operator]
    assert not all(row.passed for row in check_export(source, path))


def test_torch_programme_of_a_mesh_keeps_its_size(tmp_path: Path) -> None:
    network = create_model("spheredepth_tiny", level=4, texture=0, width=2)
    card = export_torch(network, tmp_path / "a.pt2")
    assert card.fixed_size == (64, 128)
    assert card.outputs == ("depth", "faces")
    assert torch.export.load(tmp_path / "a.pt2").module()(torch.rand(3, 3, 64, 128))[0].shape == (3, 1, 64, 128)
    picture = np.random.default_rng(0).integers(0, 256, (100, 200, 3), dtype=np.uint8)
    expected = predict_panorama(picture, network, height=64)
    found = predict_panorama(picture, str(tmp_path / "a.pt2"))
    np.testing.assert_allclose(found.depth, expected.depth, rtol=1e-5)
    with pytest.raises(InputError, match="64 rows alone"):
        predict_panorama(picture, load_exported(tmp_path / "a.pt2"), height=128)


SLOW = ["covonet", "dtnnet_tiny", "easnet_s", "spheredepth_tiny", "panoramadepth_tiny"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_other_networks_equal_torch(name: str, tmp_path: Path) -> None:
    source = load_network(name, untrained=name not in ("covonet", "dtnnet_tiny"))
    card = export_onnx(source, tmp_path / "a.onnx", optimize=False)
    rows = check_export(source, tmp_path / "a.onnx")
    assert len({row.shape for row in rows}) == (2 if card.fixed_size else 3)
    assert all(row.passed for row in rows)


@pytest.mark.slow
def test_extracted_subnetwork_with_fixed_size_and_batch(tmp_path: Path) -> None:
    network = EASNet({"ks": 3, "e": 2, "d": 2, "s": 2}).eval()
    torch.save(network.exported_state_dict(), tmp_path / "sub.pth")
    source = load_network("easnet", weights=tmp_path / "sub.pth")
    card = export_torch(source, tmp_path / "a.pt2", size=(50, 90), fixed_size=True, batch=1)
    assert (card.fixed_size, card.batch, card.weights) == ((72, 96), 1, "sub.pth")
    assert all(row.passed for row in check_export(source, tmp_path / "a.pt2"))
    inputs = example_inputs("stereo", 1, 72, 96, 5)
    with torch.no_grad():
        torch.testing.assert_close(
            load_exported(tmp_path / "a.pt2")(*inputs).disparity, source.network(*inputs).disparity
        )
