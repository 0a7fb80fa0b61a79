"""Alerts on jobs, the scheduler, the controller and missing telemetry. Each alert has a page in docs/runbooks.

Alerts on jobs fire on the detectors' verdicts. No rule here compares step times with a threshold.
"""

from __future__ import annotations

from agent.schema.verdicts.kinds import KINDS
from dashboards.rules.alerts_hardware import HARDWARE
from dashboards.rules.rule import Alert, Group

_JOB = "job {{ $labels.name }} ({{ $labels.gang }}, cluster {{ $labels.cluster }})"
_WHO = "{{ if $labels.rank }}rank {{ $labels.rank }}{{ else }}the whole job{{ end }}"
_PLACE = (
    "Accused: {{ if $labels.rank }}rank {{ $labels.rank }}{{ else if $labels.node }}the node{{ else }}the whole job"
    "{{ end }}{{ if $labels.node }} on node {{ $labels.node }}{{ end }}"
    "{{ if $labels.device }}, device {{ $labels.device }}{{ end }}"
)
_COST = 'The job loses the work of {{ $value | printf "%.1f" }} GPUs while this lasts.'
_VERDICT = "Verdict {{ $labels.verdict }}; `gangwatch story {{ $labels.gang }}` shows what was done."


_OF_VERDICTS = {alert.name: (kind, row, alert) for kind, row in KINDS.items() for alert in row.alerts}


def _of_verdicts(name: str, summary: str, description: str) -> Alert:
    """Return the alert `name` with these texts. It fires while verdicts of the alert's kind are active."""
    kind, row, of = _OF_VERDICTS[name]
    only = f', cause="{of.only}"' if of.only else ""
    without = f', cause!="{of.without}"' if of.without else ""
    expression = f'verdict:gangwatch_verdict_lost_slots:join{{kind="{kind}"{only}{without}}}'
    return Alert(name, row.severity, expression, "1m", summary, description, keep="1m")


JOBS = (
    _of_verdicts(
        "GangwatchStraggler",
        f"A straggler delays {_JOB}: {{{{ $labels.cause }}}}, {_WHO}",
        f"{_PLACE}; cause: {{{{ $labels.cause }}}}. {_COST} {_VERDICT}",
    ),
    _of_verdicts(
        "GangwatchInterference",
        f"{{{{ $labels.aggressor }}}} slows down {_JOB}",
        f"Both jobs share {{{{ $labels.resource }}}}. {_PLACE}; cause: {{{{ $labels.cause }}}}. {_COST} {_VERDICT}",
    ),
    _of_verdicts(
        "GangwatchCongestion",
        f"{{{{ $labels.aggressor }}}} congests {{{{ $labels.resource }}}}, which {_JOB} needs",
        f"{_PLACE}; cause: {{{{ $labels.cause }}}}. {_COST} {_VERDICT}",
    ),
    _of_verdicts(
        "GangwatchHang",
        f"{_JOB} makes no steps",
        f"{_PLACE}; cause: {{{{ $labels.cause }}}}. {_COST} {_VERDICT}",
    ),
    _of_verdicts(
        "GangwatchDeviceAccused",
        f"A device of {_JOB} reports errors: {{{{ $labels.cause }}}}",
        f"{_PLACE}; cause: {{{{ $labels.cause }}}}. {_COST} {_VERDICT}",
    ),
    Alert(
        "GangwatchGangStalled",
        "critical",
        """(gang:gangwatch_rank_steps:rate2m == 0)
        * on (cluster, gang) group_left (name, queue) gang:gangwatch_gang_info:name{state="running"}""",
        "10m",
        f"{_JOB} has stopped reporting steps",
        "Its ranks run but finish no step. If no verdict gives a cause, the job may be evaluating, saving a checkpoint "
        "or waiting for data.",
    ),
)

