"""Export of a trained user encoder for clients without torch: as a program with weights, or as ONNX.

ONNX input `clicks` [n, dim], the latest clicks, oldest first, at least one; outputs `user` [dim] and, for models with
basis vectors, `alpha` [B]. Tracing would fix the length of a history, so the graph is built from the program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from veilrec._version import __version__
from veilrec.client.rankers import Arrays
from veilrec.core.arrays import Doubles, Floats
from veilrec.core.errors import BadInput
from veilrec.core.resources import require
from veilrec.models.federated_news import FedNewsRec, Interests, PublicHead
from veilrec.models.news_model import MultiHeadPooling, NewsModel
from veilrec.models.news_networks import Ebnr, Lstur, Naml, Nrms, PlmNr, SentenceHead

Layer = dict[str, Any]
_HISTORY: Layer = {"op": "history"}


def encoder_program(model: NewsModel, longest: int) -> dict[str, Any]:
    """What a device does with the vectors of its latest clicks, as data."""
    if not model.is_dot_product:
        raise BadInput(
            f"{type(model).__name__} reads a history anew for every news and has no user vector: it cannot be released;"
            " nrms, naml, lstur, ebnr, plm-nr, sentence-head, fednewsrec, privaterec and their relatives can"
        )
    return {
        "user": _user(model),
        "empty": "newcomer",
        "dim": model.dim,
        "longest": longest,
        "attention": isinstance(model, Interests),
        "ranks_with": "interests" if isinstance(model, Interests) and not isinstance(model, PublicHead) else "whole",
    }


def encoder_weights(model: NewsModel, program: dict[str, Any]) -> Arrays:
    """The tensors that a program names, and no others."""
    state: dict[str, Tensor] = {name: values.detach() for name, values in model.state_dict().items()}
    prefixes = _names(program["user"])
    wanted = {name for name in state if any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)}
    if isinstance(model, PublicHead):
        wanted |= {"scales", "taste"}
    weights = {name: state[name].numpy() for name in sorted(wanted)}
    weights["newcomer"] = _newcomer(model)
    if isinstance(model, Interests):
        weights["basis"] = model.basis_vectors().detach().double().numpy()
    return weights


def _newcomer(model: NewsModel) -> Floats:
    """The user vector of somebody without a history, before it is decomposed."""
    nobody, nothing = torch.zeros(1, 1, model.dim), torch.zeros(1, 1, dtype=torch.bool)
    with torch.inference_mode():
        encoded = model.whole_user(nobody, nothing) if isinstance(model, Interests) else model.user(nobody, nothing)
    vector: Floats = encoded[0].numpy()
    return vector


def _user(model: NewsModel) -> Layer:
    match model:
        case PublicHead():
            return {"op": "public-head", "parts": list(model.parts)}
        case Nrms() | PlmNr():
            return _pooled(model.clicks, "clicks", _HISTORY)
        case Naml():
            return {"op": "attend", "weights": "clicks", "of": _HISTORY}
        case SentenceHead():
            return {"op": "scale", "weights": "scale", "of": {"op": "attend", "weights": "clicks", "of": _HISTORY}}
        case Ebnr():
            return {"op": "gru", "weights": "clicks", "of": _HISTORY}
        case Lstur():
            return _lstur(model)
        case FedNewsRec():
            return _fednewsrec(model)
    raise BadInput(f"how {type(model).__name__} encodes users is not written down for devices: it cannot be released")


def _pooled(pooling: MultiHeadPooling, name: str, of: Layer) -> Layer:
    mixed = {"op": "self-attention", "weights": f"{name}.mix", "heads": pooling.mix.heads, "of": of}
    return {"op": "attend", "weights": f"{name}.attention", "of": mixed}


def _lstur(model: Lstur) -> Layer:
    long_term: Layer = {"op": "attend", "weights": "long_term", "of": _HISTORY}
    recent: Layer = {"op": "latest", "count": model.sizes.recent, "of": _HISTORY}
    if model.join == "ini":
        return {"op": "gru", "weights": "short_term", "of": recent, "start": long_term}
    narrow = {"op": "linear", "weights": "narrow", "of": long_term}
    return {"op": "concat", "of": [narrow, {"op": "gru", "weights": "short_term", "of": recent}]}


def _fednewsrec(model: FedNewsRec) -> Layer:
    clicks, interests = model.clicks, []
    if clicks.interests != "short":
        interests.append(_pooled(clicks.long_term, "clicks.long_term", _HISTORY))
    if clicks.interests != "long":
        recent = {"op": "latest", "count": clicks.recent, "of": _HISTORY}
        interests.append({"op": "gru", "weights": "clicks.short_term", "of": recent})
    if len(interests) == 1:
        return interests[0]
    return {"op": "attend", "weights": "clicks.join", "of": {"op": "stack", "of": interests}}


def _names(layer: Layer) -> set[str]:
    """The prefixes of weights in a program."""
    found = {layer["weights"]} if "weights" in layer else set()
    inner = layer.get("of", [])
    for part in (*(inner if isinstance(inner, list) else [inner]), *filter(None, [layer.get("start")])):
        found |= _names(part)
    return found


_OPSET, _IR = 17, 8  # old enough for every runtime in use
_END = np.iinfo(np.int64).max


class _Graph:
    """Nodes and constants, in the order of their making."""

    def __init__(self, weights: Mapping[str, NDArray[Any]]) -> None:
        import onnx

        self._onnx = onnx
        self._weights = weights
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}

    def constant(self, value: Any, name: str | None = None) -> str:
        """A tensor of the file; numbers are float32, whole ones int64."""
        array = np.asarray(value)
        array = array.astype(np.int64 if array.dtype.kind in "iu" else np.float32)
        name = name or f"constant{len(self.constants)}"
        self.constants[name] = self._onnx.numpy_helper.from_array(np.array(array, order="C"), name)
        return name

    def weight(self, name: str) -> NDArray[Any]:
        """One of the encoder's."""
        return self._weights[name]

    def add(self, op: str, *inputs: str, outputs: int = 1, output: str | None = None, **attributes: Any) -> Any:
        """A node; the names of what it gives."""
        names = [output] if output else [f"value{len(self.nodes)}.{place}" for place in range(outputs)]
        self.nodes.append(self._onnx.helper.make_node(op, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def of(self, layer: Mapping[str, Any]) -> str:
        """The value of a layer."""
        return _LAYERS[layer["op"]](self, layer)


def _history(graph: _Graph, layer: Mapping[str, Any]) -> str:
    return "clicks"


def _latest(graph: _Graph, layer: Mapping[str, Any]) -> str:
    return _rows(graph, graph.of(layer["of"]), -int(layer["count"]), _END, 0)


def _rows(graph: _Graph, value: str, begin: int, end: int, axis: int) -> str:
    places = (graph.constant(np.array([number], np.int64)) for number in (begin, end, axis))
    return str(graph.add("Slice", value, *places))


def _self_attention(graph: _Graph, layer: Mapping[str, Any]) -> str:
    heads, projections = int(layer["heads"]), graph.weight(f"{layer['weights']}.projections.weight")
    width = len(projections) // (3 * heads)
    projected = graph.add("MatMul", graph.of(layer["of"]), graph.constant(projections.T))
    split = graph.add("Reshape", projected, graph.constant(np.array([-1, 3, heads, width])))
    parts = graph.add("Transpose", split, perm=[1, 2, 0, 3])  # [3, heads, clicks, width]
    queries, keys, content = (
        graph.add("Gather", parts, graph.constant(np.array(place, np.int64)), axis=0) for place in range(3)
    )
    turned = graph.add("Transpose", keys, perm=[0, 2, 1])
    scores = graph.add("Mul", graph.add("MatMul", queries, turned), graph.constant(1.0 / math.sqrt(width)))
    mixed = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), content)
    shape = graph.constant(np.array([-1, heads * width]))
    return str(graph.add("Reshape", graph.add("Transpose", mixed, perm=[1, 0, 2]), shape))


