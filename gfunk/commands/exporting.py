"""Networks and trajectories for other tools."""

import argparse
from pathlib import Path

from gfunk.commands.refusals import check_writable
from gfunk.console import show
from gfunk.errors import InputError


def export(options: argparse.Namespace):
    # Known without torch, so that a wrong name is refused at once.
    match options.out.suffix.lower():
        case ".onnx" | ".pt2":
            _export_model(options)
        case ".nc":
            _export_data(options)
        case _:
            raise InputError(f"{options.out}: models are written as .onnx or .pt2, trajectories as .nc")


def _export_model(options: argparse.Namespace):
    from gfunk.exporting.networks import check_model_path, export_model

    check_model_path(options.out)
    check_writable(options.out)
    made = export_model(options.what, options.out)
    answer = {
        "model": options.what, "out": str(options.out), "bytes": len(made.content), "inputs": list(made.inputs),
        "outputs": list(made.outputs), "nodes_checked": list(made.nodes_checked), "largest_gap": made.largest_gap,
    }  # fmt: skip
    lists = {name: ", ".join(map(str, answer[name])) for name in ("inputs", "outputs", "nodes_checked")}
    show(options.json, answer, [answer | lists])


def _export_data(options: argparse.Namespace):
    from gfunk.exporting.trajectories import check_data_path, write_netcdf

    check_data_path(options.out)
    check_writable(options.out)
    seeds = write_netcdf(options.out, Path(options.what))
    answer = {"data": options.what, "out": str(options.out), "bytes": options.out.stat().st_size, "samples": len(seeds)}
    show(options.json, answer, [answer])
