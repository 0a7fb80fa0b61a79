"""Mutants of the local backend: attempts, shims, processes, records, probes, saves."""

from benchmarks.mutants.mutant import Mutant

_FOLLOWED = ("tests/backends/test_followed_attempt.py",)
_PROCESSES = ("tests/backends/test_local_backend_processes.py",)
_RECORDS = ("tests/backends/test_attempt_records.py", "tests/backends/test_local_backend_processes.py")
_SHIM = (
    "tests/backends/test_shim.py::test_exit_codes_follow_the_convention_of_shells",
    "tests/backends/test_shim.py::test_the_submitter_overrides_the_base_and_the_rank_overrides_both",
    "tests/backends/test_shim.py::test_devices_follow_the_order_of_local_ranks_and_thread_settings_are_unchanged",
    "tests/backends/test_shim.py::test_ranks_start_where_submitted_else_at_home",
    "tests/backends/test_shim.py::test_programs_are_found_as_execvp_finds_them",
    "tests/backends/test_shim.py::test_the_earliest_kill_deadline_wins",
    "tests/backends/test_shim.py::test_unwritten_records_keep_their_order_and_the_first_stop_counts",
    "tests/backends/test_shim.py::test_a_problem_is_logged_once",
)
_PROBE = (
    "tests/backends/test_local_backend_probe.py::test_the_suspended_share_excludes_explained_time",
    "tests/backends/test_local_backend_probe.py::test_a_missing_counter_is_not_a_counter_of_zero",
    "tests/backends/test_local_backend_probe.py::test_steal_is_read_for_the_given_cpus",
)

MUTANTS = (
    Mutant(
        "backends.local.step_socket:step_socket",
        "<= _SOCKET_PATH_BYTES",
        "<= 1 << 20",
        ("tests/backends/test_local_backend.py::test_sockets_of_a_long_state_folder_are_in_tmp",),
    ),
    Mutant(
        "backends.local.step_socket:step_socket",
        "<= _SOCKET_PATH_BYTES",
        "< 0",
        ("tests/backends/test_local_backend.py::test_sockets_of_a_long_state_folder_are_in_tmp",),
    ),
    Mutant(
        "backends.local.local_attempt:FollowedAttempt._decide", "if not waiting:", "if len(waiting) <= 1:", _FOLLOWED
    ),
    Mutant(
        "backends.local.local_attempt:FollowedAttempt._decide", "> timeout_seconds", ">= timeout_seconds", _FOLLOWED
    ),
    Mutant("backends.local.local_attempt:FollowedAttempt.stop", "elif not all(", "elif not any(", _FOLLOWED),
    Mutant(
        "backends.local.local_attempt:FollowedAttempt._follow",
        "starts and all(starts.values())",
        "starts and any(starts.values())",
        _FOLLOWED,
    ),
    Mutant(
        "backends.local.local_attempt:FollowedAttempt._follow", 'request["why"] == "rank-failed" and', "", _FOLLOWED
    ),
    Mutant("backends.local.local_attempt:FollowedAttempt._account", "started=all(", "started=any(", _FOLLOWED),
    Mutant(
        "backends.local.local_attempt:FollowedAttempt._clean_up",
        "started and attempt_files.read(path) is None",
        "started",
        _FOLLOWED,
    ),
    Mutant(
        "backends.local.local_attempt:FollowedAttempt._clean_up",
        "started = not same_boot or any(",
        "started = any(",
        _FOLLOWED,
    ),
    Mutant(
        "backends.local.local_attempt:FollowedAttempt._kill_leftovers",
        'stat.start_time == record["start_time"]',
        "True",
        _FOLLOWED,
    ),
    Mutant(
        "backends.local.local_attempt:_is_alive", 'about["boot_id"] == local_processes.boot_id() and', "", _FOLLOWED
    ),
    Mutant("backends.local.checkpoint_command:Checkpoint.poll", "late > _RECORD_SECONDS", "late > 0", _FOLLOWED),
    Mutant("backends.local.checkpoint_command:Checkpoint.poll", "elif late > 0:", "elif late >= 0:", _FOLLOWED),
    Mutant("backends.local.checkpoint_command:Checkpoint.ended", "if not self.over:", "if True:", _FOLLOWED),
    Mutant(
        "backends.local.rank_launch:rank_environment",
        '{**plan["environment"], **plan["spec"]["environment"]}',
        '{**plan["spec"]["environment"], **plan["environment"]}',
        _SHIM,
    ),
    Mutant(
        "backends.local.rank_launch:rank_environment",
        'devices[plan["placement"][each]["slot"]]',
        "devices[local.index(each)]",
        _SHIM,
    ),
    Mutant("backends.local.rank_launch:rank_environment", "RANK=str(rank),", "RANK=str(local.index(rank)),", _SHIM),
    Mutant("backends.local.rank_launch:find_program", "if os.access(path, os.X_OK):", "if True:", _SHIM),
    Mutant("backends.local.rank_launch:working_directory", ' or environment.get("HOME")', "", _SHIM),
    Mutant("backends.local.slot_probe:suspended_share", " - waited_seconds", "", _PROBE),
    Mutant("backends.local.slot_probe:suspended_share", "max(0.0, (wall", "max(-1.0, (wall", _PROBE),
    Mutant("backends.local.slot_probe:parse_schedstat", 'fields[0] == fields[2] == "0"', "False", _PROBE),
    Mutant("backends.local.slot_probe:parse_steal", "if processor in processors:", "if True:", _PROBE),
    Mutant("backends.local.local_processes:parse_stat", "int(fields[19])", "int(fields[18])", _PROCESSES),
    Mutant("backends.local.local_processes:parse_stat", 'text.rpartition(b")")', 'text.partition(b")")', _PROCESSES),
    Mutant("backends.local.local_processes:is_alive", "and stat.start_time == start_time", "", _PROCESSES),
    Mutant("backends.local.local_processes:is_alive", "and not stat.gone", "", _PROCESSES),
    Mutant(
        "backends.local.process_trees:with_environment",
        "variables.items() <= environment.items()",
        "variables.items() & environment.items()",
        _PROCESSES,
    ),
    Mutant("backends.local.process_trees:descendants", "recursive=True", "recursive=False", _PROCESSES),
    Mutant("backends.local.local_processes:parse_own_cgroup", 'root + "/"', "root", _PROCESSES),
    Mutant(
        "backends.local.attempt_files:claim",
        "except FileExistsError:\n            return False",
        "except FileExistsError:\n            return True",
        _RECORDS,
    ),
    Mutant("backends.local.attempt_files:create_folder", "os.rmdir(temporary)", "pass", _RECORDS),
    Mutant("backends.local.local_processes:exit_code", "128 - code", "-code", _SHIM),
    Mutant("backends.local.shim:Shim.kill_no_later_than", "min(instant, self.kill_at)", "instant", _SHIM),
    Mutant(
        "backends.local.shim:Shim.write_records",
        "if os.path.basename(path) in (attempt_files.STOP, attempt_files.SAVED):",
        "if False:",
        _SHIM,
    ),
    Mutant("backends.local.shim:Shim.complain", "if text not in self.complaints:", "if True:", _SHIM),
)
