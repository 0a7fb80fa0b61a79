"""The Slurm backend: feedback into a scheduler that people already run.

facts       nodes and jobs, in one form                   opt_in      what a job says of being restarted
commands    its programs as child processes               consent     what an owner declares, read afresh
parse_json  jobs and nodes in JSON                        translate   between its words and the cycle's
columns     jobs in columns of fixed width                wishes      what the cycle wants Slurm to be told
parse_text  nodes in text, and GPUs of a job              refusals    records that can't be read
                                                          plan        what is to be changed, from one look
touched     what has to be put back                       hands       the one way by which anything is changed
audit       a line for everything that was                requeue     a job leaves a bad node
findings    what detectors say, until it can be judged    probing     a drained node is measured
backend     the thread that does all this, and the Backend
"""

from scheduler_feedback.backends.slurm.audited_commands import Settings
from scheduler_feedback.backends.slurm.slurm_backend import SlurmBackend
from scheduler_feedback.backends.slurm.slurm_commands import Commands

__all__ = ["Commands", "Settings", "SlurmBackend"]
