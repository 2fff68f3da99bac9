"""convert_trace against Python's own pickle and csv: event by event, stream by
stream; and pickles that would run something.

    convert_trace_test.py CONVERT_TRACE ALLOCATOR_REPLAY
"""

import csv
import json
import os
import pathlib
import pickle
import random
import struct
import subprocess
import sys
import tempfile
import unittest

CONVERT, REPLAY = sys.argv[1:3]


def run(*arguments):
    return subprocess.run([CONVERT, *map(str, arguments)], capture_output=True,
                          text=True, check=False, timeout=60)


def make_events(seed, count=400):
    """(action, id, size, stream, microsecond) of a program with three streams,
    which frees on other streams than it allocates on."""
    draw = random.Random(seed)
    events, live, number = [], [], 0
    for i in range(count):
        stream = draw.choice((0, 7, 140737488355328))
        if live and draw.random() < 0.45:
            freed, size = live.pop(draw.randrange(len(live)))
            events.append(("free", freed, size, stream, 10 * i))
        elif draw.random() < 0.03:
            events.append(("fail", None, draw.randrange(1 << 40), stream,
                           10 * i))
        else:
            size = draw.choice((0, 1, 511, 512, 4096, 3 << 20))
            events.append(("alloc", number, size, stream, 10 * i))
            live.append((number, size))
            number += 1
    return events


def snapshot_of(events, device=0, devices=1):
    """As torch.cuda.memory._dump_snapshot has it, addresses used again."""
    free_addresses, address_of, top, trace = [], {}, 1 << 40, []
    actions = {"alloc": "alloc", "free": "free_completed", "fail": "oom"}
    for action, number, size, stream, time in events:
        event = {"action": actions[action], "size": size, "stream": stream,
                 "time_us": 1700000000000000 + time, "frames": []}
        if action == "alloc":
            if free_addresses:
                address_of[number] = free_addresses.pop()
            else:
                address_of[number], top = top, top + (4 << 20)
            event["addr"] = address_of[number]
        elif action == "free":
            event["addr"] = address_of.pop(number)
            free_addresses.append(event["addr"])
            trace.append({**event, "action": "free_requested"})
        else:
            event["device_free"] = 0
        trace.append(event)
    traces = [[] for _ in range(devices)]
    traces[device] = trace
    return {"segments": [], "device_traces": traces}


