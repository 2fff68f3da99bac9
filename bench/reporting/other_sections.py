"""kv_stress and allocator_bench in a report."""

from bench.reporting import findings, page
from bench.reporting.tables import Column, Table, format_bytes, format_count

KV_TITLE = "KV caches"
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
