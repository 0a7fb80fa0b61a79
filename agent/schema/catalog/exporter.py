"""Metrics of the exporter: published series, omitted series and pushed messages."""

from __future__ import annotations

from agent.schema.catalog.metric import Metric

EXPORTER: tuple[Metric, ...] = (
    Metric("gangwatch_exporter_series", "gauge", "Series in the last exposition, without the exporter's own series.",
           "", (),
           "the agent"),
    Metric("gangwatch_exporter_series_left_out", "gauge",
           "Series omitted from the last exposition, by reason: profile, deny (a list of names), limit, or catalogue "
           "(unknown to this build, which is a bug).", "",
           ("reason",), "the agent"),
    Metric("gangwatch_exporter_series_limit", "gauge", "Maximum number of series in an exposition.", "", (),
           "the agent"),
    Metric("gangwatch_exporter_renders_total", "counter", "Expositions rendered.", "", (), "the agent"),
    Metric("gangwatch_exporter_render_seconds", "gauge", "Time taken to render the previous exposition.",
           "seconds", (), "the agent"),
    Metric("gangwatch_exporter_requests_refused_total", "counter",
           "Refused requests by HTTP status: missing or wrong password, or too many requests.", "", ("status",),
           "the agent"),
    Metric("gangwatch_exporter_web_config_in_force", "gauge",
           "1 if the web configuration in use is that of the files; 0 after a change that is not valid.", "", (),
           "the agent"),
    Metric("gangwatch_certificate_expiry_seconds", "gauge",
           "Expiry of the certificate that the agent or controller presents, in seconds since 1970: as a server, or to "
           "agents (feed).", "seconds", ("use",),
           "the agent"),
    Metric("gangwatch_push_sent_total", "counter",
           "Messages accepted by the receiver: a frame, a sample of the controller, or spans.", "", ("sink",),
           "the agent"),
    Metric("gangwatch_push_failures_total", "counter", "Failed attempts to send a message.", "", ("sink",),
           "the agent"),
    Metric("gangwatch_push_dropped_total", "counter",
           "Messages dropped, by reason: the queue was full, or the receiver refused them.", "", ("reason", "sink"),
           "the agent"),
    Metric("gangwatch_push_queue_frames", "gauge", "Messages waiting to be sent.", "", ("sink",), "the agent"),
    Metric("gangwatch_plugin_success", "gauge",
           "1 if all metrics of this plug-in are in this response; 0 if some are left out.", "", ("plugin",),
           "the agent, the controller"),
    Metric("gangwatch_plugin_failures_total", "counter",
           "Responses without all metrics of this plug-in: it raised, was late, or returned an invalid or duplicate "
           "metric. The log has the reason.", "", ("plugin",), "the agent, the controller"),
    Metric("gangwatch_plugin_series", "gauge", "Samples of this plug-in in this response.", "", ("plugin",),
           "the agent, the controller"),
    Metric("gangwatch_plugin_duration_seconds", "gauge", "Duration of the plug-in's last finished collection.",
           "seconds", ("plugin",), "the agent, the controller"),
    Metric("gangwatch_textfile_mtime_seconds", "gauge",
           "Time of the last change of a *.prom file, in seconds since 1970.", "seconds", ("file",),
           "exporter.textfile_folder", compatibility="node_textfile_mtime_seconds"),
    Metric("gangwatch_textfile_scrape_error", "gauge",
           "1 if metrics of this *.prom file, or the folder, are left out. The log has the reason.", "", ("file",),
           "exporter.textfile_folder", compatibility="node_textfile_scrape_error"),
)  # fmt: skip
