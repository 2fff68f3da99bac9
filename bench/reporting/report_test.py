"""bench/report: what it makes of records, and of programs that it runs.

    report_test.py PROGRAMS   the folder with fragmentation_stress
"""

import copy
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True

from bench.reporting import (bars, charts, document,  # noqa: E402
                             findings, page_checker, progress, real_section,
                             records, tables)
from bench.reporting.sample_records import (  # noqa: E402
    NO_ROOM, all_records, bench_result, cache_result, growth_result,
    no_room_result, real_result, serving_result, stress_result,
    switching_result)

PROGRAMS = sys.argv.pop(1) if len(sys.argv) > 1 else ""
SCRIPT = ROOT / "bench" / "report"
HOSTILE = ("\"'><script>alert(1)</script><img src=x onerror=y>&amp;"
           "|`*_[a](b)\n# h")


def spoil(value, text):
    """The same with every text replaced, those that name a format apart."""
    if isinstance(value, dict):
        return {key: one if key in ("format", "experiment")
                else spoil(one, text) for key, one in value.items()}
    if isinstance(value, list):
        return [spoil(one, text) for one in value]
    return text if isinstance(value, str) else value


class PageTest(unittest.TestCase):

    def test_is_sound(self):
        checker = page_checker.check(document.to_html(all_records(), "T"))
        self.assertEqual(checker.problems, [])
        self.assertGreaterEqual(checker.tags["svg"], 10)
        told = " ".join(checker.texts)
        for part in ("Verdicts", "Page map", "Fragmentation heat map",
                     "Memory over time", "Model switching: day", "KV caches",
                     "Real models: 1 models", "Each switch, strategy sleep",
                     "Allocator benchmarks", "2026-01-01"):
            self.assertIn(part, told)

    def test_texts_of_files_stay_texts(self):
        made = spoil(all_records(), HOSTILE)
        checker = page_checker.check(document.to_html(made, HOSTILE))
        self.assertEqual(checker.problems, [])
        self.assertIn("<script>alert(1)</script>", " ".join(checker.texts))

    def test_markdown_keeps_its_columns(self):
        made = spoil(all_records(), HOSTILE)
        text = document.to_markdown(made, HOSTILE)
        self.assertNotIn("<script>", text)
        self.assertNotIn("<img", text)
        columns = None
        for line in text.split("\n"):
            self.assertFalse(line.startswith("# h"))
            if not line.startswith("|"):
                columns = None
                continue
            count = line.replace("\\\\", "").replace("\\|", "").count("|")
            self.assertEqual(count, columns or count, line)
            columns = count

    def test_the_checker_sees_what_is_wrong(self):
        sound = document.to_html(all_records(), "T")
        for spoiled, problem in (
                (sound.replace("</main>", "<script></script></main>"),
                 "<script>"),
                (sound.replace('href="#content"', 'href="https://x/"'),
                 "href='https://x/'"),
                (sound.replace("<caption>", "<b>").replace("</caption>",
                                                           "</b>"), "caption"),
                (sound.replace("<h2", "<h4").replace("</h2", "</h4"), "<h4>"),
                (sound.replace('scope="row"', ""), "scope"),
                (sound.replace('role="img"', ""), "neither hidden nor named"),
                (sound.replace("<desc", "<g").replace("</desc", "</g"),
                 "title and description"),
                (sound.replace("</style>", "a{background:url(x)}</style>"),
                 "style")):
            with self.subTest(problem):
                self.assertIn(problem,
                              " ".join(page_checker.check(spoiled).problems))

    def test_odd_records_make_a_sound_page(self):
        bare = stress_result()
        for name in ("timeline", "page_map", "steady_state", "rank", "title"):
            del bare[name]
        empty = stress_result(timeline=[], page_map={
            "page_size": 1, "cell_pages": 1, "at_peak": {"event": 0,
                                                         "cells": []},
            "heat": {"band_pages": 1, "held": [[]], "requested": [[]]}})
        ragged = stress_result("pytorch", oom=True, timeline=[
            {"event": 0, "requested": 0, "reserved": 0}], first_oom={
                "event": 3, "size": 5, "largest_allocatable": 1,
                "kind": "fragmentation"})
        died = stress_result("bfc", oom=True, first_oom={
            "event": 3, "size": 5, "largest_allocatable": 1,
            "kind": "capacity", "requested": 7, "allocated": 8, "reserved": 9,
            "device_free": 2, "phases_before": ["load"],
            "requests_before": ["allocate 5 B"]})
        for results in ([bare], [empty], [bare, ragged], [ragged, bare, empty],
                        [died, ragged],
                        [stress_result(peak_requested=0, ratio=0)]):
            lines = [json.dumps(result) for result in results]
            made = read_text("\n".join(lines))
            self.assertEqual(
                page_checker.check(document.to_html(made, "T")).problems, [])
            document.to_markdown(made, "T")


