"""A model that is too large for its device, and what each remedy alone does.

Three remedies: weights of 8 bits (GPTQ), offload of layers to host memory, from
where they stream through two slots on every step, and batch control, which
admits as many sequences as keys and values have room for. All eight
combinations are placed by `quire plan`, layers that stay on the device by maps
that go through `quire plan --device-map`, and what a plan says that it
allocates is played on a simulated device of that size. Without batch control
the batch is fixed, and each sequence has room for its longest.

How fast a step is, is arithmetic: what streams, at the rate of the bus; the
device's own work is not in it, so steps take longer than that.
"""

import dataclasses
import itertools
import json
import pathlib

from bench.reporting import experiments, sparse_checkpoint
from bench.reporting.tables import (Column, Table, format_bytes, format_count)

PAGE = 2 << 20
# The part that computes, and the one that streams in meanwhile.
SLOTS = 2


@dataclasses.dataclass(frozen=True)
class Workload:
    """What is asked of the model."""
    device: int    # bytes
    batch: int     # sequences that are wanted at once
    length: int    # tokens of a sequence at most
    bus_rate: int  # bytes a second from host memory


@dataclasses.dataclass(frozen=True)
class Placement:
    """One combination of remedies, and where everything goes."""
    int8: bool
    offload: bool
    batch_control: bool
    plan: dict      # as `quire plan --json` prints it
    sequences: int  # of the longest, at once
    missing: int    # bytes; 0: it fits

    @property
    def name(self):
        parts = [word for word, there in (
            ("int8", self.int8), ("offload", self.offload),
            ("batch control", self.batch_control)) if there]
        return " + ".join(parts) or "none"

    @property
    def on_device(self):
        """The layers, by number."""
        return [layer for layer, place in _layers(self.plan) if place == 0]

    @property
    def layers(self):
        return len(_layers(self.plan))

    @property
    def streamed(self):
        """Bytes that every step brings from host memory."""
        return self.plan["host"]


