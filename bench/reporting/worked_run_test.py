"""bench/worked_13b: the arithmetic against an exhaustive search, and a run.

    worked_run_test.py PROGRAMS   the folder with the programs
"""

import itertools
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True

from bench.reporting import sparse_checkpoint, worked_run  # noqa: E402

PROGRAMS = pathlib.Path(sys.argv.pop(1))
SCRIPT = ROOT / "bench" / "worked_13b"
PAGE = 2 << 20


def pages(count):
    return (count + PAGE - 1) // PAGE * PAGE


class Sizes:
    """A model, and what a planner would say of it."""

    def __init__(self, rng):
        self.edges = rng.randrange(1, 40) << 20
        self.layer = rng.randrange(1, 30) << 19
        self.layers = rng.randrange(1, 12)
        self.workspace = rng.randrange(1, 9) << 20
        self.kv_token = rng.randrange(1, 64) << 10

    def fixed(self, resident):
        slots = 2 * self.layer if resident < self.layers else 0
        return (pages(self.edges + resident * self.layer)
                + pages(self.workspace) + pages(slots))

    def planner(self, device):
        modules = (["model.embed_tokens"] + [
            f"model.layers.{i}" for i in range(self.layers)] + ["lm_head"])

        def plan(device_map):
            device_map = device_map or dict.fromkeys(modules, 0)
            elsewhere = [m for m in modules if device_map[m] == "cpu"]
            fixed = self.fixed(self.layers - len(elsewhere))
            return {"device_map": device_map,
                    "host": len(elsewhere) * self.layer,
                    "kv": {"bytes_per_token": self.kv_token},
                    "devices": [{"fixed": fixed, "usable": device,
                                 "kv": max(device - fixed, 0)}]}

        return plan


def search(sizes, workload, offload, batch_control):
    """The speed of the best (resident layers, sequences), all of them tried;
    or None."""
    best = None
    for resident, sequences in itertools.product(
            range(sizes.layers + 1), range(1, workload.batch + 1)):
        if not batch_control and sequences != workload.batch:
            continue
        if not offload and resident != sizes.layers:
            continue
        needed = (sizes.fixed(resident)
                  + sequences * pages(workload.length * sizes.kv_token))
        if needed > workload.device:
            continue
        streamed = (sizes.layers - resident) * sizes.layer
        key = ((float("inf") if streamed == 0
                else sequences * workload.bus_rate / streamed), sequences)
        if best is None or key > best:
            best = key
    return best


class PlacementTest(unittest.TestCase):

    def test_is_the_best_there_is(self):
        rng = random.Random(1)
        found = 0
        for _ in range(400):
            sizes = Sizes(rng)
            workload = worked_run.Workload(
                rng.randrange(20, 400) << 20, rng.randrange(1, 9),
                rng.randrange(1, 2000), 1 << 30)
            plan = sizes.planner(workload.device)
            for offload, control in itertools.product((False, True), repeat=2):
                placed = worked_run.place(plan, workload, False, offload,
                                          control)
                best = search(sizes, workload, offload, control)
                self.assertEqual(placed.missing == 0, best is not None)
                if best is None:
                    self.assertGreater(placed.missing, 0)
                    continue
                found += 1
                self.assertEqual(worked_run.speed(placed, workload), best)
        self.assertGreater(found, 100)

    def test_parameters_of_13b(self):
        # The published count of Llama 2 13B.
        sizes = dict(sparse_checkpoint.tensor_sizes(
            sparse_checkpoint.LLAMA_13B))
        self.assertEqual(sum(sizes.values()), 2 * 13015864320)
        self.assertEqual(sparse_checkpoint.LLAMA_13B.kv_token, 819200)
        self.assertEqual(sparse_checkpoint.layer_of(
            "model.layers.12.mlp.up_proj.weight"), 12)
        self.assertIsNone(sparse_checkpoint.layer_of("lm_head.weight"))


class ScriptTest(unittest.TestCase):

    def test_all_three_run_and_none_does_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            kept = pathlib.Path(folder) / "r.jsonl"
            plan = pathlib.Path(folder) / "plan.json"
            ran = subprocess.run(
                [str(SCRIPT), "--build", str(PROGRAMS), "--policies", "quire",
                 "--records", str(kept), "--write-plan", str(plan)],
                capture_output=True, text=True, check=False)
            self.assertEqual((ran.returncode, ran.stderr), (0, ""))
            self.check_plan_feeds_back(plan)
            records = [json.loads(line) for line in
                       kept.read_text("utf-8").splitlines()]
        told = {}
        for line in ran.stdout.splitlines()[2:10]:
            name, *cells = re.split(r"\s{2,}", line)
            told[name] = cells
        for name in ("none", "int8", "offload", "batch control"):
            self.assertIn("capacity", told[name][-2])
            self.assertIn("capacity", told[name][-1])
        self.assertIn("runs, 4 at once",
                      told["int8 + offload + batch control"][-2])
        self.assertIn("quire fits",
                      told["int8 + offload + batch control"][-1])
        self.assertEqual([r["experiment"] for r in records],
                         ["fragmentation_stress"] * 8 + ["kv_stress"] * 2)
        # Both that run: with more room more run at once.
        with_less, with_more = (r["result"] for r in records[-2:])
        self.assertLess(with_less["kv_memory_bytes"],
                        with_more["kv_memory_bytes"])
        for less, more in zip(with_less["caches"], with_more["caches"]):
            self.assertEqual((less["requests_served"],
                              more["requests_served"]), (200, 200))
            self.assertLess(less["mean_running"], more["mean_running"])

    def check_plan_feeds_back(self, path):
        plan = json.loads(path.read_text("utf-8"))
        places = list(plan["device_map"].values())
        self.assertIn("cpu", places)
        self.assertIn(0, places)
        shape = sparse_checkpoint.LLAMA_13B
        with tempfile.TemporaryDirectory() as folder:
            sparse_checkpoint.write(folder, shape, 128)
            again = worked_run.Planner(
                folder, PROGRAMS, worked_run.Workload(8 << 30, 8, 2048, 1))(
                    plan)
        self.assertEqual(again, plan)

    def test_wrong_usage(self):
        for arguments in (("--device-memory", "0"), ("--batch", "0"),
                          ("--length", "5000")):
            ran = subprocess.run([str(SCRIPT), *arguments],
                                 capture_output=True, text=True, check=False)
            self.assertEqual(ran.returncode, 2)


if __name__ == "__main__":
    unittest.main()
