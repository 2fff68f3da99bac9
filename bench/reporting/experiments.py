"""Runs the programs of bench/ and makes records of what they print.

A run is one call of a program; where several traces or scenarios are asked for
there is one for each, so that progress can be told. Programs are looked for in
one folder, and are deterministic for a seed, but for what they measure of the
machine itself (allocator_bench, `seconds`).
"""

import dataclasses
import json
import pathlib
import subprocess
import time

from bench.reporting import records

_POLL_SECONDS = 0.1


class RunError(Exception):
    """A program that could not be run, or that failed."""


@dataclasses.dataclass
class Run:
    """One call: the program and its arguments, without --json."""
    experiment: str
    arguments: list
    seed: int | None = None
    label: str = ""
    folder: str | None = None  # to run in; None: the caller's

    def command(self):
        return [_PROGRAM_OF.get(self.experiment, self.experiment),
                *self.arguments]


def plan(options):
    """The runs that the options ask for, in order."""
    runs = []
    for experiment in options.experiment:
        runs += _PLANNERS[experiment](options)
    return runs


def _plan_fragmentation(options):
    common = ["--policies", options.policies,
              "--device-memory", options.device_memory,
              "--repeat", str(options.repeat),
              "--timeline", str(options.looks),
              "--page-maps", str(options.looks)]
    runs = [Run("fragmentation_stress", ["--trace", trace, *common],
                label=pathlib.Path(trace).name) for trace in options.trace]
    for load in options.load:
        runs.append(Run("fragmentation_stress",
                        ["--load", load, "--seed", str(options.seed),
                         "--events", str(options.events), "--live",
                         options.live, *common], options.seed, load))
    return runs


def _plan_switching(options):
    if not options.scenarios:
        raise RunError("model_switching needs --scenarios FILE")
    common = ["--policies", options.policies, "--days", str(options.days)]
    if options.strategies:
        common += ["--strategies", options.strategies]
    return [Run("model_switching", [options.scenarios, *common,
                                    "--scenario", name],
                label=name)
            for name in options.scenario or _scenario_names(options.scenarios)]


def _plan_real(options):
    if not options.real:
        raise RunError("real_models needs --real MODEL...")
    arguments = ["--real", ",".join(options.real), "--seed", str(options.seed)]
    if options.page_size:
        arguments += ["--page-size", options.page_size]
    return [Run("real_models", arguments, options.seed,
                f"{len(options.real)} models")]


def _scenario_names(path):
    """All that are in the file; what else is in it, its program checks."""
    try:
        with open(path, encoding="utf-8") as file:
            names = [one["name"] for one in json.load(file)["scenarios"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError(f"{path}: no scenarios with names: {error}") from error
    if not all(isinstance(name, str) for name in names):
        raise RunError(f"{path}: a scenario's name is no text")
    return names


def _plan_caches(options):
    arguments = ["--device-memory", options.device_memory,
                 "--seed", str(options.seed)]
    if options.kv_trace:
        arguments += ["--trace", options.kv_trace]
    if options.kv_model:
        arguments += ["--model", options.kv_model]
    arguments += ["--requests", str(options.kv_requests)]
    return [Run("kv_stress", arguments, options.seed, "KV caches")]


def _plan_serving(options):
    if not options.serving_trace:
        raise RunError("serving_replay needs --serving-trace FILE")
    common = ["--device-memory", options.device_memory,
              "--seed", str(options.seed),
              "--requests", str(options.kv_requests)]
    if options.kv_model:
        common += ["--model", options.kv_model]
    return [Run("serving_replay", [trace, *common], options.seed,
                pathlib.Path(trace).name) for trace in options.serving_trace]


def _plan_bench(options):
    arguments = ["--seed", str(options.seed)]
    return [Run("allocator_bench", arguments + (["--quick"] if options.quick
                                                else []),
                options.seed, "allocator")]


_PLANNERS = {
    "fragmentation_stress": _plan_fragmentation,
    "model_switching": _plan_switching,
    "real_models": _plan_real,
    "kv_stress": _plan_caches,
    "serving_replay": _plan_serving,
    "allocator_bench": _plan_bench,
}
PLANNED = tuple(_PLANNERS)
# Where it is not called like the experiment.
_PROGRAM_OF = {"real_models": "model_switching"}
PROGRAMS = frozenset(_PROGRAM_OF.get(name, name) for name in PLANNED)


def run_program(program, arguments, progress=lambda: None, folder=None):
    """(exit status, stdout, stderr); `progress` is called while it works."""
    try:
        process = subprocess.Popen(
            [pathlib.Path(program).absolute(), *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=folder)
    except OSError as error:
        raise RunError(f"{program}: {error.strerror}; build it first: cmake "
                       "--preset release && cmake --build --preset release"
                       ) from error
    try:
        while True:
            try:
                output, errors = process.communicate(timeout=_POLL_SECONDS)
                return process.returncode, output, errors
            except subprocess.TimeoutExpired:
                progress()
    finally:
        if process.poll() is None:  # interrupted
            process.kill()
            process.wait()


def call(program, arguments, progress=lambda: None, folder=None):
    """What the program prints; an error where it fails."""
    status, output, errors = run_program(program, arguments, progress, folder)
    if status != 0:
        raise RunError(f"{pathlib.Path(program).name} {' '.join(arguments)}: "
                       f"exit status {status}: {errors.strip()}")
    return output


def execute(run, folder, progress=lambda: None):
    """Runs one and returns its records."""
    program, *arguments = run.command()
    output = call(pathlib.Path(folder) / program, [*arguments, "--json"],
                  progress, run.folder)
    try:
        results = records.split_output(output)
    except ValueError as error:
        raise RunError(f"{program}: printed no JSON: {error}") from error
    return records.make(run.experiment, run.command(), run.seed, results)


def execute_all(runs, folder, line):
    """The records of all runs; `line` is a ProgressLine."""
    made = []
    start = time.monotonic()
    for done, run in enumerate(runs):
        began = time.monotonic()

        def tick():
            # A run that takes as long as those before it did.
            mean = (began - start) / done if done else None
            part = (min((time.monotonic() - began) / mean, 0.95) if mean
                    else 0)
            line.update(f"{run.experiment}, {run.label}", done + part,
                        len(runs))

        made += execute(run, folder, tick)
        line.update(f"{run.experiment}, {run.label}", done + 1, len(runs))
    line.clear()
    return made
