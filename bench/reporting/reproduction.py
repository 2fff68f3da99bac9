"""The field's recipe for an out-of-memory error, played and told.

One model, a fixed context, a fixed batch, nothing beside it: a trace of its
operators is played on a device that has little more memory than the trace
needs, against each policy; and a real model's context grows on a small software
device until the error comes. Either way what was held and asked for then is
told, what came before, and whether it was capacity or fragmentation.
"""

import json
import pathlib
import re

from bench.reporting import experiments
from bench.reporting.tables import (Column, Table, format_bytes, format_count,
                                    join_words, to_text)

PAGE = 2 << 20
# That a model decodes behind each prompt.
NEW_TOKENS = 2
# A device on which every policy has what it wants.
_PLENTY = 1 << 40
# The search for the least device ends within this part of the peak.
_PRECISION = 0.002


def _round_up(count):
    return -(-count // PAGE) * PAGE


class TraceReproduction:
    """Plays one trace on devices of any size; knows nothing of the policies."""

    def __init__(self, trace, folder, progress=lambda: None):
        self._trace = trace
        self._folder = folder
        self._progress = progress

    def play(self, policies, memory):
        """A record for each policy, on a device of so many bytes."""
        run = experiments.Run(
            "fragmentation_stress",
            ["--trace", self._trace, "--policies", ",".join(policies),
             "--device-memory", str(memory)])
        return experiments.execute(run, self._folder, self._progress)

    def measure(self):
        """(the most that is asked for at one time, the largest request)."""
        result = self.play(["cudamalloc"], _PLENTY)[0]["result"]
        return result["peak_requested_by_trace"], result["largest_request"]

    def find_least(self, policy, peak):
        """About the least device that the policy survives on, by bisection;
        None where it does not survive on the fourfold peak."""
        def survives(memory):
            return not self.play([policy], memory)[0]["result"]["oom"]

        least, most = _round_up(peak), _round_up(4 * peak)
        if survives(least):
            return least
        if not survives(most):
            return None
        while most - least > max(PAGE, _PRECISION * peak):
            middle = _round_up((least + most) // 2)
            if middle in (least, most):
                break
            if survives(middle):
                most = middle
            else:
                least = middle
        return most


def tell_trace(records, peak, largest, least):
    """Lines about a trace on one device. `least`: by policy, or None."""
    first = records[0]["result"]
    memory = first["device_memory"]
    lines = [f"device {format_bytes(memory)}; the trace needs "
             f"{format_bytes(peak)} at its peak and "
             f"{format_bytes(largest)} in one request"]
    fits = peak <= memory
    lines.append("It fits: an out-of-memory error is the allocator's." if fits
                 else f"It cannot fit: {format_bytes(peak - memory)} are "
                 "missing.")
    columns = [Column("Policy"), Column("Verdict", words=True),
               Column("Event"), Column("Asked for"), Column("Could have had"),
               Column("Requested"), Column("Allocated"), Column("Reserved"),
               Column("Device free")]
    if least is not None:
        columns.append(Column("Least device, about"))
    table = Table("When memory first ran out, and else at the peak", columns)
    for record in records:
        result = record["result"]
        failure = result.get("first_oom")
        moment = failure or result["at_peak_requested"]
        row = [result["policy"], failure["kind"] if failure else "survives",
               format_count(moment["event"]),
               format_bytes(failure["size"]) if failure else "-",
               format_bytes(failure["largest_allocatable"]) if failure else "-",
               format_bytes(moment["requested"]),
               format_bytes(moment["allocated"]),
               format_bytes(moment["reserved"]),
               format_bytes(max(memory - moment["reserved"], 0))]
        if least is not None:
            found = least.get(result["policy"])
            row.append(format_bytes(found) if found else "over 4 x the peak")
        table.add(*row)
    lines.append("")
    lines += to_text(table)
    for record in records:
        lines += _tell_order(record["result"])
    return lines


def _tell_order(result):
    failure = result.get("first_oom")
    if not failure:
        return []
    lines = ["", f"{result['policy']}: {failure['kind']}"]
    phases = failure.get("phases_before") or []
    if phases:
        lines.append(f"  phases: {', '.join(phases)}")
    requests = failure.get("requests_before") or []
    if requests:
        lines.append("  requests and frees before; the last one failed:")
        lines += [f"    {request}" for request in requests]
    return lines


def judge(records, peak, memory):
    """One sentence: capacity or fragmentation, and for whom."""
    if peak > memory:
        return ("capacity: no policy can serve this on "
                f"{format_bytes(memory)}")
    died = [r["result"]["policy"] for r in records if r["result"]["oom"]]
    if not died:
        return "no out-of-memory error: everybody survives"
    alive = [r["result"]["policy"] for r in records if not r["result"]["oom"]]
    return (f"fragmentation, for {join_words(died)}; "
            f"{join_words(alive) or 'nobody'} "
            f"{'survive' if len(alive) > 1 else 'survives'} on the same device")


# ---- A real model ------------------------------------------------------------

_VERDICT = re.compile(r"out of device memory \(([a-z ]+)\)")
# A pool of blocks has a size of its own, and no verdict.
_POOL = re.compile(r"block-table KV cache: .* are needed")


class ModelReproduction:
    """Runs `quire bench` with more and more context."""

    def __init__(self, model, folder, sequences, cache, progress=lambda: None):
        self._model = str(model)
        self._quire = pathlib.Path(folder) / "quire"
        self._sequences = sequences
        self._cache = cache
        self._progress = progress

    def _call(self, *arguments):
        status, output, errors = experiments.run_program(
            self._quire, arguments, self._progress)
        return status, output, errors.strip()

    def plan(self):
        """What the planner says of the model on a device with plenty."""
        return json.loads(experiments.call(
            self._quire, ["plan", self._model, "--device-memory", "1TiB",
                          "--json"], self._progress))

    def run(self, memory, context):
        """(result or None, the error's line) of one context."""
        status, output, errors = self._call(
            "bench", self._model, "--json", "--device-memory", str(memory),
            "--gpu-memory-utilization", "1", "--prompt-tokens", str(context),
            "--new-tokens", str(NEW_TOKENS),
            "--sequences", str(self._sequences),
            "--max-num-seqs", str(self._sequences),
            "--max-model-len", str(context + NEW_TOKENS),
            "--kv-cache", self._cache)
        if status == 0:
            return json.loads(output), ""
        return None, errors.splitlines()[-1] if errors else "no message"

    def grow(self, memory, start, most):
        """(context, result, error) of each: doubled until it fails."""
        context = start
        while True:
            result, error = self.run(memory, context)
            yield context, result, error
            if result is None or context >= most:
                return
            context = min(2 * context, most)


def kind_of(error):
    """"capacity", "fragmentation", ... of an error line. Raises RunError where
    the error is not about memory."""
    found = _VERDICT.search(error)
    if found:
        return found.group(1)
    if _POOL.search(error):
        return "capacity, of the pool of blocks"
    raise experiments.RunError(error)
