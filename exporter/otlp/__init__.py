"""OpenTelemetry metrics and traces over HTTP.

``conventions.py`` maps the catalogue to the OpenTelemetry semantic conventions.
"""
