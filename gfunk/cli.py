"""The command line: its options, and how it fails."""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn

from gfunk.commands.exporting import export
from gfunk.commands.learning import compare, evaluate, heat_demo, train
from gfunk.commands.listing import models, recipes, results, ship
from gfunk.commands.measuring import bench
from gfunk.commands.meshing import atrium, mesh
from gfunk.commands.predicting import predict
from gfunk.commands.solving import simulate, verify
from gfunk.commands.sweeping import sweep
from gfunk.commands.trusting import calibrate
from gfunk.commands.viewing import view
from gfunk.console import people
from gfunk.errors import InputError
from gfunk.parallel import default_workers


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; 0 on success, 1 where `verify` finds a law broken, 2 with one line for bad input, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(words, argparse.Namespace(words=words))
    status = 0
    try:
        status = options.command(options) or 0
        sys.stdout.flush()
    except InputError as error:
        return _refused(str(error))
    except KeyboardInterrupt:
        print(
            "gfunk: interrupted; what was written is whole: the same command (train --resume) goes on there", file=sys.stderr
        )
        return 130
    except BrokenPipeError:
        # The reader (head, less) has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        return _refused(str(error))
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, which is not loaded for every command
            raise
        return _refused(
            "the GPU's memory is full: take fewer trajectories at a time (--batch; --set training.batch_size=...), "
            "recompute instead of keeping (--set training.saves_memory=True) or launch instead of replaying (--no-replay)"
        )
    return status


SHORTER = "of the even mesh, shorter than the model's own: finer, takes longer"
FEWER = "; NAME@64: with its lowest 64 modes alone, found sooner"

# Of no set, and small: the solver is done in half a minute.
DEMO_SEED, DEMO_MS = "300002", "45"


