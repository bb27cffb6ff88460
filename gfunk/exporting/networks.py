"""Networks for other tools: an ONNX file or a program of torch.export whose arguments are plain arrays of one domain.

What is exported is one call: a step's rate of change, or a wave at any times. Loops over steps and what has to be found of a
first state, which is not learned, stay outside.
"""

import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from io import BytesIO
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gfunk.batch import Batch, pack
from gfunk.domain import Domain, fibre_tensors, make_domain, unit_square
from gfunk.errors import InputError
from gfunk.experiments import operator_named
from gfunk.exporting.fronts import Front
from gfunk.exporting.units import problem_units
from gfunk.operators.arrival import Arrival, ArrivalConfig
from gfunk.operators.fronts import LEAST_RISE, MOST_BENT, N_BENDS, NEVER, THINNEST
from gfunk.physics.schemes import diffusivity
from gfunk.pretrained import pretrained_names, weights_folder
from gfunk.recipes.atrium_data import AtriumProblem
from gfunk.recipes.recipe import RecipeProblem, Variant
from gfunk.recipes.tissue_data import TissueProblem
from gfunk.settings import to_json
from gfunk.simulation import viewed_domain
from gfunk.spectrum import lowest_modes
from gfunk.store import commit, read_object, write_bytes

MODEL_SUFFIXES = (".onnx", ".pt2")
OPSET = 20  # of ONNX: the first with GELU
LARGEST_GAP = 1e-4  # between a file and the network, in ranges of its answer

