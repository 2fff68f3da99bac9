"""kv_stress, serving_replay, reproduce_oom and allocator_bench in a report."""

from bench.reporting import findings, page
from bench.reporting.tables import (Column, Table, format_bytes, format_count,
                                    format_ms, format_share)

KV_TITLE = "KV caches"
SERVING_TITLE = "Serving"
GROWTH_TITLE = "A model until memory runs out"
BENCH_TITLE = "Allocator benchmarks"


def cache_table(result):
    source = result.get("trace") or "random requests"
    model = result.get("model")
    table = Table(
        f"{source.split('/')[-1]}{f', {model}' if model else ''}: "
        f"{format_count(result['requests'])} requests, "
        f"{format_bytes(result['kv_memory_bytes'])} for the cache",
        [Column("Cache"), Column("Create page"), Column("Served"),
         Column("Requests / virtual second"), Column("Preempted"),
         Column("Running, mean"), Column("Held / live"), Column("Held, peak"),
         Column("Calls waited for"), Column("Calls meanwhile"),
         Column("Decode steps waiting")])
    for cache in result["caches"]:
        if cache.get("failure"):
            table.add(cache["cache"], f"{cache['create_page_us']:.0f} µs",
                      "no room", *["–"] * 8)
            continue
        table.add(
            cache["cache"], f"{cache['create_page_us']:.0f} µs",
            format_count(cache["requests_served"]),
            f"{cache['requests_per_virtual_second']:.3f}",
            format_count(cache["preempted_requests"]),
            f"{cache['mean_running']:.1f}", f"{cache['waste_ratio']:.4f}",
            format_bytes(cache["peak_held_bytes"]),
            format_count(cache["driver_calls_on_critical_path"]),
            format_count(cache["driver_calls_off_critical_path"]),
            f"{cache['decode_steps_waiting']} of {cache['decode_steps']}")
    return table


def group_serving(results):
    """Runs of one trace at one load together, in order of appearance."""
    groups = {}
    for result in results:
        groups.setdefault((result["trace"], result["load_factor"]),
                          []).append(result)
    return list(groups.values())


def serving_table(results):
    first = results[0]
    table = Table(
        f"{first['trace'].split('/')[-1]}, arrivals "
        f"{first['load_factor']:g} times as fast: "
        f"{format_count(first['requests'])} requests, "
        f"{format_bytes(first['kv_memory'])} for the cache",
        [Column("Cache"), Column("Served"), Column("Requests / s"),
         Column("Goodput"), Column("Kept the objective"),
         Column("First token, p50"), Column("p99"),
         Column("Output token, p50"), Column("p99"), Column("Preempted"),
         Column("Running, mean"), Column("Wasted"), Column("Held, peak"),
         Column("Calls waited for")])
    for result in results:
        if result.get("failure"):
            table.add(result["cache"], "no room", *["–"] * 12)
            continue
        first_token = result["seconds_to_first_token"]
        token = result["seconds_per_output_token"]
        table.add(
            result["cache"], format_count(result["requests_served"]),
            f"{result['requests_per_second']:.3f}",
            f"{result['goodput']:.3f}", format_share(result["attainment"]),
            f"{first_token['p50']:.2f} s", f"{first_token['p99']:.2f} s",
            format_ms(1e3 * token["p50"]), format_ms(1e3 * token["p99"]),
            format_count(result["preemptions"]),
            f"{result['mean_running']:.1f}",
            format_share(result["wasted_share"]),
            format_bytes(result["peak_reserved"]),
            format_count(result["driver_calls_waited_for"]))
    return table


def growth_table(result):
    """The contexts of a model on one device, until memory ran out."""
    table = Table(
        f"{result['model'].rstrip('/').split('/')[-1]}: weights and workspace "
        f"{format_bytes(result['fixed'])}, "
        f"{format_bytes(result['bytes_per_token'])} a token; device "
        f"{format_bytes(result['device_memory'])}, batch "
        f"{result['sequences']}, cache {result['kv_cache']}",
        [Column("Context"), Column("Keys and values"),
         Column("KV pages held")])
    for one in result["contexts"]:
        held = one.get("kv_committed")
        table.add(format_count(one["context"]), format_bytes(one["needed"]),
                  "fails" if held is None else format_bytes(held))
    return table


def bench_table(section):
    table = Table(f"{section.get('name', '')}: {section.get('title', '')}",
                  [Column("Figure"), Column("Quire"), Column("mimalloc"),
                   Column("Aim"), Column("Bar"), Column("Verdict", words=True)])
    for figure in section.get("figures", []):
        unit = figure.get("unit", "")
        table.add(figure.get("name", ""), _figure(figure.get("quire"), unit),
                  _figure(figure.get("mimalloc"), unit),
                  _figure(figure.get("aim"), unit),
                  _figure(figure.get("bar"), unit),
                  figure.get("verdict") or "–")
    return table


def _figure(value, unit):
    if not isinstance(value, (int, float)):
        return "–"
    return f"{value:,.3g} {unit}" if value < 1000 else f"{value:,.0f} {unit}"


def add_caches(document, results):
    for result in results:
        table = cache_table(result)
        sentences = findings.of_caches(result["caches"])
        content = ""
        if sentences:
            content = page.heading("Verdicts") + page.bullet_list(sentences)
        choices = result.get("choices")
        if isinstance(choices, dict):
            content += page.bullet_list(
                f"{name}: {reason}" for name, reason in choices.items())
        document.add_section(
            f"{KV_TITLE}: {table.caption.split(':')[0]}",
            content + page.heading("Caches side by side") + table.to_html())


def add_growth(document, results):
    for result in results:
        table = growth_table(result)
        document.add_section(
            f"{GROWTH_TITLE}: {table.caption.split(':')[0]}",
            page.heading("Verdict")
            + page.bullet_list(findings.of_growth(result))
            + page.heading("Contexts") + table.to_html())


def add_serving(document, results):
    for runs in group_serving(results):
        table = serving_table(runs)
        document.add_section(
            f"{SERVING_TITLE}: {table.caption.split(':')[0]}",
            page.heading("Verdicts")
            + page.bullet_list(findings.of_serving(runs))
            + page.heading("Caches side by side") + table.to_html())


def add_bench(document, results):
    for result in results:
        sections = result["sections"]
        content = page.heading("Verdicts")
        content += page.bullet_list(findings.of_bench(sections))
        content += page.paragraph(
            f"{result['machine']}; {result['date']}; load "
            f"{result.get('load', '?')}; mimalloc "
            f"{result.get('mimalloc', '?')}",
            soft=True)
        for section in sections:
            content += page.heading(section.get("name", ""))
            content += page.paragraph(section.get("method", ""), soft=True)
            content += bench_table(section).to_html()
        document.add_section(BENCH_TITLE, content)
