"""Tables of the kinds of verdicts and of their causes.

kinds   each kind of verdict: what it accuses, what may follow, its alerts, runbooks, wording and colour
causes  each cause: its wording and what the operator checks

The tables are in this shared package because the controller, its page, the alert rules, the commands and the benchmarks
read them. docs/reference/verdicts.md is generated from them.
"""