def events_of_csv(path):
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    made, sizes = [], {}
    for row in rows:
        number, size = int(row["id"]), int(row["bytes"])
        if row["op"] == "alloc":
            sizes[number] = size
        elif row["op"] == "free":
            size = sizes.pop(number)
        made.append((row["op"], None if row["op"] == "fail" else number, size,
                     int(row["stream"]), int(row["t_ns"]) // 1000))
    return made


def events_of_rmm(path):
    with open(path, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    names = {"allocate": "alloc", "free": "free", "allocate failure": "fail"}
    made, number_of, number = [], {}, 0
    for row in rows:
        pointer, action = row["Pointer"], names[row["Action"]]
        named = None
        if action == "alloc":
            number_of[pointer], number = number, number + 1
            named = number_of[pointer]
        elif action == "free":
            named = number_of.pop(pointer)
        hours, minutes, seconds = row["Time"].split(":")
        time = round((int(hours) * 60 + int(minutes)) * 60e6 +
                     float(seconds) * 1e6)
        made.append((action, named, int(row["Size"]),
                     int(row["Stream"], 16), time))
    return made


def events_of_pickle(path):
    snapshot = pickle.loads(pathlib.Path(path).read_bytes())
    names = {"alloc": "alloc", "free_completed": "free", "oom": "fail"}
    made, number_of, number = [], {}, 0
    for event in snapshot["device_traces"][0]:
        action = names.get(event["action"])
        if action is None:
            continue
        named = None
        if action == "alloc":
            number_of[event["addr"]], number = number, number + 1
            named = number_of[event["addr"]]
        elif action == "free":
            named = number_of.pop(event["addr"])
        made.append((action, named, event["size"], event["stream"],
                     event["time_us"]))
    return made


def since_first(events):
    return [(*event[:4], event[4] - events[0][4]) for event in events]


class ConvertTraceTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def convert(self, source, target, *options):
        ran = run(source, target, *options)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return target

    def write_snapshot(self, name, snapshot, protocol=4):
        path = self.folder / name
        path.write_bytes(pickle.dumps(snapshot, protocol))
        return path

    def test_every_event_and_its_stream_survive_each_way(self):
        for seed, protocol in ((1, 2), (2, 3), (3, 4), (4, 5)):
            events = since_first(make_events(seed))
            source = self.write_snapshot("made.pickle", snapshot_of(events),
                                         protocol)
            quire = self.convert(source, self.folder / "a.csv")
            self.assertEqual(since_first(events_of_csv(quire)), events)
            rmm = self.convert(quire, self.folder / "b.csv", "--to", "rmm")
            self.assertEqual(since_first(events_of_rmm(rmm)), events)
            torch = self.convert(rmm, self.folder / "c.pickle")
            self.assertEqual(since_first(events_of_pickle(torch)), events)
            again = self.convert(torch, self.folder / "d.csv")
            self.assertEqual(since_first(events_of_csv(again)), events)

    def test_what_is_older_than_the_recording_survives(self):
        source = self.folder / "older.csv"
        source.write_text("op,id,bytes,stream\np,0,3000,5\np,1,700,6\n"
                          "a,2,100,0\nf,0,0,5\n")
        torch = self.convert(source, self.folder / "older.pickle")
        snapshot = pickle.loads(torch.read_bytes())
        live = [(block["requested_size"], segment["stream"])
                for segment in snapshot["segments"]
                for block in segment["blocks"]]
        self.assertEqual(sorted(live), [(100, 0), (700, 6)])
        back = self.convert(torch, self.folder / "back.csv")
        with open(back, encoding="utf-8", newline="") as file:
            rows = [(row["op"], row["bytes"], row["stream"])
                    for row in csv.DictReader(file)]
        self.assertEqual(sorted(rows[:2]), [("live", "3000", "5"),
                                            ("live", "700", "6")])
        self.assertEqual([row[0] for row in rows[2:]], ["alloc", "free"])

    def test_a_replay_is_the_same_from_every_format(self):
        source = self.write_snapshot("r.pickle", snapshot_of(make_events(9)))
        paths = [source, self.convert(source, self.folder / "r.csv"),
                 self.convert(source, self.folder / "rmm.csv", "--to", "rmm")]
        paths.append(self.convert(paths[2], self.folder / "again.pickle"))
        ran = subprocess.run([REPLAY, *paths, "--json"], capture_output=True,
                             text=True, check=True)
        replays = json.loads(ran.stdout)
        for name in ("events", "streams", "peak_requested", "peak_mapped",
                     "failures_when_recorded", "driver_calls"):
            self.assertEqual(len({str(one[name]) for one in replays}), 1, name)

    def test_what_has_no_place_is_told(self):
        source = self.folder / "full.csv"
        source.write_text(
            "op,id,bytes,stream,thread,alignment,owner,phase\n"
            "mark,0,0,0,0,0,,load\nreserve,0,2097152,0,0,0,,\n"
            "alloc,1,4096,0,0,4096,kv,\nrecord,1,0,9,1,0,,\n"
            "free,1,0,0,0,0,,\n")
        told = {}
        for format_name in ("quire", "rmm", "pytorch"):
            ran = run(source, self.folder / "out", "--to", format_name,
                      "--json")
            self.assertEqual((ran.returncode, ran.stderr), (0, ""))
            told[format_name] = json.loads(ran.stdout)["left_out"]
        common = {"recorded_streams": 1, "marks": 1, "alignments": 1,
                  "owners": 1}
        self.assertEqual(told, {"quire": {}, "rmm": {**common, "reserves": 1},
                                "pytorch": {**common, "threads": 2}})

    def test_a_device_is_chosen(self):
        events = make_events(5)
        snapshot = snapshot_of(events, device=2, devices=4)
        snapshot["device_traces"][1] = [
            {"action": "alloc", "addr": 1 << 30, "size": 11, "stream": 0,
             "time_us": 1, "frames": []}]
        source = self.write_snapshot("two.pickle", snapshot)
        target = self.folder / "two.csv"
        ran = run(source, target)
        self.assertEqual(ran.returncode, 1)
        self.assertIn("two.pickle: snapshot.device_traces has events of "
                      "devices 1, 2: choose one", ran.stderr)
        ran = run(source, target, "--device", 3)
        self.assertEqual(ran.returncode, 1)
        self.assertIn("devices 1, 2, and none of device 3", ran.stderr)
        self.assertFalse(target.exists())
        self.convert(source, target, "--device", 2)
        self.assertEqual(since_first(events_of_csv(target)),
                         since_first(events))

    def test_nothing_in_a_pickle_is_run(self):
        mark = self.folder / "ran"
        command = f"touch {mark}"

        class Hostile:
            def __init__(self, function, *arguments):
                self._made = (function, arguments)

            def __reduce__(self):
                return self._made

        system = b"cos\nsystem\n"
        raw = command.encode()
        bodies = {
            "reduce": pickle.dumps(Hostile(os.system, command), 2),
            "in a field": pickle.dumps(
                {"segments": [], "device_traces":
                    [[{"action": Hostile(os.system, command)}]]}, 4),
            "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c" +
                            bytes([len(raw)]) + raw + b"\x85R.",
            "inst": b"\x80\x02(X" + struct.pack("<I", len(raw)) + raw +
                    b"ios\nsystem\n.",
            "obj": b"\x80\x02(" + system + b"X" + struct.pack("<I", len(raw)) +
                   raw + b"o.",
            "newobj": b"\x80\x02" + system + b")\x81.",
            "build": b"\x80\x02}}b.",
            "extension": b"\x80\x02\x82\x01.",
            "persistent": b"\x80\x02X\x01\0\0\0aQ.",
            "buffer": b"\x80\x05\x97.",
        }
        for name, body in bodies.items():
            with self.subTest(name):
                source = self.folder / "hostile.pickle"
                source.write_bytes(body)
                ran = run(source, self.folder / "out.csv")
                self.assertEqual((ran.returncode, ran.stdout), (1, ""))
                self.assertRegex(ran.stderr, r"hostile\.pickle: .*byte \d+")
                self.assertFalse(mark.exists())
                self.assertFalse((self.folder / "out.csv").exists())

    def test_errors_name_the_file_and_the_place(self):
        for contents, message in (
                (b"op,id,bytes\nalloc,0,12\nalloc,1,-4\n", "line 3, column \"bytes\""),
                (b"Thread,Time,Action,Pointer,Size,Stream\n"
                 b"1,14:21:19.998533,allocate,0x1,x,0\n", "line 2, column \"Size\""),
                (pickle.dumps(snapshot_of(make_events(1)))[:-40], "byte "),
                (pickle.dumps({"device_traces": [[{"action": "alloc"}]]}),
                 "snapshot.device_traces[0][0] has no \"size\""),
                (b"", "")):
            with self.subTest(message):
                source = self.folder / "bad"
                source.write_bytes(contents)
                ran = run(source, self.folder / "out.csv")
                self.assertEqual((ran.returncode, ran.stdout), (1, ""))
                self.assertIn(f"{source}: ", ran.stderr)
                self.assertIn(message, ran.stderr)

    def test_sizes_that_pytorch_does_not_have_are_refused(self):
        source = self.folder / "huge.csv"
        source.write_text(f"op,id,bytes\na,0,1\na,1,{(1 << 64) - 1}\n")
        ran = run(source, self.folder / "huge.pickle")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("huge.csv: event 1 (allocate)", ran.stderr)

    def test_wrong_usage(self):
        source = self.folder / "a.csv"
        source.write_text("op,id,bytes\na,0,1\n")
        for arguments, message in (
                ((source,), "OUT"),
                ((source, "out"), "out: its name tells no format; say --to"),
                ((source, "out", "--to", "json"), "--to"),
                ((source, "out.csv", "--device", "-1"), "--device")):
            with self.subTest(message):
                ran = run(*arguments)
                self.assertEqual((ran.returncode, ran.stdout), (2, ""))
                self.assertIn(message, ran.stderr)
        ran = run(source, self.folder / "o.csv", "--device", "0")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("a.csv: device 0 cannot be chosen", ran.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