def _attend(graph: _Graph, layer: Mapping[str, Any]) -> str:
    values, name = graph.of(layer["of"]), layer["weights"]
    linear = graph.add("MatMul", values, graph.constant(graph.weight(f"{name}.hidden.weight").T))
    hidden = graph.add("Tanh", graph.add("Add", linear, graph.constant(graph.weight(f"{name}.hidden.bias"))))
    scores = graph.add("MatMul", hidden, graph.constant(graph.weight(f"{name}.query.weight").T))  # [n, 1]
    weights = graph.add("Transpose", graph.add("Softmax", scores, axis=0), perm=[1, 0])
    return _flat(graph, graph.add("MatMul", weights, values))


def _flat(graph: _Graph, value: str) -> str:
    return str(graph.add("Reshape", value, graph.constant(np.array([-1]))))


def _gru(graph: _Graph, layer: Mapping[str, Any]) -> str:
    name, values = layer["weights"], graph.of(layer["of"])
    size = graph.weight(f"{name}.recurrent.weight").shape[1]
    gates = {part: graph.weight(f"{name}.{part}") for part in ("inputs.weight", "inputs.bias")}
    gates |= {part: graph.weight(f"{name}.{part}") for part in ("recurrent.weight", "recurrent.bias")}
    ordered = {part: _update_first(values, size) for part, values in gates.items()}  # ONNX: update, reset, new
    bias = np.concatenate((ordered["inputs.bias"], ordered["recurrent.bias"]))
    steps = graph.add("Unsqueeze", values, graph.constant(np.array([1])))  # [n, 1, dim]
    start = graph.of(layer["start"]) if layer.get("start") else graph.constant(np.zeros(size, np.float32))
    state = graph.add("Reshape", start, graph.constant(np.array([1, 1, size])))
    tensors = (ordered["inputs.weight"][None], ordered["recurrent.weight"][None], bias[None])
    given = [graph.constant(tensor) for tensor in tensors]
    _, last = graph.add("GRU", steps, *given, "", state, outputs=2, hidden_size=size, linear_before_reset=1)
    return _flat(graph, last)


