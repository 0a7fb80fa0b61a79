"""The feed: reads every agent's stream of frames and hands them on, in the order in which they came.

One thread and one epoll for all agents, with what an agent costs kept small: 10,000 streams under asyncio and an HTTP
client made for everything took 2.9 GB and more than a processor (docs/adr/0017).

- agents.py      who there is: the files in which agents announce themselves
- response.py    bytes of one response -> messages; no socket
- connection.py  one stream's socket, with TLS or without
- names.py       where hosts are that are given by name
- arriving.py    who may begin its handshake, so that all are answered in time
- streams.py     what is known of one stream, and how long to wait before it is opened again
- hearing.py     which agents are heard, and which are silent
- feed.py        all of them: when to open, what to believe, when to give up
"""

from __future__ import annotations

from scheduler_feedback.feed.agent_records import AgentRecord
from scheduler_feedback.feed.feed import Deliver, Feed
from scheduler_feedback.feed.stream_state import Stream

__all__ = ["AgentRecord", "Deliver", "Feed", "Stream"]
