"""TLS, basic auth and loopback checks of the HTTP servers.

Start at ``security.py``. ``web_config.py`` reads the exporter-toolkit's web configuration format.
"""
