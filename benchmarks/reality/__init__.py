"""Accuracy of the product on real processes under real faults: ``python -m benchmarks.reality --json``.

Small trainings run below a real controller and real agents. The operating system disturbs them: CPU quotas, competing
load, slow links, disk limits, memory limits, signals. Nothing here imports the simulator. Start at ``campaign.py``;
``site.py`` makes the nodes, ``faults.py`` disturbs them, ``run.py`` performs one run, ``score.py`` judges it.
"""
