"""One record of each experiment, as the programs print them. Used by tests."""

from bench.reporting import records


def stress_result(policy="quire", **changes):
    """As fragmentation_stress prints it."""
    moment = {"event": 5, "requested": 90, "allocated": 95, "mapped": 98,
              "reserved": 100, "internal_fragmentation": 0.05,
              "external_fragmentation": 0.05}
    result = {
        "policy": policy, "title": policy.upper(), "validated": True,
        "evidence": "a test", "rank": 1, "trace": "folder/t.csv", "events": 10,
        "iterations": 2, "device_memory": 1 << 30, "peak_requested": 1 << 20,
        "peak_reserved": 1 << 21, "ratio": 2.0, "oom": False, "first_oom": None,
        "driver_calls": 12, "virtual_ms": 3.5, "largest_allocatable": 1 << 29,
        "first_iteration": {"driver_calls": 10, "virtual_ms": 3.0},
        "steady_state": {"driver_calls": 2, "virtual_ms": 0.5},
        "at_peak_requested": moment, "timeline": [moment, {**moment,
                                                           "event": 9}],
        "page_map": {
            "page_size": 1 << 21, "cell_pages": 1,
            "at_peak": {"event": 5, "cells": [100, 100, 99, 50, 1, 0, -1]},
            "at_failure": None,
            "at_end": {"event": 9, "cells": [0, -1, 10, 10, 10, 10, 10]},
            "heat": {"band_pages": 1, "events": [5, 9],
                     "held": [[100, 0], [100, 100]],
                     "requested": [[40, -1], [100, 20]]}},
    }
    result.update(changes)
    return result


def switching_result(policy="quire", **changes):
    """As model_switching prints it."""
    step = {"do": "load", "workload": "w", "peak_requested": 90,
            "peak_reserved": 100, "headroom": 24, "failure": None}
    result = {
        "scenario": "day", "class": "tight", "policy": policy,
        "validated": True, "strategy": "keep", "device_memory": 124,
        "as_good_as_can_be": True, "switches": 2, "switches_survived": 2,
        "capacity_failures": 0, "fragmentation_failures": 0,
        "peak_requested": 90, "peak_reserved": 100, "ratio": 1.1,
        "driver_calls": 7, "virtual_ms": 1.5, "bytes_loaded": 90,
        "seconds_to_switch": {"mean": 0.5, "worst": 1.0},
        "seconds_to_first_token": {"mean": 0.25, "worst": 0.5, "count": 2},
        "idle_share": None, "bytes_copied_in": 5, "bytes_copied_out": 6,
        "host_memory_peak": 7,
        "steps": [step, step]}
    result.update(changes)
    return result


def real_result(**changes):
    """As model_switching --real prints it."""
    result = {
        "strategy": "sleep", "device_memory": 1 << 20, "peak_reserved": 900000,
        "host_memory_peak": 5, "oom": False, "failure": None,
        "failure_kind": None, "all_equal": True, "switches": 2,
        "switches_survived": 2, "bytes_loaded": 7, "bytes_copied_out": 8,
        "bytes_copied_in": 9, "wake_to_copy": 1.1, "load_to_read": None,
        "load_to_bound": 0.7,
        "seconds_to_switch": {"mean": 0.5, "worst": 1.0, "count": 2},
        "seconds_to_first_token": {"mean": 0.75, "worst": 1.5, "count": 2},
        "models": [{"model": "folder/m.gguf", "tokens": 8, "tokens_alone": 8,
                    "equal": True, "first_difference": None,
                    "peak_reserved_alone": 800000}],
        "steps": [{"model": "folder/m.gguf", "seconds_to_switch": 0.25,
                   "seconds_to_first_token": 0.5, "reserved": 900000,
                   "headroom": 100, "host_memory": 5}] * 2}
    result.update(changes)
    return result


