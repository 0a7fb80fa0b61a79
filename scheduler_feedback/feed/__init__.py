"""The feed: reads every agent's stream of frames and passes the frames on in order.

One thread and one epoll serve all agents, to keep the cost per agent small: 10,000 streams with asyncio and a general
HTTP client took 2.9 GB and more than a CPU (docs/adr/0017). Above some thousand agents, they are those of another
process (docs/adr/0151).

- agent_records.py      the files in which agents announce themselves
- frames_response.py    a parser from the bytes of a response to messages; no socket
- stream_connection.py  the socket of one stream, with or without TLS
- host_addresses.py     DNS look-ups of agents' hosts
- handshake_slots.py    a limit on concurrent handshakes
- stream_state.py       the state of one stream, and the backoff before it is opened again
- agent_reporting.py    which agents are reporting, and which are stale
- stream_decoder.py     decoding and checks of one stream's messages
- frame_rate.py         how many frames a busy controller asks for
- leased_orders.py      orders to agents, repeated before their lease ends
- power_orders.py, shift_orders.py  their lines: power limits, time shifts
- feed.py               all streams: opening, reading, timeouts
- feed_with_readers.py  the choice between one thread and reader processes, and the controller's side of them
- reader_channel.py     shared memory and sockets between the controller and a reader process
- reader_process.py     a reader process
"""

from __future__ import annotations

from scheduler_feedback.feed.agent_records import AgentRecord
from scheduler_feedback.feed.feed import Deliver, Feed
from scheduler_feedback.feed.stream_state import Stream

__all__ = ["AgentRecord", "Deliver", "Feed", "Stream"]
