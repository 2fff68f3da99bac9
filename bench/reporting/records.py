"""Records of experiments: what was run, with which settings, and what came out.

A file of records has one JSON object a line:

    {"format": "quire-experiment", "version": 1,
     "experiment": "fragmentation_stress",
     "command": ["fragmentation_stress", "--load", "churn", ...],
     "seed": 1, "machine": "...", "date": "2026-11-30",
     "source": "c42badf0e5f1", "result": {...}}

"result" is what the program prints with --json, cut into one object for each
thing that was compared; its "settings" have all that decided it, defaults
included. Records of a script whose programs play files of its own have "script":
the command line that makes them all. What the programs themselves print is read
as well; it says of itself which command made it.

Files are not trusted: every field that is used is checked when it is read, and
texts are escaped where they are written.
"""

import datetime
import json
import os
import pathlib
import platform
import subprocess

from bench.reporting import shapes

FORMAT = "quire-experiment"
VERSION = 1

_COUNT = shapes.integer()
_MOMENT = shapes.fields({"event": _COUNT, "requested": _COUNT,
                         "reserved": _COUNT},
                        {"internal_fragmentation": shapes.number,
                         "external_fragmentation": shapes.number})
_COST = shapes.fields({"driver_calls": _COUNT, "virtual_ms": shapes.number})
_SPREAD = shapes.fields({"mean": shapes.number, "worst": shapes.number})
_PERCENTILES = shapes.fields({"p50": shapes.number, "p99": shapes.number})
_WORDS = shapes.list_of(shapes.text)
_PERCENTS = shapes.list_of(shapes.integer(-1, 100))
_CELLS = shapes.fields({"event": _COUNT, "cells": _PERCENTS})
_PAGE_MAP = shapes.fields(
    {"page_size": shapes.integer(1), "cell_pages": shapes.integer(1)},
    {"at_peak": _CELLS, "at_failure": _CELLS, "at_end": _CELLS,
     "heat": shapes.fields({"band_pages": shapes.integer(1),
                            "held": shapes.list_of(_PERCENTS),
                            "requested": shapes.list_of(_PERCENTS)})})
_FAILURE = shapes.fields(
    {"event": _COUNT, "size": _COUNT, "largest_allocatable": _COUNT,
     "kind": shapes.text},
    {"requested": _COUNT, "allocated": _COUNT, "reserved": _COUNT,
     "device_free": _COUNT, "phases_before": _WORDS,
     "requests_before": _WORDS})