SCHEDULER = (
    Alert(
        "GangwatchPreempted",
        "info",
        """(increase(gangwatch_gang_preemptions_total[10m]) > 0)
        * on (cluster, gang) group_left (name, queue) gang:gangwatch_gang_info:name""",
        "0s",
        f"{_JOB} was preempted by another job",
        "Queue {{ $labels.queue }}. The job is pending again and will resume from its checkpoint. "
        "`gangwatch explain {{ $labels.gang }}` shows its expected start.",
    ),
    Alert(
        "GangwatchGangCannotStart",
        "warning",
        'gangwatch_gangs_waiting{reason="capacity"} > 0',
        "15m",
        "{{ $value }} jobs request more than cluster {{ $labels.cluster }} has",
        "They do not fit even if the cluster is empty, with its nodes in their present states. "
        "`gangwatch queue` lists them.",
    ),
    Alert(
        "GangwatchNodeQuarantined",
        "info",
        'gangwatch_node_state{state="quarantine"} == 1',
        "1m",
        "Node {{ $labels.node }} of cluster {{ $labels.cluster }} is in quarantine",
        "It accepts no jobs until a probe succeeds. `gangwatch story node:{{ $labels.node }}` shows the reason.",
    ),
    Alert(
        "GangwatchFrozen",
        "warning",
        "gangwatch_frozen == 1",
        "15m",
        "All actions of cluster {{ $labels.cluster }} are frozen",
        "No job is started, moved or stopped until `gangwatch thaw`. Running jobs continue.",
    ),
)

CONTROLLER = (
    Alert(
        "GangwatchControllerDown",
        "critical",
        'up{job="gangwatch-controller"} == 0',
        "2m",
        "The controller of cluster {{ $labels.cluster }} does not respond",
        "Prometheus cannot scrape {{ $labels.instance }}. Running jobs continue, but no job starts and no fault is "
        "detected.",
        keep="1m",
    ),
    Alert(
        "GangwatchControllerAbsent",
        "critical",
        'absent(up{job="gangwatch-controller"})',
        "5m",
        "Prometheus scrapes no controller",
        "Prometheus has no target of the job gangwatch-controller, so no alert on jobs can fire.",
    ),
    Alert(
        "GangwatchNobodyLeads",
        "critical",
        "max by (cluster) (gangwatch_leads) == 0",
        "2m",
        "Cluster {{ $labels.cluster }} has no leading controller",
        "All its controllers are standbys. Running jobs continue, but no job starts. The Lease names its holder.",
    ),
    Alert(
        "GangwatchRightsMissing",
        "critical",
        "gangwatch_missing_rights > 0",
        "5m",
        "Controller {{ $labels.instance }} of cluster {{ $labels.cluster }} lacks rights",
        "The API server refuses requests that the scheduler needs. Running jobs continue, but jobs may not start or "
        "stop. /readyz and the log of the controller name the rights.",
    ),
    Alert(
        "GangwatchCyclesStopped",
        "critical",
        "rate(gangwatch_cycles_total[2m]) == 0",
        "2m",
        "The controller of cluster {{ $labels.cluster }} runs no scheduling cycles",
        "It responds to scrapes, but no job starts. Running jobs continue. Its log has the reason; `gangwatch check` "
        "examines the machine.",
    ),
    Alert(
        "GangwatchJournalFailing",
        "critical",
        "increase(gangwatch_store_failures_total[5m]) > 0",
        "0s",
        "The journal of cluster {{ $labels.cluster }} cannot be written",
        "The controller journals every decision before it acts. No job starts until the disk is writable and has room.",
        keep="2m",
    ),
    Alert(
        "GangwatchBackendFailing",
        "warning",
        "increase(gangwatch_backend_failures_total[5m]) > 0",
        "5m",
        "The backend of cluster {{ $labels.cluster }} refuses requests or does not respond",
        "The controller retries starts and stops. Its log names each failure.",
    ),
    Alert(
        "GangwatchDetectionLate",
        "warning",
        "gangwatch_watch_frame_age_seconds > 5",
        "2m",
        "Detection of cluster {{ $labels.cluster }} is late",
        'It uses telemetry that is {{ $value | printf "%.0f" }} s old, so verdicts come later than usual. The '
        "controller has too little processor time, or its clock is wrong.",
    ),
    Alert(
        "GangwatchDetectorBroken",
        "warning",
        "gangwatch_detector_failures_total > 0",
        "0s",
        "Detector {{ $labels.detector }} of cluster {{ $labels.cluster }} is out of service",
        "This is a bug. The detector reports nothing until the controller is restarted. The controller's log has the "
        "traceback.",
    ),
    Alert(
        "GangwatchPartBroken",
        "warning",
        """sum by (cluster, part) (increase(gangwatch_part_failures_total[15m])) > 0
        or max by (cluster, part) (gangwatch_part_out_of_service) > 0""",
        "0s",
        "Part {{ $labels.part }} of the controller of cluster {{ $labels.cluster }} failed",
        "This is a bug. Jobs are still started and stopped; the part may do less or nothing. The controller's log has "
        "the traceback.",
    ),
)

