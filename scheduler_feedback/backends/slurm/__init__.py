"""The Slurm backend: gangwatch observes a cluster that Slurm schedules, and drains nodes or requeues jobs.

slurm_backend        thread that polls Slurm, and the Backend   node_plan            changes to make, from one snapshot
slurm_commands       Slurm's programs as child processes        node_updates         executes that plan, rate-limited
parsing/             parsers of what those programs print       audited_commands     the only path to a change in Slurm
slurm_names          conversion to the cycle's names            slurm_audit          one line for every change
consent              what job owners allow                      changed_objects      changes to be undone later
desired_state        what the cycle requests of Slurm           requeue              moves one job off a bad node
pending_verdicts     verdicts that wait for a snapshot          requeue_state        jobs being moved, and their limits
cycle_queries        queries of the cycle's state             probe_reservation    measures a drained node
agent_announcements  URLs of the nodes' agents                  section              its configuration
"""