# What is read of a result, by experiment.
_SHAPES = {
    "fragmentation_stress": shapes.fields(
        {"policy": shapes.text, "trace": shapes.text, "validated": shapes.flag,
         "events": _COUNT, "device_memory": _COUNT, "peak_requested": _COUNT,
         "peak_reserved": _COUNT, "ratio": shapes.number, "oom": shapes.flag,
         "driver_calls": _COUNT, "virtual_ms": shapes.number,
         "largest_allocatable": _COUNT, "at_peak_requested": _MOMENT,
         "first_iteration": _COST},
        {"title": shapes.text, "evidence": shapes.text, "rank": _COUNT,
         "steady_state": _COST, "first_oom": _FAILURE, "page_map": _PAGE_MAP,
         "timeline": shapes.list_of(_MOMENT)}),
    "model_switching": shapes.fields(
        {"scenario": shapes.text, "class": shapes.text, "policy": shapes.text,
         "strategy": shapes.text, "validated": shapes.flag,
         "device_memory": _COUNT, "as_good_as_can_be": shapes.flag,
         "switches": _COUNT, "switches_survived": _COUNT,
         "capacity_failures": _COUNT, "fragmentation_failures": _COUNT,
         "peak_requested": _COUNT, "peak_reserved": _COUNT,
         "ratio": shapes.number, "driver_calls": _COUNT,
         "virtual_ms": shapes.number, "bytes_loaded": _COUNT,
         "steps": shapes.list_of(shapes.fields(
             {}, {"do": shapes.text, "workload": shapes.text,
                  "peak_requested": _COUNT, "peak_reserved": _COUNT,
                  "headroom": _COUNT, "failure": shapes.text}))},
        {"seconds_to_switch": _SPREAD, "seconds_to_first_token": _SPREAD,
         "idle_share": _SPREAD, "bytes_copied_out": _COUNT,
         "bytes_copied_in": _COUNT, "host_memory_peak": _COUNT,
         "last_day": _COST, "wake_to_copy": shapes.number}),
    "real_models": shapes.fields(
        {"strategy": shapes.text, "device_memory": _COUNT,
         "peak_reserved": _COUNT, "host_memory_peak": _COUNT,
         "oom": shapes.flag, "all_equal": shapes.flag, "switches": _COUNT,
         "switches_survived": _COUNT, "bytes_loaded": _COUNT,
         "bytes_copied_out": _COUNT, "bytes_copied_in": _COUNT,
         "models": shapes.list_of(shapes.fields(
             {"model": shapes.text, "tokens": _COUNT, "tokens_alone": _COUNT,
              "equal": shapes.flag, "peak_reserved_alone": _COUNT},
             {"first_difference": _COUNT}), least=1),
         "steps": shapes.list_of(shapes.fields(
             {"model": shapes.text, "seconds_to_switch": shapes.number,
              "seconds_to_first_token": shapes.number, "reserved": _COUNT,
              "headroom": _COUNT, "host_memory": _COUNT}))},
        {"failure": shapes.text, "failure_kind": shapes.text,
         "seconds_to_switch": _SPREAD, "seconds_to_first_token": _SPREAD,
         "wake_to_copy": shapes.number, "load_to_read": shapes.number,
         "load_to_bound": shapes.number}),
    "kv_stress": shapes.fields(
        {"kv_memory_bytes": _COUNT, "requests": _COUNT,
         "caches": shapes.list_of(shapes.either(
             "failure",
             shapes.fields({"cache": shapes.text,
                            "create_page_us": shapes.number,
                            "failure": shapes.text}),
             shapes.fields(
                 {"cache": shapes.text, "create_page_us": shapes.number,
                  "requests_served": _COUNT, "preempted_requests": _COUNT,
                  "requests_per_virtual_second": shapes.number,
                  "mean_running": shapes.number, "waste_ratio": shapes.number,
                  "peak_held_bytes": _COUNT,
                  "driver_calls_on_critical_path": _COUNT,
                  "driver_calls_off_critical_path": _COUNT,
                  "decode_steps": _COUNT, "decode_steps_waiting": _COUNT})),
             least=1)},
        {"trace": shapes.text, "model": shapes.text}),
    "serving_replay": shapes.either(
        "failure",
        shapes.fields(
            {"trace": shapes.text, "load_factor": shapes.number,
             "cache": shapes.text, "requests": _COUNT, "kv_memory": _COUNT,
             "failure": shapes.text}),
        shapes.fields(
            {"trace": shapes.text, "load_factor": shapes.number,
             "cache": shapes.text, "requests": _COUNT,
             "requests_served": _COUNT, "requests_per_second": shapes.number,
             "goodput": shapes.number, "attainment": shapes.number,
             "seconds_to_first_token": _PERCENTILES,
             "seconds_per_output_token": _PERCENTILES, "preemptions": _COUNT,
             "mean_running": shapes.number, "kv_memory": _COUNT,
             "wasted_share": shapes.number, "peak_reserved": _COUNT,
             "driver_calls_waited_for": _COUNT})),
    "reproduce_oom": shapes.fields(
        {"model": shapes.text, "device_memory": _COUNT, "fixed": _COUNT,
         "bytes_per_token": _COUNT, "sequences": _COUNT,
         "kv_cache": shapes.text, "error": shapes.text, "kind": shapes.text,
         "contexts": shapes.list_of(shapes.fields(
             {"context": _COUNT, "needed": _COUNT},
             {"kv_committed": _COUNT}), least=1)}, {}),
    "allocator_bench": shapes.fields(
        {"machine": shapes.text, "date": shapes.text,
         "sections": shapes.list_of(shapes.fields(
             {"name": shapes.text, "title": shapes.text,
              "method": shapes.text,
              "figures": shapes.list_of(shapes.fields(
                  {"name": shapes.text, "unit": shapes.text},
                  {"quire": shapes.number, "mimalloc": shapes.number,
                   "aim": shapes.number, "bar": shapes.number,
                   "verdict": shapes.text}))}))},
        {"load": shapes.text, "mimalloc": shapes.text}),
}
# By which a result is known that does not say what it is of.
_MARKS = {"fragmentation_stress": {"policy", "trace"},
          "model_switching": {"scenario", "strategy"},
          "real_models": {"strategy", "all_equal"},
          "serving_replay": {"cache", "load_factor"}, "kv_stress": {"caches"},
          "reproduce_oom": {"contexts", "kind"},
          "allocator_bench": {"sections"}}
EXPERIMENTS = tuple(_SHAPES)

_RECORD = shapes.fields({"experiment": shapes.text, "result": shapes.anything},
                        {"command": _WORDS, "script": _WORDS,
                         "machine": shapes.text,
                         "date": shapes.text, "source": shapes.text,
                         "seed": _COUNT})


class RecordError(Exception):
    """A file that is no record, with its name and where."""


