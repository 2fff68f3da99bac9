"""model_switching in a report: one section for each scenario."""

from bench.reporting import bars, charts, findings, page
from bench.reporting.tables import (Column, Table, format_bytes, format_count,
                                    format_ms, format_share)

TITLE = "Model switching"


def group(results):
    """Runs of one scenario together, in order of appearance."""
    groups = {}
    for result in results:
        groups.setdefault(result["scenario"], []).append(result)
    return list(groups.values())


def policy_table(results):
    first = results[0]
    table = Table(
        f"{first['scenario']} ({first['class']}), device of "
        f"{format_bytes(first['device_memory'])}",
        [Column("Policy"), Column("Strategy", words=True), Column("Survived"),
         Column("Capacity"), Column("Fragmentation"), Column("Requested"),
         Column("Reserved"), Column("Ratio"), Column("Driver calls"),
         Column("Virtual time"), Column("Calls, last day"),
         Column("Time, last day"), Column("Loaded"), Column("Copied"),
         Column("In host memory"), Column("Switch, mean"), Column("Worst"),
         Column("First token, mean"), Column("Worst"), Column("Idle, worst"),
         Column("As good as can be")])
    for result in results:
        switch = result.get("seconds_to_switch") or {}
        token = result.get("seconds_to_first_token") or {}
        idle = result.get("idle_share") or {}
        last_day = result.get("last_day")
        table.add(findings.name_policy(result), result["strategy"],
                  f"{result['switches_survived']} of {result['switches']}",
                  result["capacity_failures"], result["fragmentation_failures"],
                  format_bytes(result["peak_requested"]),
                  format_bytes(result["peak_reserved"]),
                  f"{result['ratio']:.4f}",
                  format_count(result["driver_calls"]),
                  format_ms(result["virtual_ms"]),
                  format_count(last_day["driver_calls"]) if last_day else "–",
                  format_ms(last_day["virtual_ms"]) if last_day else "–",
                  format_bytes(result["bytes_loaded"]),
                  format_bytes(result.get("bytes_copied_in", 0)
                               + result.get("bytes_copied_out", 0)),
                  format_bytes(result.get("host_memory_peak", 0)),
                  *map(_seconds, (switch.get("mean"), switch.get("worst"),
                                  token.get("mean"), token.get("worst"))),
                  format_share(idle["worst"]) if idle else "–",
                  "yes" if result["as_good_as_can_be"] else "no")
    return table


def _seconds(value):
    return "–" if value is None else f"{value:.2f} s"


def _steps(identity, results):
    """What each policy reserved in each step, by strategy."""
    content = ""
    strategies = list(dict.fromkeys(r["strategy"] for r in results))
    for place, strategy in enumerate(strategies):
        same = [r for r in results if r["strategy"] == strategy and r["steps"]]
        if not same:
            continue
        first = same[0]
        series = [("requested (of what the first policy served)",
                   list(enumerate(s.get("peak_requested", 0)
                                  for s in first["steps"])))]
        series += [(findings.name_policy(r),
                    list(enumerate(s.get("peak_reserved", 0)
                                   for s in r["steps"]))) for r in same]
        table = Table(
            f"Headroom in each step, strategy {strategy}",
            [Column("Step"), Column("Does", words=True)]
            + [Column(findings.name_policy(r)) for r in same])
        for i, step in enumerate(first["steps"]):
            table.add(i, f"{step.get('do', '')} {step.get('workload', '')}",
                      *(_headroom(r, i) for r in same))
        content += page.heading(f"Memory by step, strategy {strategy}")
        content += page.panel(
            charts.line_legend(name for name, _ in series),
            charts.line_chart(
                f"{identity}-{place}", series, first["device_memory"],
                f"Reserved memory by step, strategy {strategy}",
                "The most that each policy held in each step of the day, and "
                "what was asked for.", x_name="step"),
            page.details("Headroom as a table", table.to_html()))
    return content


def _headroom(result, step):
    if step >= len(result["steps"]):
        return "–"
    one = result["steps"][step]
    told = format_bytes(one.get("headroom", 0))
    failure = one.get("failure")
    return f"{told}, failed: {failure}" if failure else told


def add_to(document, results):
    """One section for each scenario."""
    for index, runs in enumerate(group(results)):
        document.add_section(
            f"{TITLE}: {runs[0]['scenario']}",
            page.heading("Verdicts")
            + page.bullet_list(findings.of_switching(runs)
                               + bars.of_switching(runs))
            + page.heading("Policies and strategies side by side")
            + policy_table(runs).to_html()
            + _steps(f"switching-{index}", runs))
