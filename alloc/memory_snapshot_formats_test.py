#!/usr/bin/env python3
"""What other programs read from a memory snapshot.

  memory_snapshot_formats_test.py schema SAMPLE DOCS   the JSON fits its schema
  memory_snapshot_formats_test.py pytorch SAMPLE CACHE PyTorch's own tool reads it

SAMPLE is the program that writes a snapshot. Exits with 77 where what the test
needs is not to be had. PyTorch's torch/cuda/_memory_viz.py is the one that
QUIRE_MEMORY_VIZ names, or that of this Python's packages, or is fetched from
PyTorch's wheel, once, to the folder CACHE.
"""
import copy
import importlib.util
import json
import os
import pathlib
import pickle
import re
import subprocess
import sys
import tempfile

SKIPPED = 77


def write_sample(program, folder):
    subprocess.run([program, folder], check=True)
    folder = pathlib.Path(folder)
    return folder / "snapshot.json", folder / "snapshot.pickle"


def closed(schema):
    """The schema with every field that it does not mention forbidden."""
    schema = copy.deepcopy(schema)

    def close(node):
        if isinstance(node, dict):
            if "properties" in node:
                node["additionalProperties"] = False
            for value in node.values():
                close(value)
        elif isinstance(node, list):
            for value in node:
                close(value)

    close(schema)
    return schema


def places(node):
    """Every (container, key) of the snapshot."""
    keys = node if isinstance(node, dict) else range(len(node)) \
        if isinstance(node, list) else ()
    for key in keys:
        yield node, key
        yield from places(node[key])


def shortened(node):
    """The snapshot with the beginning of each array."""
    if isinstance(node, dict):
        return {key: shortened(value) for key, value in node.items()}
    return [shortened(value) for value in node[:2]] \
        if isinstance(node, list) else node


def test_schema(program, docs):
    try:
        import jsonschema
    except ImportError:
        print("skipped: python3-jsonschema is not installed")
        return SKIPPED
    schema = json.loads((pathlib.Path(docs) /
                         "memory_snapshot.schema.json").read_text())
    validator = jsonschema.validators.validator_for(schema)
    validator.check_schema(schema)
    with tempfile.TemporaryDirectory() as folder:
        snapshot = json.loads(write_sample(program, folder)[0].read_text())
    # Nothing is missing, and nothing is there that is not described.
    validator(closed(schema)).validate(snapshot)
    few = shortened(snapshot)
    validator(closed(schema)).validate(few)
    described = (pathlib.Path(docs) / "memory_snapshot.md").read_text()
    for container, key in places(few):
        if isinstance(container, dict) and not re.search(rf"\b{key}\b",
                                                         described):
            # Statistics are described where they are declared.
            assert container is few["allocator"], \
                f"{key} is not in memory_snapshot.md"
    # The schema is no formality: a negative number fits nowhere.
    for container, key in list(places(few)):
        kept = container[key]
        container[key] = -1
        assert not validator(schema).is_valid(few), (container, key)
        container[key] = kept
    return 0


def installed_memory_viz():
    path = os.environ.get("QUIRE_MEMORY_VIZ")
    if path:
        return path
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = os.path.join(spec.submodule_search_locations[0], "cuda",
                        "_memory_viz.py")
    return path if os.path.exists(path) else None


def load_memory_viz(path):
    """The file by itself: importing torch would take seconds."""
    spec = importlib.util.spec_from_file_location("_memory_viz", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_memory_viz(cache):
    path = installed_memory_viz()
    if path is not None:
        return path
    sys.path.insert(0, str(pathlib.Path(__file__).parent / "testing"))
    import fetch_memory_viz
    return fetch_memory_viz.fetch(cache)


def test_pytorch(program, cache):
    try:
        path = find_memory_viz(cache)
    except (OSError, subprocess.CalledProcessError) as error:
        print("skipped: PyTorch is not installed, QUIRE_MEMORY_VIZ is not set, "
              f"and its file cannot be fetched: {error}")
        return SKIPPED
    viz = load_memory_viz(path)
    with tempfile.TemporaryDirectory() as folder:
        json_path, pickle_path = write_sample(program, folder)
        snapshot = json.loads(json_path.read_text())
        data = pickle.loads(pickle_path.read_bytes())

    # The sums that PyTorch draws from the segments are ours. They are of
    # addresses: a page that several share counts at each.
    live = snapshot["page_size"] * sum(page["state"] == "live"
                                       for page in snapshot["pages"])
    assert sum(s["total_size"] for s in data["segments"]) == live
    requested = sum(b["requested_size"] for s in data["segments"]
                    for b in s["blocks"])
    regions = sum(snapshot["page_size"] for page in snapshot["pages"]
                  if not page["managed"])
    assert requested == snapshot["allocator"]["requested_bytes"] + regions
    summary = viz.segsum(data)  # checks its own sums too
    assert f"segments: {len(data['segments'])}\n" in summary
    assert f"total_reserved: {viz.Bytes(live)}\n" in summary
    assert f"total_allocated: {viz.Bytes(requested)}\n" in summary

    # Flame graphs group by owner, and account for every byte.
    for graph in (viz.memory, viz.segments):
        lines = graph(data, format_flamegraph=lambda text: text).splitlines()
        total = sum(int(line.rsplit(" ", 1)[1]) for line in lines)
        assert total == live, (total, live)
        assert any("quire:0:weights" in line for line in lines)
        assert any("quire:0:kv" in line for line in lines)
    assert "only_before" not in viz.compare(
        data["segments"], data["segments"], format_flamegraph=lambda t: t)

    # The trace, as PyTorch tells it.
    events = data["device_traces"][snapshot["device"]["id"]]
    count = lambda action: sum(e["action"] == action for e in events)
    actions = snapshot["events"]["action"]
    assert count("free_completed") >= actions.count("free")
    assert count("alloc") >= actions.count("allocate")
    assert count("oom") == actions.count("out_of_memory") == 1
    text = viz.trace(data)
    assert f"{len(events)} entries" in text
    assert "raise OutOfMemoryError" in text
    for plot in (viz.trace_plot, viz.segment_plot):
        assert "MemoryViz.js" in plot(data)
    assert "MemoryViz.js" in viz.trace_plot(data, filter_freed=True)
    return 0


def main(arguments):
    tests = {"schema": test_schema, "pytorch": test_pytorch}
    return tests[arguments[0]](*arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
