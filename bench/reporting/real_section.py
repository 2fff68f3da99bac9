"""Real models that take turns on one device, in a report."""

import json

from bench.reporting import bars, charts, page
from bench.reporting.tables import (Column, Table, format_bytes, format_count,
                                    join_words)

TITLE = "Real models"


def group(results):
    """Strategies of one call of the program together, in order of appearance:
    the same models with the same settings."""
    groups = {}
    for result in results:
        key = json.dumps([[m["model"] for m in result["models"]],
                          result["device_memory"], result.get("settings")],
                         sort_keys=True)
        groups.setdefault(key, []).append(result)
    return list(groups.values())


def _name(path):
    """Files and folders by their last part, adapters too."""
    return ":".join(part.rstrip("/").split("/")[-1]
                    for part in path.split(":adapter="))


def sentences(results):
    """What became of the models' tokens, and of the bars."""
    told = []
    lasting = [r for r in results if not r["oom"]]
    for result in results:
        wrong = [_name(m["model"]) for m in result["models"] if not m["equal"]]
        if result["oom"]:
            kind = result.get("failure_kind") or "an unknown reason"
            told.append(f"{result['strategy']}: memory ran out for {kind} "
                        f"after {result['switches_survived']} of "
                        f"{result['switches']} switches.")
        elif not result["all_equal"]:
            told.append(f"{result['strategy']}: other tokens than alone: "
                        f"{join_words(wrong)}.")
    same = [r for r in lasting if r["all_equal"]]
    if same:
        tokens = sum(m["tokens"] for m in same[0]["models"])
        told.append(f"{join_words(r['strategy'] for r in same)}: all "
                    f"{format_count(tokens)} tokens of "
                    f"{len(same[0]['models'])} models are those of each model "
                    "alone.")
    return told + bars.of_real_models(results)


def _seconds(spread, name):
    return f"{spread[name]:.3f} s" if spread else "–"


def _share(value):
    return "–" if value is None else f"{value:.2f}"


def strategy_table(results):
    first = results[0]
    table = Table(
        f"{len(first['models'])} models on a device of "
        f"{format_bytes(first['device_memory'])}",
        [Column("Strategy"), Column("Survived"), Column("Reserved"),
         Column("In host memory"), Column("Loaded"), Column("Copied"),
         Column("Switch, mean"), Column("Worst"), Column("First token, mean"),
         Column("Worst"), Column("Wake / copy"), Column("Load / read"),
         Column("Load / bound"), Column("Tokens as alone")])
    for result in results:
        switch = result.get("seconds_to_switch")
        token = result.get("seconds_to_first_token")
        table.add(result["strategy"],
                  f"{result['switches_survived']} of {result['switches']}",
                  format_bytes(result["peak_reserved"]),
                  format_bytes(result["host_memory_peak"]),
                  format_bytes(result["bytes_loaded"]),
                  format_bytes(result["bytes_copied_out"]
                               + result["bytes_copied_in"]),
                  _seconds(switch, "mean"), _seconds(switch, "worst"),
                  _seconds(token, "mean"), _seconds(token, "worst"),
                  _share(result.get("wake_to_copy")),
                  _share(result.get("load_to_read")),
                  _share(result.get("load_to_bound")),
                  "–" if result["oom"] else
                  "yes" if result["all_equal"] else "no")
    return table


def model_table(results):
    table = Table("Tokens of each model, and what it holds alone",
                  [Column("Model"), Column("Alone, reserved"),
                   Column("Alone, tokens")]
                  + [Column(r["strategy"].capitalize()) for r in results])
    for i, model in enumerate(results[0]["models"]):
        table.add(_name(model["model"]),
                  format_bytes(model["peak_reserved_alone"]),
                  format_count(model["tokens_alone"]),
                  *(_tokens(r["models"][i]) for r in results))
    return table


def _tokens(model):
    if model["equal"]:
        return f"{format_count(model['tokens'])}, equal"
    place = model.get("first_difference")
    if place is None or place >= model["tokens"]:
        return f"{format_count(model['tokens'])}, and no more"
    return f"{format_count(model['tokens'])}, other from {place} on"


def _switches(identity, results):
    content = ""
    for place, result in enumerate(results):
        steps = result["steps"]
        if not steps:
            continue
        strategy = result["strategy"]
        table = Table(
            f"Each switch, strategy {strategy}",
            [Column("Switch"), Column("To", words=True), Column("Ready"),
             Column("First token"), Column("Headroom"),
             Column("In host memory")])
        for i, step in enumerate(steps):
            table.add(i, _name(step["model"]),
                      f"{step['seconds_to_switch']:.3f} s",
                      f"{step['seconds_to_first_token']:.3f} s",
                      format_bytes(step["headroom"]),
                      format_bytes(step["host_memory"]))
        series = [("reserved", [(i, s["reserved"])
                                for i, s in enumerate(steps)]),
                  ("in host memory", [(i, s["host_memory"])
                                      for i, s in enumerate(steps)])]
        content += page.heading(f"Memory by switch, strategy {strategy}")
        content += page.panel(
            charts.line_legend(name for name, _ in series),
            charts.line_chart(
                f"{identity}-{place}", series, result["device_memory"],
                f"Memory by switch, strategy {strategy}",
                "What the models hold after each switch, on the device and in "
                "host memory.", x_name="switch"),
            page.details("Each switch as a table", table.to_html()))
    return content


def add_to(document, results):
    """One section for each set of models."""
    for index, runs in enumerate(group(results)):
        document.add_section(
            f"{TITLE}: {strategy_table(runs).caption}",
            page.heading("Verdicts") + page.bullet_list(sentences(runs))
            + page.heading("Strategies side by side")
            + strategy_table(runs).to_html() + model_table(runs).to_html()
            + _switches(f"real-{index}", runs))
