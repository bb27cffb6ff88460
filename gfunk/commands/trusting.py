"""How far a model may be off: bounds found and written, or tried on test waves."""

import argparse
from dataclasses import asdict

from gfunk.commands.refusals import check_writable
from gfunk.console import bar, people, show
from gfunk.errors import InputError


def calibrate(options: argparse.Namespace):
    from gfunk.calibration import bounds_by_roughness, errors_of_waves, kept_by_roughness, write_trust
    from gfunk.experiments import chosen_device, dataset_problem, trust_in, with_how_many_modes
    from gfunk.records import record
    from gfunk.settings import to_json
    from gfunk.trust import said

    if options.record is not None:
        check_writable(options.record)
    whole, n_modes = with_how_many_modes(options.model)
    if n_modes is not None:
        raise InputError(f"{options.model}: bounds are kept for a model with all its modes alone: calibrate {whole}")
    split, device, trust = "test" if options.check else "val", chosen_device(options.device), trust_in(options.model)
    with bar("preparing domains", None) as advance:
        waves = errors_of_waves(
            options.model, options.data, split, device=device, n_workers=options.workers, on_sample=advance
        )
    if options.check:
        rows = kept_by_roughness(trust, waves)
    else:
        found = bounds_by_roughness(waves)
        write_trust(options.model, trust.with_bounds(found))
        for each in found:
            people.print(said(each), markup=False)
        rows = [asdict(each) for each in found]
    if options.record is not None:
        about = {"model": options.model, "label": "bounds kept" if options.check else "bounds"}
        about |= {"problem": to_json(dataset_problem(options.data / split))}
        record(options.record, about | {"rows": rows}, options.words, device)
    show(options.json, rows, rows, list(rows[0]))
