"""A report as a page and as Markdown: the same records, the same tables."""

from bench.reporting import (bars, charts, findings, fragmentation_section,
                             other_sections, page, real_section,
                             switching_section)
from bench.reporting.tables import Column, Table, escape_markdown


def _by_experiment(records):
    results = {}
    for record in records:
        results.setdefault(record["experiment"], []).append(record["result"])
    return results


def _summary(results):
    """One line for each trace, scenario and set of caches: who survived."""
    sentences = []
    for runs in fragmentation_section.group(
            results.get("fragmentation_stress", [])):
        sentences.append(f"{fragmentation_section.name_trace(runs[0])}: "
                         + " ".join(findings.of_fragmentation(runs, True)))
    for runs in switching_section.group(results.get("model_switching", [])):
        sentences.append(f"{runs[0]['scenario']}: "
                         + " ".join(findings.of_day(runs)))
    for runs in real_section.group(results.get("real_models", [])):
        sentences.append("Real models: "
                         + " ".join(real_section.sentences(runs)))
    for result in results.get("kv_stress", []):
        caption = other_sections.cache_table(result).caption
        sentences.append(f"{caption}. "
                         + " ".join(findings.of_caches(result["caches"])))
    for runs in other_sections.group_serving(results.get("serving_replay", [])):
        sentences.append(f"{other_sections.serving_table(runs).caption}. "
                         + " ".join(findings.of_serving(runs)))
    for result in results.get("reproduce_oom", []):
        sentences.append(" ".join(findings.of_growth(result)))
    for result in results.get("allocator_bench", []):
        sentences.append("Allocator: "
                         + " ".join(findings.of_bench(result["sections"])))
    return sentences


def _command(record):
    return " ".join(record.get("script") or record["command"])


def _runs_table(records):
    table = Table("How each part was made; the same command makes it again",
                  [Column("Experiment"), Column("Command", words=True),
                   Column("Seed"), Column("Source"), Column("Date"),
                   Column("Machine", words=True)])
    for record in records:
        seed = record["seed"]
        row = (record["experiment"], _command(record) or "not told",
               "–" if seed is None else seed, record["source"] or "not told",
               record["date"] or "not told",
               record["machine"] or "not told")
        if [str(cell) for cell in row] not in table.rows:
            table.add(*row)
    return table


_HOW = (
    "Policies are models of how other systems manage device memory, on a "
    "software device without memory; Quire is itself. Driver calls cost on a "
    "virtual clock what they cost on an A100. Ratio is memory reserved at the "
    "peak by memory asked for at the peak: 1 is what no policy can better. "
    "Figures of policies that are not validated are shown and have no rank.")


def to_html(records, title):
    results = _by_experiment(records)
    dates = sorted({r["date"] for r in records if r["date"]})
    document = page.Page(title, _HOW + (
        f" Run on {', '.join(dates)}." if dates else ""))
    document.add_section(
        "Verdicts", charts.pattern_definitions()
        + page.bullet_list(_summary(results)))
    fragmentation = results.get("fragmentation_stress", [])
    if fragmentation:
        document.add_section(
            "Policies",
            fragmentation_section.evidence_table(fragmentation).to_html())
        fragmentation_section.add_to(document, fragmentation)
    switching_section.add_to(document, results.get("model_switching", []))
    real_section.add_to(document, results.get("real_models", []))
    other_sections.add_caches(document, results.get("kv_stress", []))
    other_sections.add_serving(document, results.get("serving_replay", []))
    other_sections.add_growth(document, results.get("reproduce_oom", []))
    other_sections.add_bench(document, results.get("allocator_bench", []))
    document.add_section("How it was made",
                         _runs_table(records).to_html())
    return document.render()


def to_markdown(records, title):
    """Tables and sentences, for documents."""
    results = _by_experiment(records)
    parts = [f"# {escape_markdown(title)}", escape_markdown(_HOW)]

    def add(sentences, *tables):
        parts.append("\n".join(f"- {escape_markdown(s)}" for s in sentences))
        parts.extend(table.to_markdown() for table in tables)

    fragmentation = results.get("fragmentation_stress", [])
    if fragmentation:
        parts.append("## Fragmentation")
        parts.append(fragmentation_section.evidence_table(
            fragmentation).to_markdown())
    for runs in fragmentation_section.group(fragmentation):
        failures = fragmentation_section.failure_table(runs)
        add(findings.of_fragmentation(runs) + bars.of_fragmentation(runs),
            fragmentation_section.policy_table(runs),
            *([failures] if failures else []))
    switching = results.get("model_switching", [])
    if switching:
        parts.append("## Model switching")
    for runs in switching_section.group(switching):
        add(findings.of_switching(runs) + bars.of_switching(runs),
            switching_section.policy_table(runs))
    if results.get("real_models"):
        parts.append("## Real models")
    for runs in real_section.group(results.get("real_models", [])):
        add(real_section.sentences(runs), real_section.strategy_table(runs),
            real_section.model_table(runs))
    if results.get("kv_stress"):
        parts.append("## KV caches")
    for result in results.get("kv_stress", []):
        add(findings.of_caches(result["caches"]),
            other_sections.cache_table(result))
    if results.get("serving_replay"):
        parts.append("## Serving")
    for runs in other_sections.group_serving(results.get("serving_replay", [])):
        add(findings.of_serving(runs), other_sections.serving_table(runs))
    if results.get("reproduce_oom"):
        parts.append("## A model until memory runs out")
    for result in results.get("reproduce_oom", []):
        add(findings.of_growth(result), other_sections.growth_table(result))
    if results.get("allocator_bench"):
        parts.append("## Allocator benchmarks")
    for result in results.get("allocator_bench", []):
        add(findings.of_bench(result["sections"]),
            *map(other_sections.bench_table, result["sections"]))
    parts.append("## How it was made")
    parts.append(_runs_table(records).to_markdown())
    return "\n\n".join(part for part in parts if part) + "\n"
