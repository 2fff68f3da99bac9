"""A model that is too large for its device, and what each remedy alone does.

Three remedies: weights of 8 bits (GPTQ), offload of layers to host memory, from
where they stream through a ring of two on every step, and batch control, which
admits as many sequences as keys and values have room for. All eight
combinations are placed by the planner's sizes, and what they would allocate is
played on a simulated device of that size. Without batch control the batch is
fixed, and each sequence has room for its longest.

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
# The layer that computes, and the one that streams in meanwhile.
RING_LAYERS = 2


@dataclasses.dataclass(frozen=True)
class Workload:
    """What is asked of the model."""
    device: int    # bytes
    batch: int     # sequences that are wanted at once
    length: int    # tokens of a sequence at most
    bus_rate: int  # bytes a second from host memory


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of one checkpoint, as `quire plan` tells them."""
    edges: int      # embedding and head, which stay on the device
    layer: int
    layers: int
    workspace: int
    kv_token: int


@dataclasses.dataclass(frozen=True)
class Placement:
    """One combination of remedies, and where everything goes."""
    int8: bool
    offload: bool
    batch_control: bool
    sizes: Sizes
    resident: int   # layers on the device
    sequences: int  # of the longest, at once
    missing: int    # bytes; 0: it fits

    @property
    def name(self):
        parts = [word for word, there in (
            ("int8", self.int8), ("offload", self.offload),
            ("batch control", self.batch_control)) if there]
        return " + ".join(parts) or "none"

    @property
    def streamed(self):
        """Bytes that every step brings from host memory."""
        return (self.sizes.layers - self.resident) * self.sizes.layer

    @property
    def ring(self):
        return RING_LAYERS * self.sizes.layer if self.streamed else 0


def _pages(count):
    return -(-count // PAGE) * PAGE


def read_sizes(plan):
    """Of the JSON of `quire plan`."""
    layers = [part["bytes"] for part in plan["placement"]
              if sparse_checkpoint.layer_of(part["module"]) is not None]
    if not layers:
        raise experiments.RunError("quire plan: there are no layers in it")
    return Sizes(plan["weights"] - sum(layers), max(layers), len(layers),
                 plan["workspace"], plan["kv"]["bytes_per_token"])


def place(sizes, workload, int8, offload, batch_control):
    """Fills the device; where there is a choice, the most tokens a second.

    With offload, layers that stay leave less for sequences and stream less on
    each step: every number of sequences is tried.
    """
    sequence = _pages(workload.length * sizes.kv_token)
    fixed = _pages(sizes.edges) + _pages(sizes.workspace)

    def resident_beside(sequences):
        """Layers that fit beside them; negative where not even none does."""
        left = workload.device - fixed - sequences * sequence
        if left >= sizes.layers * _pages(sizes.layer):
            return sizes.layers
        if not offload:
            return -1
        left -= RING_LAYERS * _pages(sizes.layer)
        return left // _pages(sizes.layer) if left >= 0 else -1

    wanted = range(1, workload.batch + 1) if batch_control else (
        workload.batch,)
    best = None
    for sequences in wanted:
        resident = resident_beside(sequences)
        if resident < 0:
            continue
        one = Placement(int8, offload, batch_control, sizes, resident,
                        sequences, 0)
        if best is None or (speed(one, workload) > speed(best, workload)):
            best = one
    if best is not None:
        return best
    resident = 0 if offload else sizes.layers
    held = RING_LAYERS if offload else sizes.layers
    needed = (fixed + held * _pages(sizes.layer) + min(wanted) * sequence)
    return Placement(int8, offload, batch_control, sizes, resident,
                     min(wanted), needed - workload.device)


def speed(placement, workload):
    """(tokens a second by the bus alone, sequences): what is compared."""
    if placement.streamed == 0:
        return (float("inf"), placement.sequences)
    seconds = placement.streamed / workload.bus_rate
    return (placement.sequences / seconds, placement.sequences)


def all_placements(plain, quantised, workload):
    """The eight combinations, fewest remedies first."""
    found = [place(quantised if int8 else plain, workload, int8, offload,
                   batch_control)
             for int8, offload, batch_control in itertools.product(
                 (False, True), repeat=3)]
    return sorted(found, key=lambda p: (p.int8 + p.offload + p.batch_control))


# ---- On the simulated device -------------------------------------------------

def write_trace(placement, workload, shape, group, path):
    """What the placement allocates, in order: weights tensor by tensor, the
    ring, the workspace, and keys and values a page at a time."""
    rows = ["phase,op,id,bytes"]
    count = 0

    def mark(phase):
        rows.append(f"{phase},mark,0,0")

    def allocate(phase, size):
        nonlocal count
        rows.append(f"{phase},alloc,{count},{size}")
        count += 1

    mark("weights")
    for name, size in sparse_checkpoint.tensor_sizes(
            shape, group if placement.int8 else 0):
        layer = sparse_checkpoint.layer_of(name)
        if layer is None or layer < placement.resident:
            allocate("weights", size)
    if placement.streamed and placement.offload:
        mark("ring")
        for _ in range(RING_LAYERS):
            allocate("ring", placement.sizes.layer)
    mark("workspace")
    allocate("workspace", placement.sizes.workspace)
    mark("keys-and-values")
    for _ in range(placement.sequences
                   * _pages(workload.length * placement.sizes.kv_token)
                   // PAGE):
        allocate("keys-and-values", PAGE)
    pathlib.Path(path).write_text("\n".join(rows) + "\n", encoding="utf-8")


def simulate(placement, workload, shape, group, folder, programs, policies,
             progress=lambda: None):
    """The records of each policy on a device of that size."""
    path = pathlib.Path(folder) / f"{placement.name.replace(' ', '')}.csv"
    write_trace(placement, workload, shape, group, path)
    run = experiments.Run("fragmentation_stress", [
        "--trace", str(path), "--policies", policies,
        "--device-memory", str(workload.device)])
    return experiments.execute(run, programs, progress)


def serve(placement, workload, shape, programs, seed, progress=lambda: None):
    """kv_stress with what the placement leaves for keys and values."""
    room = (placement.sequences
            * _pages(workload.length * placement.sizes.kv_token))
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


def plan(folder, programs, progress=lambda: None, length=0):
    """`quire plan` of a folder, on a device with plenty."""
    output = experiments.call(
        pathlib.Path(programs) / "quire",
        ["plan", str(folder), "--device-memory", "1TiB", "--max-model-len",
         str(length), "--json"], progress)
    return json.loads(output)


# ---- Told --------------------------------------------------------------------

def verdict(placement, workload):
    """What becomes of the placement, by the planner's sizes."""
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
        sizes = placement.sizes
        table.add(placement.name,
                  format_bytes(sizes.edges + sizes.layers * sizes.layer),
                  f"{placement.resident} of {sizes.layers}",
                  format_bytes(placement.streamed),
                  format_bytes(placement.sequences * workload.length
                               * sizes.kv_token),
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