def read_text(text):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl",
                                     encoding="utf-8") as file:
        file.write(text)
        file.flush()
        return records.read(file.name)


class RecordsTest(unittest.TestCase):

    def test_come_back_as_they_were(self):
        made = all_records()
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "r.jsonl"
            records.write(path, made)
            self.assertEqual(len(path.read_text("utf-8").splitlines()),
                             len(made))
            self.assertEqual(records.read(path), made)

    def test_a_pipe_that_nobody_reads_is_not_waited_for(self):
        with tempfile.TemporaryDirectory() as folder:
            pipe = pathlib.Path(folder) / "pipe"
            os.mkfifo(pipe)
            with self.assertRaises(OSError):
                records.write_text(pipe, "text")
            reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
            records.write_text(pipe, "text")
            self.assertEqual(os.read(reader, 10), b"text")
            os.close(reader)

    def test_take_what_programs_print(self):
        for experiment, result in (
                ("fragmentation_stress", stress_result()),
                ("model_switching", switching_result()),
                ("real_models", real_result()),
                ("kv_stress", {"kv_memory_bytes": 1, "requests": 1,
                               "caches": [cache_result()]}),
                ("serving_replay", serving_result()),
                ("serving_replay", no_room_result()),
                ("reproduce_oom", growth_result()[0]),
                ("allocator_bench", bench_result())):
            for text in (json.dumps([result], indent=1), json.dumps(result)):
                made = read_text(text)
                self.assertEqual([r["experiment"] for r in made], [experiment])

    def test_what_programs_print_says_how_it_was_made(self):
        command = ["fragmentation_stress", "--load", "churn", "--json"]
        made, = read_text(json.dumps(stress_result(
            settings={"command": command})))
        self.assertEqual(made["command"], command[:-1])
        for odd in (None, 3, [], {"command": 3}, {"command": [3]}):
            made, = read_text(json.dumps(stress_result(settings=odd)))
            self.assertEqual(made["command"], [])

    def test_every_wrong_field_is_named(self):
        def paths(value, path=()):
            yield path
            items = (value.items() if isinstance(value, dict) else
                     enumerate(value) if isinstance(value, list) else ())
            for key, one in items:
                yield from paths(one, path + (key,))

        tried = 0
        each = {record["experiment"]: record for record in all_records()}
        for record in each.values():
            for path in paths(record["result"]):
                for wrong in ("text", -5, None):
                    spoiled = copy.deepcopy(record)
                    place, rest = spoiled, ("result",) + path
                    for key in rest[:-1]:
                        place = place[key]
                    place[rest[-1]] = wrong
                    # Either it is refused by name, or the page is sound.
                    try:
                        made = read_text(json.dumps(spoiled))
                    except records.RecordError as error:
                        self.assertIn(".jsonl", str(error))
                        continue
                    tried += 1
                    text = document.to_html(made, "T")
                    if tried % 20 == 0:
                        self.assertEqual(page_checker.check(text).problems, [])
                    document.to_markdown(made, "T")
        self.assertGreater(tried, 50)

    def test_refusals_say_where(self):
        good = json.dumps(all_records()[0])
        for text, message in (
                ("", "nothing in it"),
                (good + "\n{\n", "line 2: no JSON"),
                (good + "\n" + good.replace("fragmentation_stress", "x"),
                 "line 2: neither a record"),
                (good.replace('"version": 1', '"version": 9'), "version"),
                ('{"a": NaN}', "NaN"),
                ("[" * 100000, "no JSON"),
                ('{"a": 1}', "neither a record"),
                (good.replace('"policy": "quire"', '"policy": "\\ud800"'),
                 "no valid Unicode"),
                (good.replace('"events": 10', '"events": "10"'),
                 "fragmentation_stress.events is no whole number")):
            with self.subTest(message):
                with self.assertRaisesRegex(records.RecordError, message):
                    read_text(text)
        with self.assertRaisesRegex(records.RecordError, "cannot be read"):
            records.read("/nowhere/none.json")


