"""The exporter itself: what it publishes, what it leaves out, and what it pushes."""

from __future__ import annotations

from agent.schema.catalog.metric import Metric

EXPORTER: tuple[Metric, ...] = (
    Metric("gangwatch_exporter_series", "gauge", "Series in the newest exposition, these not counted.", "", (),
           "itself"),
    Metric("gangwatch_exporter_series_left_out", "gauge",
           "Series that the newest exposition leaves out, by reason: the profile, a list of names, or the limit.", "",
           ("reason",), "itself"),
    Metric("gangwatch_exporter_series_limit", "gauge", "Most series in an exposition.", "", (), "itself"),
    Metric("gangwatch_exporter_renders_total", "counter", "Expositions rendered.", "", (), "itself"),
    Metric("gangwatch_exporter_render_seconds", "gauge", "How long rendering the exposition before this one took.",
           "seconds", (), "itself"),
    Metric("gangwatch_exporter_requests_refused_total", "counter",
           "Requests that were not answered: no password, a wrong one, too many.", "", ("status",), "itself"),
    Metric("gangwatch_exporter_web_config_in_force", "gauge",
           "Whether the web configuration is in force as its files stand; 0 after a change that can't be used.", "", (),
           "itself"),
    Metric("gangwatch_certificate_expiry_seconds", "gauge",
           "When the certificate that the agent or controller shows ends, in seconds since 1970: to whoever asks it "
           "(server), or to agents (feed).", "seconds", ("use",),
           "itself"),
    Metric("gangwatch_push_sent_total", "counter",
           "Messages that the receiver has taken: a frame, a sample of the controller, or spans.", "", ("sink",),
           "itself"),
    Metric("gangwatch_push_failures_total", "counter", "Attempts to send that failed.", "", ("sink",), "itself"),
    Metric("gangwatch_push_dropped_total", "counter",
           "Messages given up, by reason: the queue was full, or the receiver refused them.", "", ("reason", "sink"),
           "itself"),
    Metric("gangwatch_push_queue_frames", "gauge", "Messages that wait to be sent.", "", ("sink",), "itself"),
)  # fmt: skip