def _pages(count):
    return -(-count // PAGE) * PAGE


def _layers(plan):
    """(number, place) of each."""
    numbered = ((sparse_checkpoint.layer_of(module), place)
                for module, place in plan["device_map"].items())
    return [(layer, place) for layer, place in numbered if layer is not None]


def sequence_bytes(plan, workload):
    return _pages(workload.length * plan["kv"]["bytes_per_token"])


def room_for(plan, workload):
    """Sequences of the longest at once, of those that are wanted."""
    return min(workload.batch,
               plan["devices"][0]["kv"] // sequence_bytes(plan, workload))


def _map_with(modules, resident):
    """So many layers on the device, and all that is no layer."""
    def place(module):
        layer = sparse_checkpoint.layer_of(module)
        return 0 if layer is None or layer < resident else "cpu"

    return {module: place(module) for module in modules}


def place(plan, workload, int8, offload, batch_control):
    """Fills the device; where there is a choice, the most tokens a second.

    `plan` is called with a device map, or None for all on the device, and
    returns what `quire plan` says. Layers that stay on the device leave less
    for sequences and stream less on each step: with offload, one after another
    is kept there until there is no room for what is wanted at the least.
    """
    least = 1 if batch_control else workload.batch

    def placement(made):
        sequences = room_for(made, workload)
        needed = (made["devices"][0]["fixed"]
                  + least * sequence_bytes(made, workload))
        return Placement(int8, offload, batch_control, made,
                         max(sequences, least),
                         max(needed - made["devices"][0]["usable"], 0))

    everything = plan(None)
    candidates = [placement(everything)]
    if offload:
        modules = list(everything["device_map"])
        tried = (placement(plan(_map_with(modules, resident)))
                 for resident in range(candidates[0].layers))
        candidates = [next(tried)]
        candidates += itertools.takewhile(lambda p: p.missing == 0, tried)
        candidates.append(placement(everything))
    fitting = [p for p in candidates if p.missing == 0]
    if not fitting:
        return min(candidates, key=lambda p: p.missing)
    return max(fitting, key=lambda p: speed(p, workload))


def speed(placement, workload):
    """(tokens a second by the bus alone, sequences): what is compared."""
    if placement.streamed == 0:
        return (float("inf"), placement.sequences)
    seconds = placement.streamed / workload.bus_rate
    return (placement.sequences / seconds, placement.sequences)


def all_placements(plain, quantised, workload):
    """The eight combinations, fewest remedies first. `plain` and `quantised`
    plan one checkpoint each."""
    found = [place(quantised if int8 else plain, workload, int8, offload,
                   batch_control)
             for int8, offload, batch_control in itertools.product(
                 (False, True), repeat=3)]
    return sorted(found, key=lambda p: (p.int8 + p.offload + p.batch_control))


class Planner:
    """`quire plan` of one checkpoint; each map once. A map may be a plan, as
    for --device-map."""

    def __init__(self, folder, programs, workload, progress=lambda: None):
        self._folder = pathlib.Path(folder)
        self._programs = pathlib.Path(programs)
        self._workload = workload
        self._progress = progress
        self._plans = {}

    def __call__(self, device_map):
        text = json.dumps(device_map)
        if text not in self._plans:
            self._plans[text] = self._plan(None if device_map is None
                                           else text)
        return self._plans[text]

    def _plan(self, device_map):
        arguments = [
            "plan", str(self._folder), "--device-memory",
            str(self._workload.device), "--gpu-memory-utilization", "1",
            "--max-num-seqs", str(self._workload.batch), "--max-model-len",
            str(self._workload.length), "--json"]
        if device_map is not None:
            path = self._folder / "device-map.json"
            path.write_text(device_map, encoding="utf-8")
            arguments += ["--device-map", str(path)]
        return json.loads(experiments.call(self._programs / "quire", arguments,
                                           self._progress))


# ---- On the simulated device -------------------------------------------------

def write_trace(placement, workload, shape, group, path):
    """What the plan allocates, in order: weights tensor by tensor, the slots
    for what streams, the workspace, and keys and values a page at a time."""
    rows = ["phase,op,id,bytes"]
    count = 0

    def mark(phase):
        rows.append(f"{phase},mark,0,0")

    def allocate(phase, size):
        nonlocal count
        rows.append(f"{phase},alloc,{count},{size}")
        count += 1

    device = placement.plan["devices"][0]
    on_device = set(placement.on_device)
    mark("weights")
    for name, size in sparse_checkpoint.tensor_sizes(
            shape, group if placement.int8 else 0):
        layer = sparse_checkpoint.layer_of(name)
        if layer is None or layer in on_device:
            allocate("weights", size)
    if device["buffers"]:
        mark("slots")
        for _ in range(SLOTS):
            allocate("slots", device["buffers"] // SLOTS)
    mark("workspace")
    allocate("workspace", device["workspace"])
    mark("keys-and-values")
    for _ in range(_kv_bytes(placement, workload) // PAGE):
        allocate("keys-and-values", PAGE)
    pathlib.Path(path).write_text("\n".join(rows) + "\n", encoding="utf-8")


def _kv_bytes(placement, workload):
    return placement.sequences * sequence_bytes(placement.plan, workload)


def simulate(placement, workload, shape, group, folder, programs, policies,
             progress=lambda: None):
    """The records of each policy on a device of that size."""
    name = f"{placement.name.replace(' ', '')}.csv"
    write_trace(placement, workload, shape, group, pathlib.Path(folder) / name)
    # By its name alone: records are to say nothing of a folder that goes away.
    run = experiments.Run("fragmentation_stress", [
        "--trace", name, "--policies", policies,
        "--device-memory", str(workload.device)], folder=folder)
    return experiments.execute(run, programs, progress)


def serve(placement, workload, shape, programs, seed, progress=lambda: None):
    """kv_stress with what the placement leaves for keys and values."""
    room = _kv_bytes(placement, workload)
    run = experiments.Run("kv_stress", [
        "--layers", str(shape.layers), "--kv-heads", str(shape.kv_heads),
        "--head-dim", str(shape.hidden // shape.heads),
        "--device-memory", str(room), "--headroom", "2MiB",
        "--page-ahead", "8",
        "--max-model-len", str(workload.length), "--requests", "200",
        "--prompt-mean", "500", "--output-mean", "200",
        "--caches", "contiguous:auto,blocks:16,static", "--create-us", "193",
        "--seed", str(seed)], seed)
    return experiments.execute(run, programs, progress)


# ---- Told --------------------------------------------------------------------

def verdict(placement, workload):
    """What becomes of the placement, by the plan."""
    if placement.missing:
        return f"capacity: {format_bytes(placement.missing)} missing"
    if placement.streamed == 0:
        return f"runs, {placement.sequences} at once, nothing streams"
    tokens, _ = speed(placement, workload)
    return (f"runs, {placement.sequences} at once, at most {tokens:.1f} "
            "tokens/s")


def table_of(placements, simulated, workload):
    """`simulated`: for each placement the records of its policies."""
    table = Table(
        f"{workload.batch} sequences of {format_count(workload.length)} tokens "
        f"wanted, device of {format_bytes(workload.device)}, bus "
        f"{workload.bus_rate / 1e9:.0f} GB/s",
        [Column("Remedies"), Column("Weights"), Column("Layers on the device"),
         Column("Streamed a step"), Column("Keys and values"),
         Column("By the plan", words=True),
         Column("On the simulated device", words=True)])
    for placement, records in zip(placements, simulated):
        table.add(placement.name, format_bytes(placement.plan["weights"]),
                  f"{len(placement.on_device)} of {placement.layers}",
                  format_bytes(placement.streamed),
                  format_bytes(placement.sequences * workload.length
                               * placement.plan["kv"]["bytes_per_token"]),
                  verdict(placement, workload),
                  "; ".join(_tell(record["result"]) for record in records))
    return table


def _tell(result):
    failure = result.get("first_oom")
    if not failure:
        return (f"{result['policy']} fits, "
                f"{format_bytes(result['peak_reserved'])}")
    phase = (failure.get("phases_before") or ["?"])[-1]
    # Whoever fails a little early in what cannot fit fails for that.
    cannot = result.get("peak_requested_by_trace", 0) > result["device_memory"]
    kind = "capacity" if cannot else failure["kind"]
    return f"{result['policy']} fails in {phase}: {kind}"