def demo(options: argparse.Namespace) -> int | None:
    """Commands that users could type, each said before it runs."""
    if options.of == "heat":
        return heat_demo(options)
    options.out.mkdir(parents=True, exist_ok=True)
    mesh, picture, page = (str(options.out / name) for name in ("atrium.vtp", "wave.png", "wave.html"))
    steps = (
        ["atrium", "--seed", DEMO_SEED, "--edge", "0.8", "--out", mesh],
        ["predict", mesh, "--at", "LSPV", "--until", DEMO_MS, "--compare", "--picture", picture, "--report", page],
    )  # fmt: skip
    for words in steps:
        people.print(f"$ gfunk {' '.join(words)}", style="bold")
        asked = _parser().parse_args(words, argparse.Namespace(words=words))
        # One answer is enough for machines.
        asked.json = options.json and words is steps[-1]
        with redirect_stdout(StringIO()) if options.json and not asked.json else nullcontext():
            asked.command(asked)
    people.print(f"next: gfunk view {mesh}, and click (pip install 'gfunk\\[viewer]')")
    return None


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, without the usage above it."""

    def error(self, message: str) -> NoReturn:
        sys.exit(_refused(f"{message} (see {self.prog} --help)"))


def _refused(message: str) -> int:
    print("gfunk:", " ".join(message.split()), file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="gfunk", description="Predict how a diffusive PDE evolves on domains never seen before.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(action: Any, about: str) -> argparse.ArgumentParser:
        each = commands.add_parser(action.__name__, help=about, description=about)
        each.set_defaults(command=action)
        each.add_argument("--json", action="store_true", help="print JSON for machines")
        return each

    def shared(each: argparse.ArgumentParser, *names: str):
        forms = {
            "workers": {"type": _positive, "default": default_workers(), "help": "processes (default: one a core)"},
            "device": {"default": "auto", "help": "cpu, cuda, or auto"},
            "set": {"action": "append", "default": [], "metavar": "KEY=VALUE", "help": "change a setting"},
            "record": {"type": Path, "help": "append the result, command and hardware to this JSON file"},
            "compile": {"action": "store_true", "help": "compile the operator first (pays on a GPU)"},
            "size": {"default": "full", "help": "full, or smoke: so small that a laptop does it in two minutes"},
        }
        for name in names:
            each.add_argument(f"--{name}", **forms[name])

    each = command(demo, "a wave on an atrium never seen, predicted and solved: pictures, a page, and how far it is off")
    each.add_argument("--of", choices=["atrium", "heat"], default="atrium", help="heat: learn it first, on small meshes")
    each.add_argument("--out", type=Path, default=Path("demo"))
    shared(each, "workers")

    each = command(recipes, "the experiments: variants, parameter counts, the paper's number, ours")
    shared(each, "size")

    each = command(simulate, "make a recipe's data with the solver; goes on where it was stopped")
    each.add_argument("recipe")
    each.add_argument("--out", type=Path, required=True, help="folder; each split has its own below it")
    each.add_argument("--split", choices=["train", "val", "test"], help="default: all three, or the one --seed lies in")
    each.add_argument("--n", type=_positive, help="samples (default: the recipe's)")
    each.add_argument("--seed", type=int, help="first seed (default: the split's)")
    each.add_argument("--scheduler", metavar="ADDRESS", help="send the work to a Dask cluster, for example tcp://host:8786")
    each.add_argument("--device", default="cpu", help="cuda solves many samples at once, where the recipe allows")
    shared(each, "workers", "set", "size")

    each = command(train, "train a variant of a recipe (torchrun runs it on many devices)")
    each.add_argument("recipe")
    each.add_argument("--variant", help="default: ours")
    each.add_argument("--data", type=Path, required=True, help="folder made by simulate")
    each.add_argument("--out", type=Path, required=True, help="run folder")
    each.add_argument("--minutes", type=float, help="stop after so long, at a checkpoint")
    each.add_argument("--resume", action="store_true", help="go on from the last checkpoint, exactly")
    each.add_argument("--n-train", type=_positive, help="use only so many training samples")
    each.add_argument("--n-val", type=_positive, help="use only so many validation samples")
    each.add_argument("--tensorboard", action="store_true", help="write TensorBoard logs into the run folder")
    each.add_argument("--say-every", type=_positive, default=1, help="epochs between lines when not on a terminal")
    each.add_argument("--no-replay", action="store_true", help="on a GPU, launch each kernel anew: slower, less memory")
    shared(each, "workers", "device", "set", "compile", "size")

    each = command(
        evaluate, "error of a trained run, a shipped model, or RECIPE/VARIANT where nothing is learned, on test data"
    )
    each.add_argument("model", help=f"run folder, shipped model, recipe that one predicts, or RECIPE/VARIANT{FEWER}")
    each.add_argument("--recipe", metavar="R", help="on the waves of another recipe of this tissue (default: its own)")
    each.add_argument("--data", type=Path, help="folder made by simulate (default: simulate afresh)")
    each.add_argument("--split", choices=["val", "test"], default="test")
    each.add_argument("--seed", type=int, help="first seed of fresh test samples (default 200000)")
    each.add_argument("--n", type=_positive, help="samples (default: all of --data, or 4 fresh ones)")
    each.add_argument("--rotate", type=float, default=0.0, metavar="DEG", help="turn every domain first")
    each.add_argument("--batch", type=_positive, help="trajectories at a time (default: 20 on a GPU, 1 on a CPU)")
    each.add_argument(
        "--every",
        type=_positive,
        metavar="N",
        help="take errors at every N-th save (default: 10 ms apart for waves, all for heat); activation times use all",
    )
    each.add_argument("--rows", type=Path, help="write the errors of each trajectory, one a line (.jsonl)")
    each.add_argument("--worst", type=Path, help="draw the worst trajectory beside the truth (.png)")
    each.add_argument("--label", help="name of the recorded row (default: the variant)")
    each.add_argument(
        "--set-integrator", action="append", default=[], metavar="KEY=VALUE", help="for example longest_step=0.002"
    )
    shared(each, "workers", "device", "set", "record")

    each = command(calibrate, "how far a model may be off, from waves it has not learned from: `predict` then says so")
    each.add_argument("model", help="run folder, or a shipped model")
    each.add_argument("--data", type=Path, required=True, help="folder made by simulate, with a validation split")
    each.add_argument(
        "--check", action="store_true", help="write nothing: which share of the test split's waves keep the bounds"
    )
    shared(each, "workers", "device", "record")

    each = command(compare, "changes of a variant side by side: same data, seconds of training and seeds; validation errors")
    each.add_argument("recipe")
    each.add_argument("--variant", help="what is changed (default: ours)")
    each.add_argument("--data", type=Path, required=True, help="folder made by simulate; its test split is never read")
    each.add_argument("--out", type=Path, required=True, help="folder of all runs; what is there is not trained again")
    each.add_argument("--seconds", type=float, required=True, help="of training, for each run")
    each.add_argument("--seeds", type=_positive, default=1, help="runs of each lever")
    each.add_argument(
        "--lever", action="append", default=[], metavar="'NAME: KEY=VALUE ...'",
        help="a change, for example 'l2: training.loss=l2'; variant=NAME starts from another variant",
    )  # fmt: skip
    each.add_argument("--levers", type=Path, metavar="FILE", help="more of them, one a line")
    each.add_argument("--n-train", type=_positive, help="use only so many training samples")
    shared(each, "workers", "device", "set", "record", "compile", "size")

    each = command(bench, "what operators or the solver cost, beside the least they could and beside rivals")
    each.add_argument(
        "recipe",
        nargs="?",
        default="heat",
        help="a recipe, for its operators, or `solver`, `atria`, `predict`, `view`, `pareto` or `scale`",
    )
    each.add_argument("of", nargs="?", help="pareto: the recipe whose error and cost it is about (default: rectangles)")
    each.add_argument("--variant", action="append", help="default: ours and paper; scale: RECIPE/VARIANT")
    each.add_argument(
        "--n", type=_positive, help="trajectories at a time (default 20); atria, pareto (2): domains; predict, view: sites"
    )
    each.add_argument(
        "--edge", type=float, default=1.0, metavar="MM", help="atria, predict, view: edge length of the triangles"
    )
    each.add_argument("--picture", type=Path, help="atria: draw the first four; pareto: error against cost (.png)")
    each.add_argument(
        "--run",
        action="append",
        default=[],
        help=f"pareto, predict, view: a trained run's folder, or a shipped model{FEWER}",
    )
    each.add_argument(
        "--halved", action="append", default=[], metavar="RUN", help="pareto: an operator of atria on edges half as long"
    )
    each.add_argument("--seed", type=_whole, help="pareto, predict, view: first seed (default: validation's)")
    each.add_argument("--truth-refine", type=_positive, default=4, metavar="N", help="pareto: how much finer the truth is")
    each.add_argument("--out", type=Path, help="pareto: keeps what is measured; killed and called again, it goes on there")
    each.add_argument("--nodes", type=_positive, nargs="+", help="scale: of the domains")
    each.add_argument("--modes", type=_positive, nargs="+", help="scale: of the operators")
    each.add_argument("--batch", type=_positive, help="pareto, scale: trajectories at a time (default 1; on a GPU 100, 4)")
    each.add_argument("--rivals", type=Path, default=Path(".rivals"), help="folder of other solvers (`make rivals`)")
    each.add_argument("--no-errors", action="store_true", help="solver: don't find out how wrong each solver is")
    shared(each, "workers", "device", "set", "record", "compile")

    each = command(verify, "try the solver's laws out on this machine; status 1 if any fails")
    each.add_argument("--out", type=Path, help="folder for pictures (default: none are drawn)")
    each.add_argument("--quick", action="store_true", help="leave out the 2-D benchmark: less than a minute on two cores")
    shared(each, "device")

    each = command(atrium, "make a synthetic left atrium with fibres and named parts; every seed is another")
    each.add_argument("--seed", type=_whole, required=True)
    each.add_argument("--out", type=Path, required=True, help=".vtp, .vtu, or .pts for openCARP")
    each.add_argument("--edge", type=float, default=1.0, metavar="MM", help="edge length of the triangles, 0.25 to 1.5")
    each.add_argument("--turned", type=float, default=20.0, metavar="DEGREES", help="spread of fibres about the rule's")
    each.add_argument("--picture", type=Path, help="draw it, with regions and fibres (.png)")

    each = command(mesh, "read a mesh of any tool, mend it and say what was changed; remesh it evenly; write it")
    each.add_argument("file", type=Path, help="openCARP, VTK, CARTO, PLY, STL, OBJ, OFF, gmsh or XDMF (docs/meshes.md)")
    each.add_argument("--unit", choices=["mm", "um", "m", "cm"], help="of the coordinates (default: judged by their extent)")
    each.add_argument("--keep-all", action="store_true", help="keep all separate parts, not the largest alone")
    each.add_argument("--edge", type=float, metavar="MM", help="remesh evenly to this edge length")
    each.add_argument("--fibres", choices=["file", "rule"], default="file", help="rule: make some, for a left atrium")
    each.add_argument(
        "--label", type=_label, action="append", default=[], metavar="NAME=X,Y,Z",
        help="rule: a place, in mm, at MV, LSPV, LIPV, RSPV, RIPV or the tip of the LAA (default: found by shape)",
    )  # fmt: skip
    each.add_argument("--out", type=Path, help="write it: .vtp, .vtu, or .pts for openCARP")

    each = command(predict, "the wave that a stimulus sends over a mesh, by a trained model; on the mesh's own nodes")
    each.add_argument("mesh", type=Path, help="a left atrium, in any format that `gfunk mesh` reads")
    each.add_argument(
        "--at", type=_site, action="append", metavar="X,Y,Z|REGION",
        help="where it starts, in mm, or a part such as LSPV; may be given again: all at once (default: beside RSPV)",
    )  # fmt: skip
    # A place may begin with a minus, and is no option.
    each._negative_number_matcher = re.compile(r"-[\d.]")
    each.add_argument("--fibres", metavar="FILE|rule", help="a .lon or a mesh with fibres (default: the mesh's, or by rule)")
    each.add_argument("--model", default="atria", help=f"a shipped model, or a run folder{FEWER}")
    each.add_argument("--edge", type=float, metavar="MM", help=SHORTER)
    each.add_argument("--until", type=float, default=100.0, metavar="MS", help="after the stimulus (default 100)")
    each.add_argument("--every", type=float, default=1.0, metavar="MS", help="between output times (default 1)")
    each.add_argument("--out", type=Path, help=".npz (all), .pvd (film), .vtp (activation map) or .igb (voltages)")
    each.add_argument("--picture", type=Path, help="draw the wave and its activation map (.png)")
    each.add_argument("--report", type=Path, help="write a page about it (.html)")
    each.add_argument("--compare", action="store_true", help="solve it too, and say how far the prediction is off")
    each.add_argument("--unit", choices=["mm", "um", "m", "cm"], help="of the coordinates (default: judged by their extent)")
    each.add_argument(
        "--label", type=_label, action="append", default=[], metavar="NAME=X,Y,Z",
        help="a place at MV, LSPV, LIPV, RSPV, RIPV or the tip of the LAA, where fibres or --at need it (default: by shape)",
    )  # fmt: skip
    shared(each, "device")

    each = command(sweep, "waves from many sites of a mesh, each by itself: when they arrive, where that takes longest")
    each.add_argument("mesh", type=Path, help="a left atrium, in any format that `gfunk mesh` reads")
    each.add_argument("--sites", type=_positive, metavar="N", help="so many, spread evenly over the surface")
    each.add_argument("--region", metavar="NAME", help="spread them over this part alone, for example LAA")
    each.add_argument("--seed", type=_whole, default=0, help="of where the spread begins (default 0)")
    each.add_argument(
        "--at", type=_site, action="append", default=[], metavar="X,Y,Z|REGION",
        help="a further site, before the others; may be given again: each starts a wave of its own",
    )  # fmt: skip
    each._negative_number_matcher = re.compile(r"-[\d.]")
    each.add_argument("--out", type=Path, required=True, help="folder; the same command goes on where it was stopped")
    each.add_argument("--fibres", metavar="FILE|rule", help="a .lon or a mesh with fibres (default: the mesh's, or by rule)")
    each.add_argument("--model", default="atria", help=f"a shipped model, or a run folder{FEWER}")
    each.add_argument("--edge", type=float, metavar="MM", help=SHORTER)
    each.add_argument("--until", type=float, default=100.0, metavar="MS", help="after the stimulus (default 100)")
    each.add_argument("--unit", choices=["mm", "um", "m", "cm"], help="of the coordinates (default: judged by their extent)")
    each.add_argument(
        "--label", type=_label, action="append", default=[], metavar="NAME=X,Y,Z",
        help="a place at MV, LSPV, LIPV, RSPV, RIPV or the tip of the LAA (default: found by shape)",
    )  # fmt: skip
    shared(each, "device")

    each = command(view, "a page in the browser: choose or drop an atrium, click it, and see the predicted wave")
    each.add_argument("mesh", type=Path, nargs="?", help="shown first (default: a synthetic atrium)")
    each.add_argument("--model", default="atria", help=f"a shipped model, or a run folder{FEWER}")
    each.add_argument("--edge", type=float, metavar="MM", help=SHORTER)
    each.add_argument("--until", type=float, default=100.0, metavar="MS", help="after the stimulus (default 100)")
    each.add_argument("--host", default="127.0.0.1", help="address to serve at (default: this computer alone)")
    each.add_argument("--port", type=_whole, default=0, help="default: a free one")
    each.add_argument("--no-browser", action="store_true", help="only print the address")
    each.add_argument("--upload-mb", type=_positive, default=100, metavar="MB", help="largest mesh taken (default 100)")
    each.add_argument("--nodes", type=_positive, default=300_000, help="most nodes of a mesh (default 300,000)")
    shared(each, "device")

    each = command(export, "a model for onnxruntime or torch.export, checked; or simulated trajectories for xarray")
    each.add_argument("what", help="a shipped model or a run folder; a folder made by simulate, or a file in it")
    each.add_argument("--out", type=Path, required=True, help="a model: .onnx or .pt2; trajectories: .nc")

    command(results, "what was reached, on what, by which command")

    command(models, "trained models that come with the package; `gfunk evaluate NAME` tests one afresh")

    each = command(ship, "put a trained run among the models that come with the package")
    each.add_argument("run", type=Path, help="run folder")
    each.add_argument("--name", help="default: the recipe's, for its best model")
    each.add_argument("--record", type=Path, required=True, help="file where `evaluate --record` wrote how it was tested")
    each.add_argument("--label", help="of the row there (default: the variant)")
    each.add_argument("--limits", required=True, metavar="TEXT", help="where the model ends, in plain words")
    each.add_argument("--data", type=Path, help="what it was trained on, to be checked and counted")
    each.add_argument("--n-train", type=_positive, help="training samples (default: all of --data)")
    each.add_argument("--n-val", type=_positive, help="validation samples (default: all of --data)")
    each.add_argument("--dtype", choices=["float32", "float16"], help="default: float32 if all fits into 5 MB, else float16")
    each.add_argument("--unfinished", action="store_true", help="ship it though its training was stopped")
    return parser


def _positive(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _label(text: str) -> tuple[str, tuple[float, ...]]:
    name, _, place = text.partition("=")
    try:
        return name, tuple(float(number) for number in place.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=X,Y,Z") from None


def _site(text: str) -> str | tuple[float, ...]:
    """A region's name, or a place."""
    if text.isidentifier():
        return text
    try:
        x, y, z = map(float, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither X,Y,Z nor the name of a region") from None
    return x, y, z


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 up")
    return int(text)


if __name__ == "__main__":
    status = main()
    if "TORCHELASTIC_RUN_ID" in os.environ:
        # Under torchrun, threads of the process group may let go of their last tensors only now, and one that does while
        # the interpreter shuts down aborts it: after a good run torchrun would report a bad one.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