def _update_first(values: NDArray[Any], size: int) -> NDArray[Any]:
    reset, update, new = values[:size], values[size : 2 * size], values[2 * size :]
    return np.concatenate((update, reset, new))


def _linear(graph: _Graph, layer: Mapping[str, Any]) -> str:
    weight, bias = (graph.constant(graph.weight(f"{layer['weights']}.{part}")) for part in ("weight", "bias"))
    return str(graph.add("Add", graph.add("MatMul", weight, graph.of(layer["of"])), bias))


def _concat(graph: _Graph, layer: Mapping[str, Any]) -> str:
    return str(graph.add("Concat", *(graph.of(part) for part in layer["of"]), axis=0))


def _stack(graph: _Graph, layer: Mapping[str, Any]) -> str:
    axis = graph.constant(np.array([0]))
    rows = [graph.add("Unsqueeze", graph.of(part), axis) for part in layer["of"]]
    return str(graph.add("Concat", *rows, axis=0))


def _scale(graph: _Graph, layer: Mapping[str, Any]) -> str:
    return str(graph.add("Mul", graph.of(layer["of"]), graph.constant(graph.weight(layer["weights"]))))


def _public_head(graph: _Graph, layer: Mapping[str, Any]) -> str:
    parts = [int(part) for part in layer["parts"]]
    mean = graph.add("ReduceMean", _rows(graph, "clicks", 0, sum(parts), 1), axes=[0], keepdims=0)
    sentence, shares = _rows(graph, mean, 0, parts[0], 0), _rows(graph, mean, parts[0], sum(parts), 0)
    length = graph.add("ReduceL2", sentence, axes=[0], keepdims=1)
    direction = graph.add("Div", sentence, graph.add("Max", length, graph.constant(1e-12)))
    scales = graph.constant(np.repeat(graph.weight("scales"), parts))
    personal = graph.add("Mul", graph.add("Concat", direction, shares, axis=0), scales)
    return str(graph.add("Concat", personal, graph.constant(graph.weight("taste")), axis=0))


_LAYERS: dict[str, Callable[[_Graph, Mapping[str, Any]], str]] = {
    "history": _history,
    "latest": _latest,
    "self-attention": _self_attention,
    "attend": _attend,
    "gru": _gru,
    "linear": _linear,
    "concat": _concat,
    "stack": _stack,
    "scale": _scale,
    "public-head": _public_head,
}


def encoder_onnx(program: Mapping[str, Any], weights: Mapping[str, NDArray[Any]]) -> bytes:
    """The file; the same program and weights give the same bytes."""
    require("a release of a network", "onnx")
    import onnx
    from onnx import TensorProto, helper

    graph, dim = _Graph(weights), int(program["dim"])
    user = graph.of(program["user"])
    graph.add("Identity", user, output="user")
    outputs = [helper.make_tensor_value_info("user", TensorProto.FLOAT, [dim])]
    if program["attention"]:
        basis = weights["basis"]
        scores = graph.add("MatMul", graph.constant(basis / math.sqrt(dim)), "user")
        graph.add("Softmax", scores, axis=-1, output="alpha")
        outputs.append(helper.make_tensor_value_info("alpha", TensorProto.FLOAT, [len(basis)]))
    clicks = helper.make_tensor_value_info("clicks", TensorProto.FLOAT, ["n", dim])
    made = helper.make_graph(graph.nodes, "user-encoder", [clicks], outputs, list(graph.constants.values()))
    model = helper.make_model(
        made, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR, producer_name=f"veilrec {__version__}"
    )
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString(deterministic=True)
    return content


def opened(content: bytes) -> Callable[[Doubles], dict[str, Doubles]]:
    """The file at work: from clicks to what it gives, by name."""
    require("a release of a network", "onnxruntime")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(clicks: Doubles) -> dict[str, Doubles]:
        found = session.run(names, {"clicks": np.ascontiguousarray(clicks, np.float32)})
        return dict(zip(names, found, strict=True))

    return run
