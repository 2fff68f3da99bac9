"""fragmentation_stress in a report: one section for each trace."""

from bench.reporting import bars, charts, findings, page
from bench.reporting.tables import (Column, Table, format_bytes, format_count,
                                    format_ms, format_share)

TITLE = "Fragmentation"


def group(results):
    """Runs of one trace on one device together, in order of appearance."""
    groups = {}
    for result in results:
        groups.setdefault((result["trace"], result["device_memory"]),
                          []).append(result)
    return list(groups.values())


def name_trace(result):
    """Files by their last part: folders are of one machine."""
    return result["trace"].replace("\\", "/").split("/")[-1]


def policy_table(results):
    first = results[0]
    table = Table(
        f"{name_trace(first)}, {format_count(first['events'])} events, device "
        f"of {format_bytes(first['device_memory'])}",
        [Column("Policy"), Column("Rank"), Column("Requested"),
         Column("Reserved"), Column("Ratio"), Column("Internal"),
         Column("External"), Column("Largest at end"),
         Column("Calls, first pass"), Column("Time, first pass"),
         Column("Calls, last pass"),
         Column("Time, last pass"),
         Column("First out of memory", words=True)])
    for result in results:
        steady = result.get("steady_state") or {}
        first_pass = result["first_iteration"]
        peak = result["at_peak_requested"]
        rank = result.get("rank")
        table.add(
            findings.name_policy(result),
            "–" if rank is None else rank,
            format_bytes(result["peak_requested"]),
            format_bytes(result["peak_reserved"]),
            f"{result['ratio']:.4f}",
            format_share(peak.get("internal_fragmentation", 0)),
            format_share(peak.get("external_fragmentation", 0)),
            format_bytes(result["largest_allocatable"]),
            format_count(first_pass.get("driver_calls", 0)),
            format_ms(first_pass.get("virtual_ms", 0)),
            format_count(steady["driver_calls"]) if steady else "–",
            format_ms(steady["virtual_ms"]) if steady else "–",
            _failure_cell(result))
    return table


def _failure_cell(result):
    failure = result.get("first_oom")
    if not isinstance(failure, dict):
        return "never"
    return (f"{failure.get('kind', '?')}, event "
            f"{format_count(failure.get('event', 0))}")


def failure_table(results):
    """What was true when memory first ran out; None where it never did."""
    table = Table("When memory first ran out",
                  [Column("Policy"), Column("Kind", words=True),
                   Column("Event"), Column("Asked for"),
                   Column("Could have had"), Column("Requested"),
                   Column("Allocated"), Column("Reserved"),
                   Column("Device free"), Column("Phases before", words=True)])
    for result in results:
        failure = result.get("first_oom")
        if not failure:
            continue
        table.add(
            findings.name_policy(result), failure["kind"],
            format_count(failure["event"]), format_bytes(failure["size"]),
            format_bytes(failure["largest_allocatable"]),
            *(format_bytes(failure[name]) if name in failure else "–"
              for name in ("requested", "allocated", "reserved",
                           "device_free")),
            ", ".join(failure.get("phases_before", [])) or "–")
    return table if table.rows else None


def _failures(results):
    table = failure_table(results)
    if table is None:
        return ""
    orders = "".join(
        page.details(f"{findings.name_policy(result)}: requests and frees "
                     "before, the last one failed",
                     page.bullet_list(result["first_oom"]["requests_before"]))
        for result in results
        if result.get("first_oom", {}).get("requests_before"))
    return page.heading("Out of memory") + table.to_html() + orders


def evidence_table(results):
    """What each policy is, and what its model was checked by."""
    table = Table("Policies, and what each model was checked against",
                  [Column("Policy"), Column("System", words=True),
                   Column("Validated"), Column("By", words=True)])
    seen = {}
    for result in results:
        seen.setdefault(result["policy"], result)
    for policy, result in seen.items():
        table.add(policy, result.get("title", ""),
                  "yes" if result["validated"] else "no",
                  result.get("evidence", ""))
    return table


def timeline_series(results):
    """What was asked for, and what each policy reserved, over the events."""
    timed = [r for r in results if r.get("timeline")]
    if not timed:
        return []
    series = [("requested (of what the first policy served)",
               [(m["event"], m["requested"]) for m in timed[0]["timeline"]])]
    for result in timed:
        series.append((findings.name_policy(result),
                       [(m["event"], m["reserved"])
                        for m in result["timeline"]]))
    return series


def _timeline(identity, results):
    series = timeline_series(results)
    if not series:
        return ""
    first = results[0]
    highest = "; ".join(
        f"{name} at most {format_bytes(max(y for _, y in line))}"
        for name, line in series)
    chart = charts.line_chart(
        identity, series, first["device_memory"],
        f"Memory over time, {name_trace(first)}",
        "Reserved memory of each policy over the events of the trace. "
        f"{highest}.")
    table = Table("Reserved memory at each look",
                  [Column("Event")] + [Column(name) for name, _ in series])
    for i, (event, _) in enumerate(series[0][1]):
        table.add(format_count(event),
                  *(format_bytes(line[i][1]) if i < len(line) else "–"
                    for _, line in series))
    return page.heading("Memory over time") + page.panel(
        charts.line_legend(name for name, _ in series), chart,
        page.details("Memory over time as a table", table.to_html()))