# What enters and leaves beside the fields of a Batch, and its axes. All of it in model space, (value - offset) / scale.
STATE_AXES = {
    "u": ("trajectory", "node"), "tau": (), "ahead": ("trajectory", "node"), "behind": ("trajectory", "node"),
    "met": ("trajectory", "node", "feature"), "times": ("time",), "rate": ("trajectory", "node"),
    "values": ("trajectory", "time", "node"), "arrival": ("trajectory", "node"),
}  # fmt: skip
# The fields of a Batch as its types say, less the axis of domains; of one domain nothing is padding.
FIELD_AXES = {
    field.name: tuple(shape.split()[1:])
    for field in fields(Batch)
    if (shape := getattr(field.type, "dim_str", None)) and field.name != "is_node"
}
ANY_SIZE = ("trajectory", "time", "node", "slot", "triangle")
ABOUT = {
    "u": "the state: (value - offset) / scale",
    "tau": "length of the step",
    "ahead": "when the front will arrive, 0 where it has been (gfunk.exporting.fronts.front_inputs)",
    "behind": "how long ago it came, 0 where it has not (gfunk.exporting.fronts.front_inputs)",
    "met": "what it met on its way: fibres, coarse mesh, curvature (gfunk.exporting.fronts.front_inputs)",
    "times": "output times since the first state",
    "rate": "mean rate of change of u over the step",
    "values": "u at the output times",
    "arrival": "when the wave arrives, negative where it has been",
    "points": "coordinates",
    "fibres": "unit vectors of the main direction of diffusion",
    "mass": "lumped mass",
    "eigenvalues": "of the Laplacian, S psi = lambda M psi, the lowest in rising order",
    "analysis": "M Psi, M the mass matrix and Psi the eigenvectors in columns, Psi^T M Psi = 1",
    "synthesis": "Psi",
    "neighbors": "numbers of the neighbouring nodes",
    "couplings": "-S_ij to each of them, 0 where there is none",
    "inertia": "the mass, raised beside thin cells (gfunk.pack)",
    "ends": "of the side opposite in each of the node's triangles",
    "sides": "their squared length, offset and squared height (gfunk.corners)",
}


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A file's content, what it says of itself, and how far its answers are from the network's, in their range."""

    content: bytes
    about: Mapping[str, str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes_checked: tuple[int, ...]
    largest_gap: float


class OnOneDomain(nn.Module):
    """An operator with plain arrays for arguments: trajectories on one domain, without axes of length 1.

    Arguments that are None are not read by the operator; those of a rate of change are u and tau, those of waves by arrival
    u, ahead, behind and times, and met where the network is told it.
    """

    def __init__(self, operator: nn.Module):
        super().__init__()
        self.operator = operator

    # Named one by one: torch.export can't be told the sizes of **arguments.
    def forward(
        self, u: Tensor, tau: Tensor | None = None, ahead: Tensor | None = None, behind: Tensor | None = None,
        met: Tensor | None = None, times: Tensor | None = None, points: Tensor | None = None, fibres: Tensor | None = None,
        mass: Tensor | None = None, eigenvalues: Tensor | None = None, analysis: Tensor | None = None,
        synthesis: Tensor | None = None, neighbors: Tensor | None = None, couplings: Tensor | None = None,
        inertia: Tensor | None = None, ends: Tensor | None = None, sides: Tensor | None = None,
    ):  # fmt: skip
        batch = _batch_of_one(
            u,
            points=points, fibres=fibres, mass=mass, eigenvalues=eigenvalues, analysis=analysis, synthesis=synthesis,
            neighbors=neighbors, couplings=couplings, inertia=inertia, ends=ends, sides=sides,
        )  # fmt: skip
        if not isinstance(self.operator, Arrival):
            return self.operator(u[..., None], batch, u.new_zeros(()) if tau is None else tau)[..., 0]
        assert ahead is not None and behind is not None and times is not None
        # As its own forward, but all times at once: how many there are is not known here.
        first = torch.stack([u, ahead, behind], dim=-1)
        arrival, latents = self.operator.arrival(first if met is None else torch.cat([first, met], dim=-1), batch)
        place = torch.cat([u[..., None], latents], dim=-1)
        values = self.operator.profile(times[:, None, None] - arrival[:, None], place)
        return values[..., 0], arrival[..., 0]


def export_model(name: str, path: Path) -> Exported:
    """Write a shipped model, or a run folder's, once the file's answers are the network's on two domains.

    The largest difference allowed is LARGEST_GAP of the answers' range.
    """
    suffix = check_model_path(path)
    operator, recipe, problem, variant = operator_named(name)
    _check_exportable(name, variant)
    n_side = max(12, isqrt(_n_modes(variant)) + 2)
    trials = [_Trial.on(trial_domain(problem, size), operator, variant) for size in (n_side, n_side + 3)]
    module = OnOneDomain(operator.eval())
    read = _inputs_read(module, trials[0].tensors)
    program = _traced(module, {name: trials[0].tensors[name] for name in read}, is_any_size=True)
    outputs = ("values", "arrival") if isinstance(operator, Arrival) else ("rate",)
    about = metadata(name, operator, recipe, problem, variant, read, outputs)
    content, run = (_onnx if suffix == ".onnx" else _pt2)(program, about, outputs)
    gaps = [trial.gap(run, read) for trial in trials]
    exported = Exported(
        content=content, about=about, inputs=read, outputs=outputs,
        nodes_checked=tuple(trial.domain.n_nodes for trial in trials), largest_gap=max(gaps),
    )  # fmt: skip
    if not all(gap <= LARGEST_GAP for gap in gaps):
        raise InputError(f"{path}: not written: its answers differ from {name}'s by {max(gaps):.2g} of their range")
    write_bytes(path, content)
    return exported


def check_model_path(path: Path) -> str:
    """The suffix; refuses what no network can be written as, and ONNX where its packages are missing."""
    suffix = path.suffix.lower()
    if suffix not in MODEL_SUFFIXES:
        raise InputError(f"{path}: a model is written as {' or '.join(MODEL_SUFFIXES)}, not {path.suffix!r}")
    if suffix == ".onnx":
        try:
            import onnx  # noqa: F401
            import onnxruntime  # noqa: F401
            import onnxscript  # noqa: F401
        except ImportError as error:
            raise InputError("ONNX files need onnx, onnxscript and onnxruntime: pip install 'gfunk[export]'") from error
    return suffix


def metadata(
    name: str, operator: nn.Module, recipe: str, problem: RecipeProblem, variant: Variant,
    inputs: tuple[str, ...], outputs: tuple[str, ...],
) -> dict[str, str]:  # fmt: skip
    """What a file says of itself, each a text; all but numbers and names are JSON."""
    card = _card(name) or {"recipe": recipe, "problem": to_json(problem), "variant": to_json(variant)}
    about: dict[str, Any] = {
        "model": Path(name).resolve().name,
        "recipe": recipe,
        "offset": problem.offset,
        "scale": problem.scale,
        "units": asdict(problem_units(problem)),
        "n_modes": _n_modes(variant),
        "discretisation": to_json(variant.view.discretisation),
        "homogenised": variant.view.homogenises,
        "integrator": to_json(variant.integrator),
        "inputs": {each: {"axes": _axes(each), "about": ABOUT[each]} for each in inputs},
        "outputs": {each: {"axes": _axes(each), "about": ABOUT[each]} for each in outputs},
        "commit": card.get("commit", commit()),
        "licence": card.get("licence", "unstated"),
        "card": card,
    }
    if isinstance(operator, Arrival):
        about["front"] = asdict(front_of(operator.config))
    return {key: value if isinstance(value, str) else json.dumps(value) for key, value in about.items()}


def front_of(config: ArrivalConfig) -> Front:
    """What `gfunk.exporting.fronts.front_inputs` has to know of a network."""
    return Front(
        speed=config.speed, resting=config.resting, threshold=config.threshold, time_scale=config.time_scale,
        ray_times=config.ray_times, least_rise=LEAST_RISE, never=NEVER * config.time_scale, n_bends=N_BENDS,
        most_bent=MOST_BENT, thinnest=THINNEST,
    )  # fmt: skip


def trial_domain(problem: RecipeProblem, n_side: int) -> Domain:
    """A flat square as large as the problem's domains, with turning fibres and its K; in space where those are."""
    is_tissue = isinstance(problem, TissueProblem)
    side, across = (20.0, diffusivity(problem.pacing.base_conductivity)) if is_tissue else (1.0, 1.0)
    square = unit_square(n_side)
    angle = 0.7 + square.points.sum(axis=1)
    points, fibres = side * square.points, np.stack([np.cos(angle), np.sin(angle)], axis=1)
    if isinstance(problem, AtriumProblem):
        points, fibres = (np.pad(each, ((0, 0), (0, 1))) for each in (points, fibres))
    ratio = getattr(problem, "ratio", 5.0)
    return make_domain(points, square.cells, fibre_tensors(fibres, ratio * across, across), fibres=fibres)


