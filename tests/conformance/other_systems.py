"""Answers exported cases with a system that is not TensorFlow: `python other_systems.py torch|
onnxruntime DIR RESULTS`. It reads DIR/cases.json and .npy files, and nothing of this project."""

import json
import pathlib
import sys

import numpy as np

SIZES = {"NHWC": -1, "NDHWC": -1, "NWC": -1}


def _channels_first(array, layout, back=False):
    if layout not in SIZES or array.ndim < 2:
        return array
    return np.moveaxis(array, 1, -1) if back else np.moveaxis(array, -1, 1)


def torch_answer(case, v):
    """Training and gradients by ATen's native_batch_norm; frozen the same with running averages."""
    import torch

    attrs = case["attrs"]
    t = {r: torch.from_numpy(np.ascontiguousarray(a)) for r, a in v.items() if a.size}
    training, epsilon = attrs["is_training"], attrs["epsilon"]
    if not {"x", "scale"} <= set(t):
        return {}
    if "y_backprop" in v:
        rstd = 1 / torch.sqrt(t["variance"] + np.float32(epsilon))
        found = torch.ops.aten.native_batch_norm_backward(
            t["y_backprop"], t["x"], t["scale"], t["mean"], t["variance"], t["mean"], rstd,
            training, epsilon, [True, True, True],
        )  # fmt: skip
        return dict(zip(("x_backprop", "scale_backprop", "offset_backprop"), found, strict=True))
    given = (None, None) if training else (t["mean"], t["variance"])
    y, mean, _ = torch.ops.aten.native_batch_norm(
        t["x"], t["scale"], t["offset"], *given, training, 0.0, epsilon
    )
    return {"y": y, "saved_mean": mean} if training else {"y": y}


def onnxruntime_answer(case, v):
    """Inference, ONNX' BatchNormalization."""
    import onnxruntime
    from onnx import TensorProto, helper

    if "y_backprop" in v or case["attrs"]["is_training"]:
        return {}
    names = ["x", "scale", "offset", "mean", "variance"]
    if not all(v[name].size for name in names):
        return {}
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, v[n].shape) for n in names]
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, v["x"].shape)
    epsilon = case["attrs"]["epsilon"]
    node = helper.make_node("BatchNormalization", names, ["y"], epsilon=epsilon)
    model = helper.make_model(
        helper.make_graph([node], "g", info, [out]), opset_imports=[helper.make_opsetid("", 15)]
    )
    model.ir_version = 8
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    (y,) = session.run(None, {n: np.ascontiguousarray(v[n]) for n in names})
    return {"y": y}


ANSWERS = {"torch": torch_answer, "onnxruntime": onnxruntime_answer}


def main(system, folder, results):
    run = json.loads((folder / "cases.json").read_text())
    answered = 0
    for case in run["cases"]:
        if any(a["dtype"] != "float32" for a in case["inputs"].values()):
            continue
        of_case = folder / case["id"]
        v = {r: np.load(of_case / f"{r}.npy") for r in case["inputs"]}
        v = {r: _channels_first(a, case["layout"]) for r, a in v.items()}
        found = ANSWERS[system](case, v)
        if found:
            answered += 1
            (results / case["id"]).mkdir(parents=True)
        for role, array in found.items():
            array = _channels_first(np.asarray(array), case["layout"], back=True)
            np.save(results / case["id"] / f"{role}.npy", np.ascontiguousarray(array))
    print(answered, "cases answered by", system)


if __name__ == "__main__":
    main(sys.argv[1], *map(pathlib.Path, sys.argv[2:]))