TELEMETRY = (
    Alert(
        "GangwatchAgentDown",
        "warning",
        'up{job="gangwatch-agent"} == 0',
        "2m",
        "The agent of node {{ $labels.node }} (cluster {{ $labels.cluster }}) does not respond",
        "Prometheus cannot scrape {{ $labels.instance }}. GPU and network data of the node are missing. Its jobs may "
        "continue.",
        keep="1m",  # as long as the alerts that it inhibits may still fire
    ),
    Alert(
        "GangwatchAgentsLost",
        "critical",
        """count by (cluster) (up{job="gangwatch-agent"} == 0) >= 3
        and on (cluster) avg by (cluster) (up{job="gangwatch-agent"}) < 0.9""",
        "1m",
        "{{ $value }} agents of cluster {{ $labels.cluster }} stopped responding at once",
        "The usual cause is a rollout or the network, not the nodes. The controller freezes all actions.",
        keep="1m",
    ),
    Alert(
        "GangwatchTelemetryAbsent",
        "critical",
        """count by (cluster) (gangwatch_cycles_total)
        unless on (cluster) count by (cluster) (gangwatch_agent_info)""",
        "5m",
        "Prometheus scrapes no agent of cluster {{ $labels.cluster }}",
        "It scrapes the controller only: dashboards of nodes are empty, and no alert on hardware can fire.",
        keep="1m",
    ),
    Alert(
        "GangwatchFeedLost",
        "warning",
        "gangwatch_feed_connected == 0",
        "2m",
        "The controller of cluster {{ $labels.cluster }} receives no frames from node {{ $labels.node }}",
        "Prometheus may still reach the agent, but no fault of this node is detected until frames arrive again.",
    ),
    Alert(
        "GangwatchForeignRanks",
        "warning",
        "sum by (cluster, node) (increase("
        'gangwatch_watch_records_refused_total{reason=~"attempt|not-placed|rank"}[10m])) > 0',
        "5m",
        "The agent of node {{ $labels.node }} (cluster {{ $labels.cluster }}) reports ranks that do not run there",
        "The controller drops these reports. The agent is misconfigured, or an attacker controls its node or "
        "certificate.",
    ),
    Alert(
        "GangwatchCertificateEnds",
        "warning",
        "min by (cluster, node, use) (label_replace("
        'gangwatch_feed_certificate_expiry_seconds, "use", "agent", "", "")'
        " or gangwatch_certificate_expiry_seconds) - time() < 14 * 86400",
        "1h",
        "The certificate of {{ with $labels.node }}node {{ . }}{{ else }}the controller{{ end }} (cluster "
        "{{ $labels.cluster }}) expires in {{ $value | humanizeDuration }}",
        "Renewal starts when a third of its lifetime is left, and has failed since. After the certificate has expired, "
        "the controller receives no frames from the node and detects no fault there.",
    ),
    Alert(
        "GangwatchCollectorFailing",
        "warning",
        "gangwatch_collector_success == 0",
        "10m",
        "Collector {{ $labels.collector }} fails on node {{ $labels.node }} (cluster {{ $labels.cluster }})",
        "Its metrics are missing or old; other collectors are not affected. The agent's log names the failing call.",
    ),
    Alert(
        "GangwatchSeriesLimit",
        "warning",
        'gangwatch_exporter_series_left_out{reason="limit"} > 0',
        "10m",
        "Node {{ $labels.node }} (cluster {{ $labels.cluster }}) has more series than it may publish",
        "{{ $value }} series are left out. Raise exporter.series_limit, or list unwanted metrics in exporter.deny.",
    ),
)

ALERTS: tuple[Group, ...] = (
    Group("gangwatch-jobs-alerts", JOBS),
    Group("gangwatch-scheduler-alerts", SCHEDULER),
    Group("gangwatch-controller-alerts", CONTROLLER),
    Group("gangwatch-telemetry-alerts", TELEMETRY),
    Group("gangwatch-hardware-alerts", HARDWARE),
)
