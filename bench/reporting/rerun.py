"""Makes runs again from their own lines, and compares all but what a clock of
this machine said.

A line is a record (records.py), or an object that a program printed with
--json: its `settings.command` is what made it. Records of scripts, whose
programs play files that are gone, name the script that makes them: `script`.
"""

import dataclasses
import json
import pathlib
import re
import tempfile

from bench.reporting import experiments, records

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What is run for a file, which may be anybody's.
PROGRAMS = experiments.PROGRAMS | {"allocator_replay"}
SCRIPTS = frozenset({"bench/reproduce_oom", "bench/worked_13b"})

# Fields that this machine's clock decides, wherever they stand.
_TIMES = {"seconds", "nanoseconds_per_operation", "host_us_per_step",
          "host_us_per_cache_step_of_256", "attention_us_per_step",
          "attention_relative_to_per_layer"}
# The same, of models that really run.
_REAL_TIMES = {"wake_seconds", "copy_seconds", "load_seconds", "read_seconds",
               "bound_seconds", "wake_to_copy", "load_to_read",
               "load_to_bound", "seconds_to_switch", "seconds_to_first_token"}
# Ages of events, within the text of a verdict.
_AGE = re.compile(r" [\d.]+ ms before\b")
# And of what does nothing but measure.
_MEASURED = {"value", "quire", "mimalloc", "verdict", "date", "load"}


def _ignored(result):
    if "all_equal" in result:
        return _TIMES | _REAL_TIMES
    if "sections" in result:
        return _TIMES | _MEASURED
    return _TIMES


def differences(was, now, ignored=None, path=""):
    """Paths and values that differ, as texts; all of them."""
    if ignored is None:
        ignored = _ignored(was) if isinstance(was, dict) else _TIMES
    if isinstance(was, dict) and isinstance(now, dict):
        found = []
        for name in sorted(was.keys() | now.keys()):
            if name in ignored:
                continue
            place = f"{path}.{name}" if path else name
            if name not in was or name not in now:
                found.append(f"{place}: only "
                             f"{'now' if name in now else 'before'}")
            else:
                found += differences(was[name], now[name], ignored, place)
        return found
    if isinstance(was, list) and isinstance(now, list) \
            and len(was) == len(now):
        return [one for i, (a, b) in enumerate(zip(was, now))
                for one in differences(a, b, ignored, f"{path}[{i}]")]
    if _timeless(was) == _timeless(now):
        return []
    return [f"{path}: {_short(was)} before, {_short(now)} now"]


def _timeless(value):
    return _AGE.sub("", value) if isinstance(value, str) else value


def _short(value):
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


@dataclasses.dataclass
class Line:
    """What was made, and what makes it again."""
    result: dict
    command: tuple
    is_script: bool


def read(path):
    """The lines of a file. Raises RecordError, which names the place."""
    return [_line_of(item, where) for item, where in records.parse(path)]


def _line_of(item, where):
    def refuse(what):
        raise records.RecordError(f"{where}: {what}")

    if not isinstance(item, dict):
        refuse("is no object")
    is_record = item.get("format") == records.FORMAT
    result = item.get("result") if is_record else item
    if not isinstance(result, dict):
        refuse("there is no result")
    script = item.get("script") if is_record else None
    command = script or (item.get("command") if is_record
                         else records.command_of(result))
    if not command:
        refuse("the line does not say what made it")
    if not isinstance(command, list) or not all(
            isinstance(one, str) for one in command):
        refuse("what made it is no list of texts")
    if command[0] not in (SCRIPTS if script else PROGRAMS):
        refuse(f"{command[0]} is no {'script' if script else 'program'} that "
               "makes lines")
    return Line(result, tuple(command), bool(script))


def run(command, is_script, folder, progress=lambda: None):
    """The results that the command gives now."""
    if not is_script:
        arguments = [one for one in command[1:] if one != "--json"]
        output = experiments.call(pathlib.Path(folder) / command[0],
                                  [*arguments, "--json"], progress)
        return records.split_output(output)
    with tempfile.TemporaryDirectory() as place:
        made = pathlib.Path(place) / "records.jsonl"
        experiments.call(ROOT / command[0],
                         [*command[1:], "--build", str(folder), "--records",
                          str(made)], progress)
        return [line.result for line in read(made)]


def compare(was, results):
    """What differs between a result and the nearest of what was made now."""
    was = _comparable(was)
    nearest = None
    for result in results:
        found = differences(was, _comparable(result))
        if nearest is None or len(found) < len(nearest):
            nearest = found
        if not found:
            break
    return ["nothing came out"] if nearest is None else nearest


def _comparable(result):
    """Without what is null, and without `settings.command`, which is of whoever
    called."""
    result = records.without_nulls(result)
    settings = result.get("settings")
    if isinstance(settings, dict):
        options = dict(settings.get("options", {}))
        options.pop("json", None)
        settings = {name: value for name, value in settings.items()
                    if name != "command"}
        if options:
            settings["options"] = options
        result = {**result, "settings": settings}
    return result