Run = Callable[[Mapping[str, Tensor]], list[Tensor]]


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """A domain as the operator sees it, all that may be asked of it by name, and the operator's own answer."""

    domain: Domain
    tensors: Mapping[str, Tensor]
    answer: Tensor

    @classmethod
    def on(cls, domain: Domain, operator: nn.Module, variant: Variant) -> "_Trial":
        domain, matrices = viewed_domain(domain, variant.view)
        batch = pack([(domain, matrices, lowest_modes(matrices, _n_modes(variant)))])
        # Three rounds of heat, or of tissue that a wave has reached.
        centres = domain.points[[0, domain.n_nodes // 2, domain.n_nodes - 2]]
        away = np.linalg.norm(domain.points - centres[:, None], axis=2) / np.ptp(domain.points)
        u = np.exp(-((away / 0.3) ** 2)).astype(np.float32)
        states = torch.from_numpy(u)[..., None]
        named = {name: getattr(batch, name)[0] for name in FIELD_AXES}
        with torch.no_grad():
            if isinstance(operator, Arrival):
                times = operator.config.time_scale * torch.arange(1.0, 6.0)
                first = operator.first(states, batch)
                _, ahead, behind = first[..., :3].unbind(-1)
                named |= {"ahead": ahead.clone(), "behind": behind.clone(), "times": times}
                if operator.config.ray_times:
                    named["met"] = first[..., 3:].clone()
                answer = operator(first, batch, times)
            else:
                named["tau"] = torch.tensor(getattr(variant.integrator, "longest_step", 0.0))
                answer = operator(states, batch, named["tau"])
        return cls(domain=domain, tensors={"u": states[..., 0], **named}, answer=answer[..., 0])

    def gap(self, run: Run, names: tuple[str, ...]) -> float:
        """The largest difference of what a file answers, in ranges of the answer; of one trajectory, too."""
        given = {name: self.tensors[name] for name in names}
        alone = {name: each[:1] if _axes(name)[:1] == ("trajectory",) else each for name, each in given.items()}
        together, first = run(given)[0], run(alone)[0]
        gaps = [(together - self.answer).abs().max(), (first - self.answer[:1]).abs().max()]
        return float(torch.stack(gaps).max() / (self.answer.max() - self.answer.min()))


def _n_modes(variant: Variant) -> int:
    """As many as the network reads."""
    return getattr(variant.network, "n_modes", 1)


def _axes(name: str) -> tuple[str, ...]:
    return STATE_AXES[name] if name in STATE_AXES else FIELD_AXES[name]


def _card(name: str) -> dict[str, Any]:
    run = Path(name) / "run.json"
    if run.exists():
        return read_object(run)
    return read_object(weights_folder() / f"{name}.json") if name in pretrained_names() else {}


def _check_exportable(name: str, variant: Variant):
    if variant.view.grid_side is not None:
        raise InputError(f"{name}: works on one grid alone, so there is nothing to export for other domains")
    if getattr(variant.network, "local_width", 0):
        raise InputError(
            f"{name}: its local branch takes as many products as a domain asks for, and no file can: "
            "train one with network.local_width=0"
        )


def _batch_of_one(u: Tensor, **given: Tensor | None) -> Batch:
    """A Batch of one domain. Fields that are not given are never read, and stand as zeros."""
    sizes = {"node": u.shape[1], "dim": 2, "mode": 1, "slot": 1, "triangle": 1, "2": 2, "3": 3}
    for name, tensor in given.items():
        if tensor is not None:
            sizes |= zip(FIELD_AXES[name], tensor.shape, strict=True)
    whole = ("neighbors", "ends")

    def field(name: str) -> Tensor:
        tensor = given[name]
        if tensor is not None:
            return tensor[None]
        shape = (1, *(sizes[axis] for axis in FIELD_AXES[name]))
        return u.new_zeros(shape, dtype=torch.int64 if name in whole else u.dtype)

    # Who reads the fastest rate nevertheless answers NaN, which is refused.
    nothing_is_padding = torch.ones_like(u[:1], dtype=torch.bool)
    return Batch(**{name: field(name) for name in FIELD_AXES}, is_node=nothing_is_padding, fastest_rate=float("nan"))


def _inputs_read(module: nn.Module, tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    """The arguments that the answer depends on."""
    graph = _traced(module, tensors, is_any_size=False).graph
    graph.eliminate_dead_code()
    used = {node.name for node in graph.nodes if node.op == "placeholder" and node.users}
    return tuple(name for name in (*STATE_AXES, *FIELD_AXES) if name in used and name in tensors)


def _traced(module: nn.Module, tensors: Mapping[str, Tensor], *, is_any_size: bool) -> torch.export.ExportedProgram:
    Dim = torch.export.Dim
    sizes = {
        name: {place: Dim(axis) if axis in ANY_SIZE else Dim.STATIC for place, axis in enumerate(_axes(name))}
        for name in tensors
    }
    with torch.no_grad(), _in_silence():
        program = torch.export.export(module, (), dict(tensors), dynamic_shapes=sizes if is_any_size else None)
    # Else the file would name folders of this computer.
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            for node in part.graph.nodes:
                node.meta.pop("stack_trace", None)
    return program


def _pt2(program: torch.export.ExportedProgram, about: Mapping[str, str], outputs: tuple[str, ...]) -> tuple[bytes, Run]:
    buffer = BytesIO()
    with _in_silence():
        torch.export.save(program, buffer, extra_files={"about.json": json.dumps(about)})
        module = torch.export.load(BytesIO(buffer.getvalue())).module()

    def run(given: Mapping[str, Tensor]) -> list[Tensor]:
        with torch.no_grad():
            found = module(**given)
        return [found] if len(outputs) == 1 else list(found)

    return buffer.getvalue(), run


def _onnx(program: torch.export.ExportedProgram, about: Mapping[str, str], outputs: tuple[str, ...]) -> tuple[bytes, Run]:
    import onnx
    import onnxruntime

    try:
        with _in_silence():
            made = torch.onnx.export(
                program, dynamo=True, opset_version=OPSET, external_data=False, verbose=False, output_names=outputs
            )
    except torch.onnx.OnnxExporterError as error:
        raise InputError("torch can't write this network as ONNX; as .pt2 it can be exported") from error
    assert made is not None
    model = made.model_proto
    onnx.helper.set_model_props(model, dict(about))
    _name_axes(model.graph)
    _forget_origins(model)
    content = model.SerializeToString()
    try:
        quiet = onnxruntime.SessionOptions()
        quiet.log_severity_level = 4
        session = onnxruntime.InferenceSession(content, quiet, providers=["CPUExecutionProvider"])
    except Exception as error:  # its own have no common base
        raise InputError("onnxruntime does not read this network; as .pt2 it can be exported") from error

    def run(given: Mapping[str, Tensor]) -> list[Tensor]:
        try:
            found = session.run(list(outputs), {name: tensor.numpy() for name, tensor in given.items()})
        except Exception as error:
            raise InputError("onnxruntime does not run this network; as .pt2 it can be exported") from error
        return [torch.from_numpy(each) for each in found]

    return content, run


def _name_axes(graph: Any):
    """Axes of any size by the house's names, instead of the tracer's letters and numbers."""
    named = {}
    for value in graph.input:
        for size, axis in zip(value.type.tensor_type.shape.dim, _axes(value.name), strict=True):
            if size.HasField("dim_param"):
                named[size.dim_param] = axis
    for value in (*graph.input, *graph.output, *graph.value_info):
        for size in value.type.tensor_type.shape.dim:
            if size.HasField("dim_param"):
                size.dim_param = named.get(size.dim_param, size.dim_param)


def _forget_origins(model: Any):
    """Which line of which file each node came from: nobody needs it, and it is as long as the weights."""
    for graph in (model.graph, *model.functions):
        for part in (graph, *graph.node, *graph.value_info, *getattr(graph, "input", ()), *getattr(graph, "output", ())):
            if hasattr(part, "metadata_props"):
                del part.metadata_props[:]


@contextmanager
def _in_silence() -> Iterator[None]:
    """torch warns of its own old ways and of packages that nobody asked for."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
