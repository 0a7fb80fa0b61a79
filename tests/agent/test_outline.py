"""Stream decoder that reuses the structure of the previous frame: same results as decoding each frame separately."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from agent.schema.errors import FrameError
from agent.schema.frame import Frame, Layout, Member, OpenRecord
from agent.schema.wire import Decoder, decode, encode_frame
from tests.agent.test_frame import RECORDS, a_frame

numbers = st.sampled_from([0, 1, 127, 128, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63]) | st.integers(-2, 2**63)
changes = st.fixed_dictionaries(
    {},
    optional={
        "seq": numbers,
        "wall_ns": numbers,
        "monotonic_ns": numbers,
        "record_seq": numbers,
        "node": st.sampled_from(["n0", "n1", "another"]),
        "records": st.sampled_from([(), RECORDS, RECORDS[:1], (OpenRecord(Member("g", 2, 1), "step", 7, 5),)]),
        "gauges": st.lists(st.floats(), max_size=3).map(np.array),
        "counters_valid": st.lists(st.booleans(), min_size=3, max_size=3).map(np.array),
    },
)


def decoded(decoder: Decoder | None, message: bytes) -> list[object]:
    try:
        found = decode(message) if decoder is None else decoder.decode(message)
    except FrameError as error:
        return [type(error).__name__]
    if isinstance(found, Layout):
        return [found]
    values: list[object] = [getattr(found, name) for name in Frame.__slots__]
    return [(one.dtype, one.tobytes()) if isinstance(one, np.ndarray) else one for one in values]


@given(st.lists(changes, min_size=1, max_size=8))
def test_frames_of_a_stream_equal_frames_decoded_alone(stream: list[dict[str, object]]) -> None:
    decoder, frame = Decoder(), a_frame()
    for change in stream:
        frame = structs.replace(frame, **change)  # type: ignore[arg-type]
        message = encode_frame(frame)
        assert decoded(decoder, message) == decoded(None, message)


@given(st.data())
def test_damaged_frames_give_the_same_result_with_and_without_the_stream(data: st.DataObject) -> None:
    decoder = Decoder()
    message = bytearray(encode_frame(a_frame(seq=300, records=RECORDS)))
    decoder.decode(bytes(message))
    for _ in range(data.draw(st.integers(1, 3))):
        message[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(message[: data.draw(st.integers(0, len(message)))]) if data.draw(st.booleans()) else bytes(message)
    assert decoded(decoder, cut) == decoded(None, cut)


def test_a_stream_decoder_reuses_the_previous_frame() -> None:
    decoder = Decoder()
    first, second, third = (decoder.decode(encode_frame(a_frame(seq=seq))) for seq in (200, 201, 202))
    assert isinstance(first, Frame) and isinstance(second, Frame) and isinstance(third, Frame)
    assert (second.seq, third.seq) == (201, 202)
    assert second.node is first.node and third.counters_valid is second.counters_valid
    assert not any(one.flags.writeable for one in (third.gauges, third.counters, third.counters_valid, third.tier_ns))
