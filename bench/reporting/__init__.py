"""What bench/report and bench/reproduce_oom are made of.

Experiments are run by their programs, kept as records (one JSON object a line,
with the settings that make them again), and told as tables, charts and
sentences. Nothing here needs more than Python's own library, but for plots.py.
"""
