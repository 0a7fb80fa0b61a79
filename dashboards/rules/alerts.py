"""Alerts on what the controller decides and finds, and on telemetry that is missing. Each has a page in docs/runbooks.

What goes wrong with a job is told by the detectors' verdicts: no rule here judges step times by a threshold of its own.
"""

from __future__ import annotations

from dashboards.rules.alerts_hardware import HARDWARE
from dashboards.rules.rule import Alert, Group

_JOB = "job {{ $labels.name }} ({{ $labels.gang }}, cluster {{ $labels.cluster }})"
_WHO = "{{ if $labels.rank }}rank {{ $labels.rank }}{{ else }}the whole job{{ end }}"
_PLACE = (
    "Accused: {{ if $labels.rank }}rank {{ $labels.rank }}{{ else if $labels.node }}the node{{ else }}the whole job"
    "{{ end }}{{ if $labels.node }} on node {{ $labels.node }}{{ end }}"
    "{{ if $labels.device }}, device {{ $labels.device }}{{ end }}"
)
_COST = 'It loses {{ $value | printf "%.1f" }} GPUs\' worth of work for as long as this lasts.'
_VERDICT = "Verdict {{ $labels.verdict }}; `gangwatch story {{ $labels.gang }}` tells what was done."


def _verdict(kind: str, matchers: str = "") -> str:
    return f'verdict:gangwatch_verdict_lost_slots:join{{kind="{kind}"{matchers}}}'


JOBS = (
    Alert(
        "GangwatchStraggler",
        "warning",
        _verdict("straggler"),
        "1m",
        f"A member holds up {_JOB}: {{{{ $labels.cause }}}}, {_WHO}",
        f"{_PLACE}; cause: {{{{ $labels.cause }}}}. {_COST} {_VERDICT}",
        keep="1m",
    ),
    Alert(
        "GangwatchInterference",
        "warning",
        _verdict("interference", ', cause!="congestion"'),
        "1m",
        f"{{{{ $labels.aggressor }}}} disturbs {_JOB}",
        f"Both share {{{{ $labels.resource }}}}. {_PLACE}; cause: {{{{ $labels.cause }}}}. {_COST} {_VERDICT}",
        keep="1m",
    ),
    Alert(
        "GangwatchCongestion",
        "warning",
        _verdict("interference", ', cause="congestion"'),
        "1m",
        f"{{{{ $labels.aggressor }}}} congests {{{{ $labels.resource }}}}, which {_JOB} needs",
        f"{_PLACE}; cause: {{{{ $labels.cause }}}}. {_COST} {_VERDICT}",
        keep="1m",
    ),
    Alert(
        "GangwatchHang",
        "critical",
        _verdict("hang"),
        "1m",
        f"{_JOB} makes no steps",
        f"{_PLACE}; cause: {{{{ $labels.cause }}}}. {_COST} {_VERDICT}",
        keep="1m",
    ),
    Alert(
        "GangwatchDeviceAccused",
        "warning",
        _verdict("health"),
        "1m",
        f"Its own counters accuse a device of {_JOB}: {{{{ $labels.cause }}}}",
        f"{_PLACE}; cause: {{{{ $labels.cause }}}}. {_COST} {_VERDICT}",
        keep="1m",
    ),
    Alert(
        "GangwatchGangStalled",
        "critical",
        """(gang:gangwatch_rank_steps:rate2m == 0)
        * on (cluster, gang) group_left (name, queue) gang:gangwatch_gang_info:name{state="running"}""",
        "10m",
        f"{_JOB} reports no steps any more",
        "Its ranks are there and finish no step. If no verdict says why, the job may evaluate, save or wait for data.",
    ),
)