def cache_result(name="contiguous:1", **changes):
    """One cache, as kv_stress prints it."""
    cache = {
        "cache": name, "create_page_us": 29.0, "requests_served": 4,
        "requests_per_virtual_second": 2.5, "preempted_requests": 0,
        "mean_running": 1.5, "waste_ratio": 1.25, "peak_held_bytes": 1 << 22,
        "driver_calls_on_critical_path": 3,
        "driver_calls_off_critical_path": 1, "decode_steps": 9,
        "decode_steps_waiting": 2}
    cache.update(changes)
    return cache


def serving_result(cache="contiguous:1", **changes):
    """As serving_replay prints it."""
    times = {"mean": 0.5, "p50": 0.4, "p90": 0.9, "p99": 1.5, "max": 2.0}
    result = {
        "trace": "folder/requests.csv", "load_factor": 2.0, "cache": cache,
        "requests": 10, "requests_served": 10, "requests_per_second": 1.25,
        "goodput": 1.0, "attainment": 0.8, "seconds_to_first_token": times,
        "seconds_per_output_token": times, "preemptions": 0,
        "mean_running": 1.5, "kv_memory": 1 << 30, "wasted_share": 0.125,
        "peak_reserved": 1 << 29, "driver_calls_waited_for": 3}
    result.update(changes)
    return result


NO_ROOM = "a slot takes 2 GiB of 1 GiB."


def no_room_result():
    """As serving_replay prints a cache that holds no request."""
    return {"trace": "folder/requests.csv", "load_factor": 2.0,
            "cache": "blocks:16", "requests": 10, "requests_too_long": 0,
            "kv_memory": 1 << 30, "oom": True, "failure": NO_ROOM}


def growth_result():
    """What bench/reproduce_oom records of a model, and its command."""
    return ({"model": "folder/m.gguf", "device_memory": 1 << 24,
             "fixed": 1 << 23, "bytes_per_token": 1 << 10, "sequences": 1,
             "kv_cache": "contiguous", "error": "quire: out of device memory",
             "kind": "capacity", "contexts": [
                 {"context": 64, "needed": 1 << 16, "kv_committed": 1 << 21},
                 {"context": 128, "needed": 1 << 17}]},
            ["bench/reproduce_oom", "--model", "folder/m.gguf"])


def bench_result():
    return {"machine": "a machine", "date": "2026-01-01", "load": "0",
            "mimalloc": "2", "sections": [
                {"name": "hit", "title": "t", "method": "m", "figures": [
                    {"name": "f", "unit": "ns", "quire": 3.0, "mimalloc": None,
                     "aim": 2.0, "bar": 2.5, "verdict": "missed"}]}]}


def all_records():
    made = records.make("fragmentation_stress", ["fragmentation_stress", "x"],
                        7, [stress_result(), stress_result("pytorch")])
    made += records.make("model_switching", ["model_switching"], None,
                         [switching_result(), switching_result("bfc")])
    made += records.make("real_models", ["model_switching"], 7, [
        real_result(), real_result(
            strategy="keep", oom=True, all_equal=False, failure="no room",
            failure_kind="capacity", steps=[], seconds_to_switch=None,
            seconds_to_first_token=None, switches_survived=0)])
    made += records.make("kv_stress", ["kv_stress"], 7, [{
        "kv_memory_bytes": 1 << 30, "requests": 4, "trace": "", "model": "",
        "caches": [cache_result(), cache_result("static"),
                   {"cache": "blocks:16", "create_page_us": 29.0,
                    "failure": NO_ROOM}]}])
    made += records.make("serving_replay", ["serving_replay"], 7, [
        serving_result(), serving_result("static", goodput=0.5),
        no_room_result()])
    made += [{**record, "script": growth_result()[1]} for record in
             records.make("reproduce_oom", growth_result()[1], None,
                          [growth_result()[0]])]
    made += records.make("allocator_bench", ["allocator_bench"], 7,
                         [bench_result()])
    return made