class FindingsTest(unittest.TestCase):

    def test_tell_where_others_win(self):
        told = findings.of_fragmentation([
            stress_result(ratio=1.01),
            stress_result("pytorch", ratio=1.2,
                          first_iteration={"driver_calls": 4,
                                           "virtual_ms": 1.0},
                          steady_state={"driver_calls": 0, "virtual_ms": 0}),
            stress_result("gmlake", ratio=1.001, validated=False)])
        self.assertEqual(told, [
            "All survived.",
            "gmlake (unvalidated) holds least memory: 1.0010 times what was "
            "asked for. Quire has 1.0100 times what was asked for.",
            "pytorch calls the driver least: 4 calls. Quire has 10 calls.",
            "pytorch spends least virtual time: 1.0 ms. Quire has 3.0 ms.",
            "pytorch calls the driver least in the steady state: 0 calls. "
            "Quire has 2 calls.",
            "pytorch spends least virtual time in the steady state: 0.0 ms. "
            "Quire has 0.5 ms.",
            "Virtual time of Quire by that of pytorch: 3.00 the first time, "
            "0.5 ms against none in the steady state."])

    def test_tell_who_died_and_why(self):
        failure = {"event": 1234, "size": 1 << 20, "largest_allocatable": 512,
                   "kind": "fragmentation", "phases_before": ["load", "run1"]}
        told = findings.of_fragmentation([
            stress_result(), stress_result("bfc", oom=True,
                                           first_oom=failure)])
        self.assertEqual(told, [
            "Survivors: quire.",
            "bfc ran out of memory for fragmentation at event 1,234 in phase "
            "run1: 1.00 MiB were asked for, 512 B could be had at most."])
        told = findings.of_fragmentation([
            stress_result(), stress_result("bfc", oom=True,
                                           first_oom=failure)], brief=True)
        self.assertEqual(told, ["Survivors: quire.",
                                "Out of memory for fragmentation: bfc."])
        without = stress_result(oom=True)
        del without["first_oom"]
        told = findings.of_fragmentation([without])
        self.assertEqual(told, ["Nobody survived."])

    def test_switching_tells_capacity_from_fragmentation(self):
        died = {"as_good_as_can_be": False, "fragmentation_failures": 1}
        told = findings.of_switching([
            switching_result(), switching_result("pytorch", **died)])
        self.assertEqual(told, [
            "Survived every switch: quire, keep.",
            "Failed for fragmentation, where there was room: pytorch, keep."])

    # Strategies under which models make way survive a day that does not fit
    # otherwise, and have not failed for anything.
    def test_infeasible_days_tell_survivors_from_failures(self):
        infeasible = {"class": "infeasible"}
        told = findings.of_day([
            switching_result(strategy="reload", **infeasible),
            switching_result(capacity_failures=1, **infeasible),
            switching_result("bfc", capacity_failures=1,
                             as_good_as_can_be=False, **infeasible),
            switching_result("pytorch", capacity_failures=1,
                             fragmentation_failures=1,
                             as_good_as_can_be=False, **infeasible)])
        self.assertEqual(told, [
            "The day does not fit where everything stays that is loaded.",
            "Survived every switch, where models or pools make way: quire, "
            "reload.",
            "Failed for capacity alone, and not before it must: quire, keep.",
            "Failed for fragmentation, where there was room: pytorch, keep.",
            "Failed for capacity, and before it must: bfc, keep."])

    def test_days_tell_their_last_one(self):
        told = findings.of_switching([
            switching_result(last_day={"driver_calls": 4, "virtual_ms": 1.0}),
            switching_result("pytorch", ratio=1.2, virtual_ms=0.5,
                             last_day={"driver_calls": 2, "virtual_ms": 0.5})])
        self.assertIn("pytorch spends least virtual time on the last day: "
                      "0.5 ms. Quire has 1.0 ms.", told[1])
        self.assertIn("Virtual time of Quire by that of pytorch: 3.00 the "
                      "first time, 2.00 on the last day.", told[1])


    def test_real_models_tell_their_tokens(self):
        model = real_result()["models"][0]
        told = real_section.sentences([
            real_result(), real_result(strategy="keep", oom=True,
                                       failure_kind="capacity",
                                       switches_survived=1,
                                       wake_to_copy=None),
            real_result(strategy="reload", all_equal=False, wake_to_copy=0.5,
                        load_to_bound=0.9,
                        models=[{**model, "equal": False,
                                 "first_difference": 3}])])
        self.assertEqual(told, [
            "keep: memory ran out for capacity after 1 of 2 switches.",
            "reload: other tokens than alone: m.gguf.",
            "sleep: all 8 tokens of 1 models are those of each model alone.",
            "sleep: Bar kept: waking up goes at 0.8 of the speed of a copy or "
            "faster (1.10).",
            "sleep: Bar missed: models load at 0.8 or more of what the disk "
            "and untouched pages allow (0.70).",
            "reload: Bar missed: waking up goes at 0.8 of the speed of a copy "
            "or faster (0.50).",
            "reload: Bar kept: models load at 0.8 or more of what the disk and "
            "untouched pages allow (0.90)."])