def count_classes(cells):
    """How many cells are of each class, those that are not held last."""
    counts = [0] * (len(charts.OCCUPANCY) + 1)
    for percent in cells:
        kind = charts.occupancy_class(percent)
        counts[-1 if kind is None else kind] += 1
    return counts


_MOMENTS = (("at_peak", "at the peak of requests"),
            ("at_failure", "when memory first ran out"),
            ("at_end", "at the end, before anything is freed"))


def maps_of(result):
    """(moment in words, map) of each map that the run has."""
    maps = result.get("page_map") or {}
    return [(words, maps[key]) for key, words in _MOMENTS if maps.get(key)]


def occupancy_table(results):
    first = next(r for r in results if r.get("page_map"))
    cell = first["page_map"]["cell_pages"] * first["page_map"]["page_size"]
    table = Table(
        f"Cells of each map by how much of what they hold is in use; a cell "
        f"is {format_bytes(cell)} where no other size is given",
        [Column("Policy"), Column("When", words=True), Column("Cell")]
        + [Column(name.capitalize()) for name, _ in charts.OCCUPANCY])
    for result in results:
        for words, drawn in maps_of(result):
            size = (result["page_map"]["cell_pages"]
                    * result["page_map"]["page_size"])
            counts = count_classes(drawn["cells"])
            table.add(findings.name_policy(result), words, format_bytes(size),
                      *map(format_count, counts[:-1]))
    return table


def _describe_cells(cells):
    counts = count_classes(cells)
    return ", ".join(f"{format_count(count)} {name}" for (name, _), count
                     in zip(charts.OCCUPANCY, counts) if count) or "none held"


def _page_maps(identity, results):
    drawn = []
    for index, result in enumerate(results):
        for place, (words, one) in enumerate(maps_of(result)):
            name = findings.name_policy(result)
            about = _describe_cells(one["cells"])
            drawn.append(page.figure(
                f"{name}, {words}: {about}",
                charts.page_map(f"{identity}-{index}-{place}", one["cells"],
                                f"Page map of {name} {words}",
                                f"Cells in the order of memory: {about}.")))
    if not drawn:
        return ""
    return (page.heading("Page map")
            + page.paragraph("Physical memory in the order in which it lies on "
                             "the device, 128 cells to a row. What is free in "
                             "a page that is partly full serves only requests "
                             "that fit there; empty pages are held and idle.")
            + page.panel(charts.occupancy_legend(), page.figures(*drawn),
                         page.details("Page maps as a table",
                                      occupancy_table(results).to_html())))


def heat_looks(result):
    heat = (result.get("page_map") or {}).get("heat") or {}
    return heat.get("requested") or []


def _heat_maps(identity, results):
    drawn = []
    table = Table("Share of held memory in use, mean over the looks",
                  [Column("Policy"), Column("Mean"), Column("Least"),
                   Column("Most")])
    for index, result in enumerate(results):
        looks = heat_looks(result)
        if not looks:
            continue
        name = findings.name_policy(result)
        held = result["page_map"]["heat"]["held"]
        shares = []
        for used, there in zip(looks, held):
            whole = sum(h for u, h in zip(used, there) if u >= 0)
            if whole:
                shares.append(sum(u * h for u, h in zip(used, there)
                                  if u >= 0) / whole / 100)
        if not shares:
            continue
        mean = sum(shares) / len(shares)
        band = (result["page_map"]["heat"]["band_pages"]
                * result["page_map"]["page_size"])
        table.add(name, format_share(mean), format_share(min(shares)),
                  format_share(max(shares)))
        drawn.append(page.figure(
            f"{name}: {format_share(mean)} of what is held is in use on "
            f"average; a band is {format_bytes(band)}",
            charts.heat_map(
                f"{identity}-{index}", looks, f"Fragmentation of {name}",
                f"From left to right {len(looks)} looks over the trace, from "
                "top to bottom the device's memory; how full each part is. "
                f"On average {format_share(mean)} of what is held is in use, "
                f"at least {format_share(min(shares))}.")))
    if not drawn:
        return ""
    return (page.heading("Fragmentation heat map")
            + page.paragraph("Time runs from left to right, the device's "
                             "memory from top to bottom.")
            + page.panel(charts.occupancy_legend(), page.figures(*drawn),
                         page.details("Fragmentation as a table",
                                      table.to_html())))


def add_to(document, results):
    """One section for each trace."""
    for index, runs in enumerate(group(results)):
        identity = f"fragmentation-{index}"
        document.add_section(
            f"{TITLE}: {name_trace(runs[0])}",
            page.heading("Verdicts")
            + page.bullet_list(findings.of_fragmentation(runs)
                               + bars.of_fragmentation(runs))
            + page.heading("Policies side by side")
            + policy_table(runs).to_html()
            + _failures(runs)
            + _timeline(f"{identity}-time", runs)
            + _page_maps(f"{identity}-pages", runs)
            + _heat_maps(f"{identity}-heat", runs))
