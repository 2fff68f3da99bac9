"""What the records say, in sentences: who survived, and who won at what.

A report that only shows where Quire is best would not be believed, and should
not be: every figure names its own winners.
"""

from bench.reporting import tables

# What policies are compared by: what several do, the figure (None: it was not
# measured), how it is told.
_FIGURES = (
    ("hold least memory", lambda r: round(r["ratio"], 4),
     lambda v: f"{v:.4f} times what was asked for"),
    ("call the driver least", lambda r: _first(r)["driver_calls"],
     lambda v: f"{tables.format_count(v)} calls"),
    ("spend least virtual time", lambda r: round(_first(r)["virtual_ms"], 1),
     tables.format_ms),
    ("call the driver least in the steady state",
     lambda r: (r.get("steady_state") or {}).get("driver_calls"),
     lambda v: f"{tables.format_count(v)} calls"),
    ("spend least virtual time in the steady state",
     lambda r: _rounded((r.get("steady_state") or {}).get("virtual_ms")),
     tables.format_ms),
    ("call the driver least on the last day",
     lambda r: (r.get("last_day") or {}).get("driver_calls"),
     lambda v: f"{tables.format_count(v)} calls"),
    ("spend least virtual time on the last day",
     lambda r: _rounded((r.get("last_day") or {}).get("virtual_ms")),
     tables.format_ms),
    ("reach the first token soonest after a switch",
     lambda r: _rounded((r.get("seconds_to_first_token") or {}).get("mean")),
     lambda v: f"{v:.3f} s in the mean"),
)


def _rounded(value):
    return None if value is None else round(value, 3)


def _first(result):
    """What a trace costs when it is played for the first time."""
    return result.get("first_iteration") or result


def find_policy(results, name):
    """The first result of the policy, whatever its settings; None: it has
    none."""
    for result in results:
        if result["policy"].split(":")[0] == name:
            return result
    return None


def has_failed(result):
    """A day on which a request could not be served."""
    return result["capacity_failures"] + result["fragmentation_failures"] > 0


def name_policy(result):
    """With a mark where a policy was not checked against its system."""
    return result["policy"] + ("" if result["validated"] else " (unvalidated)")


def _names(results):
    return tables.join_words(name_policy(result) for result in results)


def _verb(what, winners):
    """"hold least memory" of several, "holds least memory" of one."""
    verb, rest = what.split(" ", 1)
    if len(winners) == 1:
        verb += "es" if verb.endswith("ch") else "s"
    return f"{verb} {rest}"


def _compare(survivors, results):
    """For each figure: the best, and how far behind Quire is."""
    quire = find_policy(results, "quire")
    sentences = []
    for what, figure, tell in _FIGURES:
        if any(figure(result) is None for result in survivors):
            continue
        best = min(map(figure, survivors))
        winners = [r for r in survivors if figure(r) == best]
        sentence = f"{_names(winners)} {_verb(what, winners)}: {tell(best)}."
        if quire is not None and quire not in winners and quire in survivors:
            sentence += f" Quire has {tell(figure(quire))}."
        sentences.append(sentence)
    return sentences + _compare_times(survivors)


def _compare_times(survivors):
    """Quire's virtual time by that of PyTorch's stock policy."""
    quire = find_policy(survivors, "quire")
    stock = find_policy(survivors, "pytorch")
    if quire is None or stock is None:
        return []
    told = []
    for when, cost in (("the first time", _first),
                       ("in the steady state",
                        lambda r: r.get("steady_state")),
                       ("on the last day", lambda r: r.get("last_day"))):
        ours, theirs = cost(quire), cost(stock)
        if not ours or not theirs:
            continue
        if theirs["virtual_ms"] > 0:
            told.append(f"{ours['virtual_ms'] / theirs['virtual_ms']:.2f} "
                        f"{when}")
        else:
            told.append(f"{tables.format_ms(ours['virtual_ms'])} against none "
                        f"{when}")
    return [f"Virtual time of Quire by that of pytorch: {', '.join(told)}."]


def _tell_failure(result):
    failure = result["first_oom"]
    phases = failure.get("phases_before")
    where = f" in phase {phases[-1]}" if phases else ""
    return (f"{name_policy(result)} ran out of memory for {failure['kind']} at "
            f"event {tables.format_count(failure['event'])}{where}: "
            f"{tables.format_bytes(failure['size'])} were asked for, "
            f"{tables.format_bytes(failure['largest_allocatable'])} could be "
            "had at most.")


def of_fragmentation(results, brief=False):
    """Sentences about the runs of one trace."""
    survivors = [r for r in results if not r["oom"]]
    failed = [r for r in results if r["oom"] and "first_oom" in r]
    if not survivors:
        sentences = ["Nobody survived."]
    elif len(survivors) < len(results):
        sentences = [f"Survivors: {_names(survivors)}."]
    else:
        sentences = ["All survived." if len(results) > 1
                     else f"{_names(results)} survived."]
    if brief:
        for kind in dict.fromkeys(r["first_oom"]["kind"] for r in failed):
            same = [r for r in failed if r["first_oom"]["kind"] == kind]
            sentences.append(f"Out of memory for {kind}: {_names(same)}.")
    else:
        sentences += map(_tell_failure, failed)
    if len(survivors) > 1:
        sentences += _compare(survivors, results)
    return sentences