class BarsTest(unittest.TestCase):

    def test_recordings(self):
        recorded = {"settings": {"trace": "t.csv"}}
        steady = {"driver_calls": 0, "virtual_ms": 0.0}
        told = bars.of_fragmentation([
            stress_result(ratio=1.01, steady_state=steady, **recorded),
            stress_result("pytorch", ratio=1.02, steady_state=steady),
            stress_result("cudamalloc", ratio=1.0),
            stress_result("gmlake", ratio=1.0, validated=False),
            stress_result("bfc", ratio=1.0, oom=True)])
        self.assertEqual(told, [
            "Bar kept: Quire holds at most 1.05 times what was asked for "
            "(1.0100).",
            "Bar kept: no validated policy that caches holds less than Quire "
            "(the least is pytorch, 1.0200).",
            "Bar kept: in the steady state Quire calls the driver never, and "
            "spends at most 1.05 times PyTorch's virtual time (0 calls and "
            "0.0 ms against 0 and 0.0 ms)."])
        told = bars.of_fragmentation([
            stress_result(ratio=1.051, **recorded),
            stress_result("pytorch", ratio=1.02)])
        self.assertEqual([one.split(":")[0] for one in told],
                         ["Bar missed"] * 3)
        # A load that was made up is judged by nobody.
        self.assertEqual(bars.of_fragmentation(
            [stress_result(settings={"load": "churn"})]), [])

    def test_days(self):
        told = bars.of_switching([
            switching_result(ratio=1.01, wake_to_copy=0.9, strategy="sleep"),
            switching_result(ratio=1.06, strategy="shared",
                             idle_share={"mean": 0.01, "worst": 0.021})])
        self.assertEqual(told, [
            "sleep: Bar kept: Quire fails for capacity alone, and where it "
            "must (2 of 2 switches survived).",
            "sleep: Bar kept: Quire holds at most 1.05 times what was asked "
            "for (1.0100).",
            "sleep: Bar kept: waking up goes at 0.8 of the speed of a copy or "
            "faster (0.90).",
            "shared: Bar kept: Quire fails for capacity alone, and where it "
            "must (2 of 2 switches survived).",
            "shared: Bar missed: Quire holds at most 1.05 times what was asked "
            "for (1.0600).",
            "shared: Bar missed: at most 2.0 % of the device is idle "
            "(2.10 %)."])


