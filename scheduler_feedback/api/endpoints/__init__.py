"""Endpoints of the API, by what they do.

routing            routes with the role that each requires, and shared responses
state_endpoints    read the state
journal_endpoints  read stories, the journal, logs and new entries
change_endpoints   change something
"""