SCHEDULER = (
    Alert(
        "GangwatchPreempted",
        "info",
        """(increase(gangwatch_gang_preemptions_total[10m]) > 0)
        * on (cluster, gang) group_left (name, queue) gang:gangwatch_gang_info:name""",
        "0s",
        f"{_JOB} was stopped for another",
        "Of queue {{ $labels.queue }}; it waits again and goes on from its checkpoint. "
        "`gangwatch explain {{ $labels.gang }}` says when.",
    ),
    Alert(
        "GangwatchGangCannotStart",
        "warning",
        'gangwatch_gangs_waiting{reason="capacity"} > 0',
        "15m",
        "{{ $value }} jobs ask for more than cluster {{ $labels.cluster }} has",
        "Not even the empty cluster could hold them as its nodes are now; `gangwatch queue` names them.",
    ),
    Alert(
        "GangwatchNodeQuarantined",
        "info",
        'gangwatch_node_state{state="quarantine"} == 1',
        "1m",
        "Node {{ $labels.node }} of cluster {{ $labels.cluster }} is in quarantine",
        "It takes no jobs until a probe has found it well; `gangwatch story node:{{ $labels.node }}` says why.",
    ),
    Alert(
        "GangwatchFrozen",
        "warning",
        "gangwatch_frozen == 1",
        "15m",
        "All actions of cluster {{ $labels.cluster }} are frozen",
        "No job starts, moves or is stopped until `gangwatch thaw`; jobs that run go on.",
    ),
)

CONTROLLER = (
    Alert(
        "GangwatchControllerDown",
        "critical",
        'up{job="gangwatch-controller"} == 0',
        "2m",
        "The controller of cluster {{ $labels.cluster }} does not answer",
        "Jobs go on; none starts and no fault is found. {{ $labels.instance }} could not be scraped.",
        keep="1m",
    ),
    Alert(
        "GangwatchControllerAbsent",
        "critical",
        'absent(up{job="gangwatch-controller"})',
        "5m",
        "No controller is scraped at all",
        "Prometheus knows no target of the job gangwatch-controller: every alert on jobs is blind.",
    ),
    Alert(
        "GangwatchNobodyLeads",
        "critical",
        "max by (cluster) (gangwatch_leads) == 0",
        "2m",
        "All controllers of cluster {{ $labels.cluster }} stand by",
        "Each answers and none leads: jobs go on, none starts. The lease in the cluster says who holds it.",
    ),
    Alert(
        "GangwatchCyclesStopped",
        "critical",
        "rate(gangwatch_cycles_total[2m]) == 0",
        "2m",
        "The controller of cluster {{ $labels.cluster }} answers, and decides nothing",
        "No cycle has run: jobs go on, none starts. Its log says why; `gangwatch check` looks at the machine.",
    ),
    Alert(
        "GangwatchJournalFailing",
        "critical",
        "increase(gangwatch_store_failures_total[5m]) > 0",
        "0s",
        "The journal of cluster {{ $labels.cluster }} can't be written",
        "Nothing is acted on that is not journalled: no job starts until the disk has room and can be written.",
        keep="2m",
    ),
    Alert(
        "GangwatchBackendFailing",
        "warning",
        "increase(gangwatch_backend_failures_total[5m]) > 0",
        "5m",
        "What executes jobs in cluster {{ $labels.cluster }} refuses or does not answer",
        "Starts and stops are tried again; the controller's log names each.",
    ),
    Alert(
        "GangwatchDetectorBroken",
        "warning",
        "gangwatch_detector_failures_total > 0",
        "0s",
        "Detector {{ $labels.detector }} of cluster {{ $labels.cluster }} is out of service",
        "A bug: what it looks for is not found until the controller is started again. Its log has the traceback.",
    ),
    Alert(
        "GangwatchPartBroken",
        "warning",
        """sum by (cluster, part) (increase(gangwatch_part_failures_total[15m])) > 0
        or max by (cluster, part) (gangwatch_part_out_of_service) > 0""",
        "0s",
        "A bug hit part {{ $labels.part }} of the controller of cluster {{ $labels.cluster }}",
        "Jobs are still started and stopped; the part may do less or nothing. Its log has the traceback.",
    ),
)