def of_day(results):
    """Sentences about who survived the scenario."""
    def names(some):
        return "; ".join(f"{name_policy(r)}, {r['strategy']}" for r in some)

    alive = [r for r in results if not has_failed(r)]
    capacity = [r for r in results if has_failed(r) and r["as_good_as_can_be"]]
    others = [r for r in results
              if has_failed(r) and not r["as_good_as_can_be"]]
    sentences = []
    if results[0]["class"] == "infeasible":
        sentences.append("The day does not fit where everything stays that is "
                         "loaded.")
        if alive:
            sentences.append("Survived every switch, where models or pools "
                             f"make way: {names(alive)}.")
    elif len(alive) == len(results):
        sentences.append("Everybody survived every switch.")
    else:
        sentences.append("Survived every switch: "
                         f"{names(alive) if alive else 'nobody'}.")
    if capacity:
        sentences.append("Failed for capacity alone, and not before it must: "
                         f"{names(capacity)}.")
    fragmented = [r for r in others if r["fragmentation_failures"] > 0]
    early = [r for r in others if r["fragmentation_failures"] == 0]
    if fragmented:
        sentences.append("Failed for fragmentation, where there was room: "
                         f"{names(fragmented)}.")
    if early:
        sentences.append("Failed for capacity, and before it must: "
                         f"{names(early)}.")
    return sentences


def of_switching(results):
    """Sentences about the runs of one scenario."""
    sentences = of_day(results)
    for strategy in dict.fromkeys(r["strategy"] for r in results):
        same = [r for r in results if r["strategy"] == strategy]
        alive = [r for r in same if r["as_good_as_can_be"]]
        if len(alive) > 1:
            sentences.append(f"Strategy {strategy}: "
                             + " ".join(_compare(alive, same)))
    return sentences


def of_caches(caches):
    """Sentences about the caches of kv_stress."""
    return _compare_caches(caches, (
        ("waste least (memory held per memory in use)",
         lambda c: round(c["waste_ratio"], 4), lambda v: f"{v:.4f}", min),
        ("serve most requests in a virtual second",
         lambda c: round(c["requests_per_virtual_second"], 3),
         lambda v: f"{v:,.3f}", max),
        ("preempt least", lambda c: c["preempted_requests"],
         tables.format_count, min),
        ("make the fewest driver calls that steps wait for",
         lambda c: c["driver_calls_on_critical_path"],
         tables.format_count, min)))


def of_serving(results):
    """Sentences about the caches of serving_replay at one load."""
    return _compare_caches(results, (
        ("serve most requests within the objective",
         lambda c: round(c["goodput"], 3),
         lambda v: f"{v:,.3f} a second", max),
        ("keep first tokens soonest (p99)",
         lambda c: round(c["seconds_to_first_token"]["p99"], 2),
         lambda v: f"{v:.2f} s", min),
        ("waste least of what is held", lambda c: round(c["wasted_share"], 4),
         lambda v: f"{100 * v:.2f} %", min),
        ("preempt least", lambda c: c["preemptions"], tables.format_count,
         min)))


def _compare_caches(caches, figures):
    sentences = [f"{name} has no room: {reason}." for name, reason in
                 {c["cache"]: c["failure"].rstrip(".") for c in caches
                  if c.get("failure")}.items()]
    caches = [c for c in caches if not c.get("failure")]
    if len(caches) < 2:
        return sentences
    for what, figure, tell, choose in figures:
        best = choose(map(figure, caches))
        winners = list(dict.fromkeys(
            c["cache"] for c in caches if figure(c) == best))
        if len(winners) == len({c["cache"] for c in caches}):
            continue  # nobody is better
        sentences.append(f"{tables.join_words(winners)} "
                         f"{_verb(what, winners)}: {tell(best)}.")
    return sentences


def of_growth(result):
    """What became of a model whose context was doubled."""
    name = result["model"].rstrip("/").split("/")[-1]
    device = tables.format_bytes(result["device_memory"])
    longest = max((one["context"] for one in result["contexts"]
                   if one.get("kv_committed") is not None), default=None)
    fits = (f"a context of {longest:,} tokens fits on {device}"
            if longest is not None else f"no context fits on {device}")
    if not result["error"]:
        return [f"{name}: {fits}, and that is the longest that it has."]
    failed = result["contexts"][-1]["context"]
    return [f"{name}: {fits}, one of {failed:,} does not: {result['kind']}."]


def of_bench(sections):
    """One sentence about what was held against a bar."""
    counts = {}
    missed = []
    for section in sections:
        for figure in section.get("figures", []):
            verdict = figure.get("verdict")
            if not verdict:
                continue
            counts[verdict] = counts.get(verdict, 0) + 1
            if verdict == "missed":
                missed.append(f"{section.get('name', '')}: "
                              f"{figure.get('name', '')}")
    if not counts:
        return ["No figure has a bar."]
    told = [f"{counts.get('aim', 0)} reach their aim",
            f"{counts.get('bar', 0)} their bar",
            f"{counts.get('missed', 0)} miss it"]
    sentences = [f"Of {sum(counts.values())} figures {', '.join(told)}."]
    if missed:
        sentences.append(f"Missed: {'; '.join(missed)}.")
    return sentences