class OutputTest(unittest.TestCase):

    def test_arrays_objects_and_lines(self):
        for text, results in (('[{"a": 1}, {"b": 2}]', [{"a": 1}, {"b": 2}]),
                              ('{\n "a": 1\n}\n', [{"a": 1}]),
                              ('{"a": 1}\n{"b": 2}\n', [{"a": 1}, {"b": 2}])):
            self.assertEqual(records.split_output(text), results)
        with self.assertRaises(ValueError):
            records.split_output("{")

    def test_serving_tells_who_wins(self):
        told = findings.of_serving([
            serving_result(), serving_result("static", goodput=0.5,
                                             wasted_share=0.01)])
        self.assertEqual(told, [
            "contiguous:1 serves most requests within the objective: 1.000 a "
            "second.",
            "static wastes least of what is held: 1.00 %."])


    def test_who_has_no_room_is_told_and_not_compared(self):
        told = findings.of_serving([
            serving_result(), no_room_result(),
            serving_result("static", goodput=0.5)])
        self.assertEqual(told[0], "blocks:16 has no room: a slot takes 2 GiB "
                                  "of 1 GiB.")
        self.assertIn("contiguous:1 serves most requests", told[1])
        self.assertNotIn("blocks:16", " ".join(told[1:]))

    def test_a_model_that_grows_tells_its_end(self):
        result = growth_result()[0]
        self.assertEqual(findings.of_growth(result), [
            "m.gguf: a context of 64 tokens fits on 16.00 MiB, one of 128 does "
            "not: capacity."])
        self.assertEqual(findings.of_growth({
            **result, "contexts": result["contexts"][1:]}), [
            "m.gguf: no context fits on 16.00 MiB, one of 128 does not: "
            "capacity."])
        self.assertEqual(findings.of_growth({
            **result, "contexts": result["contexts"][:1], "error": "",
            "kind": ""}), [
            "m.gguf: a context of 64 tokens fits on 16.00 MiB, and that is the "
            "longest that it has."])


class PartsTest(unittest.TestCase):

    def test_occupancy_classes(self):
        names = [None if charts.occupancy_class(percent) is None
                 else charts.OCCUPANCY[charts.occupancy_class(percent)][0]
                 for percent in (-1, 0, 1, 49, 50, 89, 90, 99, 100)]
        self.assertEqual(names, [
            None, "empty", "under half full", "under half full",
            "half full to 90 %", "half full to 90 %", "90 % to nearly full",
            "90 % to nearly full", "full"])

    def test_figures(self):
        self.assertEqual(tables.format_bytes(1023), "1023 B")
        self.assertEqual(tables.format_bytes(3 << 30), "3.00 GiB")
        self.assertEqual(tables.join_words(["a", "b", "c"]), "a, b and c")
        self.assertEqual(progress.remaining(10, 1, 4), "30 s")
        self.assertEqual(progress.remaining(600, 1, 2), "10 min")
        self.assertEqual(progress.remaining(1, 0, 4), "?")

    def test_nothing_is_drawn_without_a_terminal(self):
        stream = io.StringIO()
        line = progress.ProgressLine(stream)
        line.update("x", 1, 2)
        line.clear()
        self.assertEqual(stream.getvalue(), "")


def report(*arguments):
    return subprocess.run([str(SCRIPT), *map(str, arguments)],
                          capture_output=True, text=True, check=False)


class ScriptTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_runs_and_makes_the_same_page_again(self):
        if not PROGRAMS:
            self.skipTest("no folder of programs was given")
        page = self.folder / "a.html"
        ran = report("--experiment", "fragmentation_stress", "--load", "churn",
                     "against-pytorch", "--events", 2000, "--live", "256MiB",
                     "--device-memory", "300MiB", "--seed", 3, "--looks", 12,
                     "--policies", "quire,pytorch,gmlake", "--repeat", 2,
                     "--build", PROGRAMS, "--output", page)
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        lines = (self.folder / "a.jsonl").read_text("utf-8").splitlines()
        self.assertEqual(len(lines), 6)
        for line in map(json.loads, lines):
            self.assertEqual(line["seed"], 3)
            self.assertIn("--events", line["command"])
            drawn = line["result"]["page_map"]
            held = sum(cell >= 0 for cell in drawn["at_end"]["cells"])
            self.assertEqual(
                held * drawn["cell_pages"] * drawn["page_size"],
                line["result"]["at_end"]["reserved"])
        text = page.read_text("utf-8")
        self.assertEqual(page_checker.check(text).problems, [])
        again = self.folder / "b.html"
        ran = report("--from", self.folder / "a.jsonl", "--output", again,
                     "--markdown", self.folder / "b.md")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        self.assertEqual(again.read_text("utf-8"), text)
        self.assertIn("| quire |", (self.folder / "b.md").read_text("utf-8"))

    def test_real_models_reach_the_page(self):
        if not PROGRAMS:
            self.skipTest("no folder of programs was given")
        page = self.folder / "real.html"
        ran = report("--experiment", "real_models", "--real",
                     *(ROOT / "tests/golden" / name
                       for name in ("gptq-w8-sym", "plain-bf16-tied")),
                     "--page-size", "64KiB", "--build", PROGRAMS,
                     "--output", page)
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        checker = page_checker.check(page.read_text("utf-8"))
        self.assertEqual(checker.problems, [])
        told = " ".join(checker.texts)
        for part in ("reload and sleep: all 48 tokens of 2 models are those of "
                     "each model alone.", "Wake / copy", "Load / bound",
                     "keep: memory ran out for capacity after 1 of 6"):
            self.assertIn(part, told)

    def test_plots(self):
        have = subprocess.run(
            [SCRIPT.read_text("utf-8").split("\n")[0][2:], "-c",
             "import matplotlib"], capture_output=True, check=False)
        if have.returncode != 0:
            self.skipTest("matplotlib is not installed")
        source = self.folder / "r.jsonl"
        records.write(source, all_records())
        ran = report("--from", source, "--output", self.folder / "p.html",
                     "--plots", self.folder / "plots")
        self.assertEqual((ran.returncode, ran.stderr), (0, ""))
        names = sorted(p.name for p in (self.folder / "plots").iterdir())
        self.assertIn("fragmentation-t.csv-timeline.png", names)
        self.assertIn("fragmentation-t.csv-quire-heat.svg", names)
        self.assertIn("switching-day-keep.png", names)
        for path in (self.folder / "plots").glob("*.png"):
            self.assertTrue(path.read_bytes().startswith(b"\x89PNG"))

    def test_errors(self):
        bad = self.folder / "bad.jsonl"
        bad.write_text("{", encoding="utf-8")
        output = ("--output", self.folder / "x.html")
        for arguments, status, message in (
                (("--experiment", "life"), 2, "invalid choice"),
                (("--experiment", "fragmentation_stress"), 2, "--trace"),
                (("--looks", "0"), 2, "--looks"),
                (("--days", "0"), 2, "--days"),
                (("--from", bad), 1, "bad.jsonl: line 1: no JSON"),
                (("--from", self.folder / "none"), 1, "none: cannot be read"),
                (("--experiment", "model_switching"), 1, "--scenarios"),
                (("--experiment", "real_models"), 1, "--real"),
                (("--experiment", "model_switching", "--scenarios", bad), 1,
                 "bad.jsonl: no scenarios"),
                (("--experiment", "kv_stress", "--build", self.folder), 1,
                 "build it first")):
            with self.subTest(arguments):
                ran = report(*arguments, *output)
                self.assertEqual(ran.returncode, status, ran.stderr)
                self.assertIn(message, ran.stderr)
                self.assertFalse((self.folder / "x.html").exists())

    def test_a_program_that_fails_is_named(self):
        if not PROGRAMS:
            self.skipTest("no folder of programs was given")
        ran = report("--experiment", "fragmentation_stress", "--load", "life",
                     "--build", PROGRAMS, "--output", self.folder / "x.html")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("there are churn", ran.stderr)


if __name__ == "__main__":
    unittest.main()