TELEMETRY = (
    Alert(
        "GangwatchAgentDown",
        "warning",
        'up{job="gangwatch-agent"} == 0',
        "2m",
        "The agent of node {{ $labels.node }} (cluster {{ $labels.cluster }}) does not answer",
        "Nothing is known of the node's GPUs and network since; its jobs may go on. Asked at {{ $labels.instance }}.",
        keep="1m",  # as long as whatever it inhibits may still be told
    ),
    Alert(
        "GangwatchAgentsLost",
        "critical",
        """count by (cluster) (up{job="gangwatch-agent"} == 0) >= 3
        and on (cluster) avg by (cluster) (up{job="gangwatch-agent"}) < 0.9""",
        "1m",
        "{{ $value }} agents of cluster {{ $labels.cluster }} were lost at once",
        "So many at once are a rollout or a network and not the nodes; the controller freezes all actions.",
        keep="1m",
    ),
    Alert(
        "GangwatchTelemetryAbsent",
        "critical",
        """count by (cluster) (gangwatch_cycles_total)
        unless on (cluster) count by (cluster) (gangwatch_agent_info)""",
        "5m",
        "No agent of cluster {{ $labels.cluster }} is scraped",
        "There is a controller and not one agent: dashboards of nodes are empty and no alert on hardware can fire.",
        keep="1m",
    ),
    Alert(
        "GangwatchFeedLost",
        "warning",
        "gangwatch_feed_connected == 0",
        "2m",
        "The controller of cluster {{ $labels.cluster }} can't read node {{ $labels.node }}",
        "Prometheus may still reach the agent, but no fault of this node is found while its frames do not arrive.",
    ),
    Alert(
        "GangwatchForeignRanks",
        "warning",
        "sum by (cluster, node) (increase("
        'gangwatch_watch_records_refused_total{reason=~"attempt|not-placed|rank"}[10m])) > 0',
        "5m",
        "The agent of node {{ $labels.node }} (cluster {{ $labels.cluster }}) reports ranks that do not run there",
        "What it reports of them is dropped. It is misconfigured, or somebody has its node or its certificate.",
    ),
    Alert(
        "GangwatchCertificateEnds",
        "warning",
        "min by (cluster, node, use) (label_replace("
        'gangwatch_feed_certificate_expiry_seconds, "use", "agent", "", "")'
        " or gangwatch_certificate_expiry_seconds) - time() < 14 * 86400",
        "1h",
        "The certificate of {{ with $labels.node }}node {{ . }}{{ else }}the controller{{ end }} (cluster "
        "{{ $labels.cluster }}) ends in {{ $value | humanizeDuration }}",
        "Renewal begins when a third of its life is left, and has failed since. Once it has ended, the controller "
        "reads no frames of the node, and finds no fault there.",
    ),
    Alert(
        "GangwatchCollectorFailing",
        "warning",
        "gangwatch_collector_success == 0",
        "10m",
        "Collector {{ $labels.collector }} fails on node {{ $labels.node }} (cluster {{ $labels.cluster }})",
        "What it reads is missing or old; the others go on. The agent's log names the call that fails.",
    ),
    Alert(
        "GangwatchSeriesLimit",
        "warning",
        'gangwatch_exporter_series_left_out{reason="limit"} > 0',
        "10m",
        "Node {{ $labels.node }} (cluster {{ $labels.cluster }}) has more series than it may publish",
        "{{ $value }} series are left out. Raise exporter.series_limit, or name what is not wanted in exporter.deny.",
    ),
)

ALERTS: tuple[Group, ...] = (
    Group("gangwatch-jobs-alerts", JOBS),
    Group("gangwatch-scheduler-alerts", SCHEDULER),
    Group("gangwatch-controller-alerts", CONTROLLER),
    Group("gangwatch-telemetry-alerts", TELEMETRY),
    Group("gangwatch-hardware-alerts", HARDWARE),
)
