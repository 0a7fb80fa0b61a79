"""Ranks of a gang as processes of one MPI job: ``python -m gangwatch.mpi PROGRAM``.

gangwatch starts a process for each rank of a gang, in the rank's own slot and environment. MPI's launcher (mpirun)
starts the processes itself. This package joins both: every rank waits at a socket, rank 0 starts mpirun, and mpirun
starts a small stand-in for each process (stand_in.py), which asks the rank with its number to run the program. So the
program is a child of its rank, with the rank's devices, limits, output and identity, and has MPI's variables too.
"""