def describe_machine():
    """Processor, cores and memory, as far as the system tells."""
    model = platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    model = line.split(":", 1)[1].strip()
                    break
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return (f"{model}, {os.cpu_count()} cores, "
                f"{memory / (1 << 30):.0f} GiB, {platform.system()}")
    except (OSError, ValueError):
        return f"{model}, {os.cpu_count()} cores, {platform.system()}"


def describe_source():
    """The commit that the programs are of, with a "+" where files differ from
    it; empty where this is no checkout."""
    def git(*arguments):
        return subprocess.run(
            ["git", "-C", str(pathlib.Path(__file__).parent), *arguments],
            capture_output=True, text=True, check=True).stdout.strip()
    try:
        commit = git("rev-parse", "--short=12", "HEAD")
        return commit + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def without_nulls(value):
    """What is null is not there: nobody has to ask twice."""
    if isinstance(value, dict):
        return {name: without_nulls(one) for name, one in value.items()
                if one is not None}
    if isinstance(value, list):
        return [without_nulls(one) for one in value]
    return value


def make(experiment, command, seed, results):
    """The records of one run of a program."""
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    machine = describe_machine()
    source = describe_source()
    return [{"format": FORMAT, "version": VERSION, "experiment": experiment,
             "command": command, "seed": seed, "machine": machine,
             "date": date, "source": source,
             "result": without_nulls(result)}
            for result in results]


def split_output(text):
    """What a program printed with --json, as a list of results: an array, an
    object, or an object a line."""
    try:
        output = json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line]
    return output if isinstance(output, list) else [output]


def _experiment_of(result):
    """Which program printed it, by its fields; None: none that is known."""
    for experiment, marks in _MARKS.items():
        if isinstance(result, dict) and marks <= result.keys():
            return experiment
    return None


def command_of(result):
    """What made it, as far as it says so; nothing in it is checked yet."""
    settings = result.get("settings") if isinstance(result, dict) else None
    command = settings.get("command") if isinstance(settings, dict) else None
    if not isinstance(command, list) or not all(
            isinstance(one, str) for one in command):
        return []
    return [one for one in command if one != "--json"]


def _from_object(item, where):
    record = {"format": FORMAT, "version": VERSION, "command": [],
              "seed": None, "machine": "", "date": "", "source": ""}
    try:
        if isinstance(item, dict) and item.get("format") == FORMAT:
            if item.get("version") != VERSION:
                raise RecordError(f"{where}: this version is not known; "
                                  f"{VERSION} is")
            _RECORD(item, "the record")
            record.update({name: value for name, value in item.items()
                           if value is not None})
        else:
            record["experiment"] = _experiment_of(item)
            record["result"] = item
            record["command"] = command_of(item)
        shape = _SHAPES.get(record["experiment"])
        if shape is None:
            raise RecordError(f"{where}: neither a record nor the --json of "
                              f"{', '.join(EXPERIMENTS)}")
        shape(record.get("result"), record["experiment"])
        record["result"] = without_nulls(record["result"])
    except shapes.ShapeError as error:
        raise RecordError(f"{where}: {error}") from error
    except RecursionError as error:
        raise RecordError(f"{where}: nested too deeply") from error
    for name in ("machine", "date"):  # as allocator_bench tells them itself
        told = record["result"].get(name)
        if not record[name] and isinstance(told, str):
            record[name] = told
    return record


def _refuse_constant(name):
    raise ValueError(f"{name} is no number of JSON")


def read(path):
    """The records of a file: JSON lines, or what a program printed."""
    return [_from_object(item, where) for item, where in parse(path)]


def parse(path):
    """(object, where it stands) of each in the file, as they are."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: cannot be read: {error}") from error
    def loads(part):
        return json.loads(part, parse_constant=_refuse_constant)
    try:
        items = loads(text)
        items = items if isinstance(items, list) else [items]
        places = [f"{path}: object {i}" for i in range(len(items))]
    except (ValueError, RecursionError):
        items, places = [], []
        for number, line in enumerate(text.split("\n"), start=1):
            if not line.strip():
                continue
            try:
                items.append(loads(line))
            except (ValueError, RecursionError) as error:
                raise RecordError(f"{path}: line {number}: no JSON: "
                                  f"{error}") from error
            places.append(f"{path}: line {number}")
    if not items:
        raise RecordError(f"{path}: there is nothing in it")
    return list(zip(items, places))


def write_text(path, text):
    """A pipe that nobody reads is an OSError, and is not waited for."""
    def at_once(name, flags):
        return os.open(name, flags | os.O_NONBLOCK, 0o666)

    with open(path, "w", encoding="utf-8", opener=at_once) as file:
        os.set_blocking(file.fileno(), True)
        file.write(text)


def write(path, records):
    write_text(path, "".join(
        json.dumps(record, sort_keys=True, ensure_ascii=False) + "\n"
        for record in records))
