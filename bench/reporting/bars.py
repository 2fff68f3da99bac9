"""What is asked of Quire in these experiments, and whether the records show it.

Each sentence begins with "Bar kept" or "Bar missed", and has the figures that
decide it. Where a record says too little, nothing is said. Made-up loads have
no bar: they are there to find what is bad for somebody.
"""

from bench.reporting import findings
from bench.reporting.tables import format_count, format_ms, format_share

MOST_RATIO = 1.05
MOST_TIME = 1.05  # times that of PyTorch's stock policy
MOST_IDLE = 0.02
LEAST_WAKE = 0.8
LEAST_LOAD = 0.8  # of the disk's rate, or of copying into untouched pages
# It keeps nothing that is freed, so that it holds what is live and no more.
_NOT_CACHING = "cudamalloc"


def _judge(kept, sentence):
    return f"Bar {'kept' if kept else 'missed'}: {sentence}."


def _base(result):
    return result["policy"].split(":")[0]


def _judge_ratio(ratio):
    return _judge(round(ratio, 4) <= MOST_RATIO,
                  f"Quire holds at most {MOST_RATIO} times what was asked for "
                  f"({ratio:.4f})")


def _judge_rivals(quire, results):
    """Against those that cache, were checked, and survived."""
    rivals = [r for r in results
              if r["validated"] and not r["oom"]
              and _base(r) not in ("quire", _NOT_CACHING)]
    if not rivals:
        return []
    least = min(rivals, key=lambda r: r["ratio"])
    return [_judge(round(quire["ratio"], 4) <= round(least["ratio"], 4),
                   "no validated policy that caches holds less than Quire "
                   f"(the least is {least['policy']}, {least['ratio']:.4f})")]


def _judge_time(what, quire, stock):
    """`quire` and `stock` have calls and virtual time of the same thing."""
    time, limit = quire["virtual_ms"], MOST_TIME * stock["virtual_ms"]
    return _judge(
        quire["driver_calls"] == 0 and time <= limit,
        f"{what} Quire calls the driver never, and spends at most {MOST_TIME} "
        f"times PyTorch's virtual time "
        f"({format_count(quire['driver_calls'])} calls and {format_ms(time)} "
        f"against {format_count(stock['driver_calls'])} and "
        f"{format_ms(stock['virtual_ms'])})")


def _is_recording(result):
    settings = result.get("settings")
    return isinstance(settings, dict) and "trace" in settings


def of_fragmentation(results):
    """Sentences about the runs of one recorded trace."""
    quire = findings.find_policy(results, "quire")
    if quire is None or quire["oom"] or not _is_recording(quire):
        return []
    sentences = [_judge_ratio(quire["ratio"]), *_judge_rivals(quire, results)]
    stock = findings.find_policy(results, "pytorch")
    if stock and quire.get("steady_state") and stock.get("steady_state"):
        sentences.append(_judge_time("in the steady state",
                                     quire["steady_state"],
                                     stock["steady_state"]))
    return sentences


def of_switching(results):
    """Sentences about the runs of one scenario, strategy by strategy."""
    sentences = []
    for strategy in dict.fromkeys(r["strategy"] for r in results):
        same = [r for r in results if r["strategy"] == strategy]
        quire = findings.find_policy(same, "quire")
        if quire is None:
            continue
        told = [_judge(quire["as_good_as_can_be"],
                       "Quire fails for capacity alone, and where it must "
                       f"({quire['switches_survived']} of {quire['switches']} "
                       "switches survived)")]
        if not findings.has_failed(quire):
            told.append(_judge_ratio(quire["ratio"]))
        if quire.get("idle_share"):
            worst = quire["idle_share"]["worst"]
            told.append(_judge(worst <= MOST_IDLE,
                               f"at most {format_share(MOST_IDLE)} of the "
                               f"device is idle ({100 * worst:.2f} %)"))
        if quire.get("wake_to_copy") is not None:
            told.append(_judge_wake(quire["wake_to_copy"]))
        stock = findings.find_policy(same, "pytorch")
        # Nothing is steady where models sleep, are read again, or lose their
        # process.
        if (strategy == "keep" and stock and quire.get("last_day")
                and stock.get("last_day")):
            told.append(_judge_time("on the last day", quire["last_day"],
                                    stock["last_day"]))
        sentences += [f"{strategy}: {sentence}" for sentence in told]
    return sentences


def of_real_models(results):
    """Sentences about the strategies of one set of models."""
    sentences = []
    for result in results:
        if result.get("wake_to_copy") is not None:
            sentences.append(f"{result['strategy']}: "
                             + _judge_wake(result["wake_to_copy"]))
        if result.get("load_to_bound") is not None and not result["oom"]:
            share = result["load_to_bound"]
            sentences.append(f"{result['strategy']}: " + _judge(
                share >= LEAST_LOAD,
                f"models load at {LEAST_LOAD} or more of what the disk and "
                f"untouched pages allow ({share:.2f})"))
    return sentences


def _judge_wake(share):
    return _judge(share >= LEAST_WAKE,
                  f"waking up goes at {LEAST_WAKE} of the speed of a copy or "
                  f"faster ({share:.2f})")
