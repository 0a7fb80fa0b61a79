"""Data-parallel training of a small network in numpy, which can be stopped, moved and resumed.

Every rank computes the gradients of its own batch. A ring all-reduce over TCP sums them (reduce-scatter, then
all-gather), and every rank makes the same update. All results depend only on seed, world size and step, so an
interrupted training ends with the same weights as an uninterrupted one.

Ranks connect as with torchrun: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT. Without them, one process trains alone.

SIGTERM (with --checkpoint) may go to any rank. The next all-reduce carries the stop request, so that all ranks stop
after the same step; rank 0 writes the checkpoint, and all exit with 75.

Exit codes: 0 finished; 75 (EX_TEMPFAIL of sysexits.h) stopped on request with all work in the checkpoint, run again
to resume; 1 failed, with one line on standard error; 2 wrong command line.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import secrets
import select
import signal
import socket
import statistics
import sys
import time
from pathlib import Path
from typing import Any

# One thread a rank, before numpy reads it: ranks share the machine's processors, and sums keep their order.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt

from gangwatch import steps

INPUTS, CLASSES = 64, 10
LEARNING_RATE, MOMENTUM = 0.02, 0.9
MAGIC = b"train_dp checkpoint 1\n"
STOPPED = 75
CONNECT_SECONDS = 60.0
"""Maximum time in seconds to wait for the other ranks at the start."""

Vector = npt.NDArray[np.float32]


class TrainingError(Exception):
    """The training failed: exit code 1. The error text is printed as one line."""


class StoppedError(Exception):
    """SIGTERM arrived before the first step, so there is nothing to save."""


class StopRequest:
    """Flag that is set when SIGTERM arrives."""

    def __init__(self) -> None:
        self.made = False

    def listen(self) -> None:
        signal.signal(signal.SIGTERM, self._hear)

    def _hear(self, *_: object) -> None:
        self.made = True


# --- ring ------------------------------------------------------------------------------------------------------------


class Ring:
    """This rank's connections in the ring: it sends to the next rank and receives from the previous rank."""

    def __init__(self, rank: int, size: int, next_rank: socket.socket | None, previous: socket.socket | None) -> None:
        self.rank = rank
        self.size = size
        self._next = next_rank
        self._previous = previous
        for connection in (next_rank, previous):
            if connection is not None:
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # A host that vanishes sends no end of stream: ask after it once it has been silent for 10 s.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option, value in ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3)):
                    connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def all_reduce(self, vector: Vector) -> None:
        """Replace `vector` by its sum over all ranks. The result has the same bits on every rank and in every run."""
        if self.size == 1:
            return
        bounds = [len(vector) * part // self.size for part in range(self.size + 1)]
        parts = [vector[bounds[part] : bounds[part + 1]] for part in range(self.size)]
        received = np.empty(max(len(part) for part in parts), vector.dtype)
        for turn in range(self.size - 1):
            mine = parts[(self.rank - turn - 1) % self.size]
            into = received[: len(mine)]
            self._exchange(parts[(self.rank - turn) % self.size], into)
            mine += into
        for turn in range(self.size - 1):
            self._exchange(parts[(self.rank + 1 - turn) % self.size], parts[(self.rank - turn) % self.size])

    def broadcast(self, data: bytes) -> bytes:
        """Send rank 0's `data` around the ring, and return it on every rank."""
        if self.size == 1:
            return data
        length = np.array([len(data)], np.int64)
        if self.rank > 0:
            self._exchange(None, length)
        if self.rank < self.size - 1:
            self._exchange(length, None)
        if length[0] == 0:
            return b""
        content = np.frombuffer(data, np.uint8) if self.rank == 0 else np.empty(int(length[0]), np.uint8)
        if self.rank > 0:
            self._exchange(None, content)
        if self.rank < self.size - 1:
            self._exchange(content, None)
        return content.tobytes()

    def close(self) -> None:
        for connection in (self._next, self._previous):
            if connection is not None:
                connection.close()

    def _exchange(self, outgoing: npt.NDArray[Any] | None, incoming: npt.NDArray[Any] | None) -> None:
        """Send to the next rank and receive from the previous one at the same time.

        If all ranks sent first, they would block as soon as the socket buffers are full.
        """
        assert self._next is not None and self._previous is not None
        to_send = memoryview(b"") if outgoing is None else outgoing.data.cast("B")
        to_fill = memoryview(b"") if incoming is None else incoming.data.cast("B")
        while to_send or to_fill:
            poll = select.poll()
            if to_send:
                poll.register(self._next, select.POLLOUT)
            if to_fill:
                poll.register(self._previous, select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll()}
            neighbour = self.rank
            try:
                if to_send and self._next.fileno() in ready:
                    neighbour = (self.rank + 1) % self.size
                    to_send = to_send[self._next.send(to_send) :]
                if to_fill and self._previous.fileno() in ready:
                    neighbour = (self.rank - 1) % self.size
                    count = self._previous.recv_into(to_fill)
                    if count == 0:
                        raise TrainingError(f"lost rank {neighbour}: it closed the connection")
                    to_fill = to_fill[count:]
            except BlockingIOError:
                continue
            except OSError as error:
                raise TrainingError(f"lost rank {neighbour}: {error.strerror}") from None


def form_ring(rank: int, size: int, address: str, port: int, stop: StopRequest) -> Ring:
    """Return the ring. Ranks exchange their addresses through rank 0, then each connects to the next rank.

    Raises TrainingError if a rank does not respond, StoppedError if SIGTERM arrives.
    """
    if size == 1:
        return Ring(rank, size, None, None)
    deadline = time.monotonic() + CONNECT_SECONDS
    if rank == 0:
        table, listener = _gather(size, address, port, stop, deadline)
    else:
        table, listener = _join(rank, address, port, stop, deadline)
    with listener:
        try:
            host, next_port = table["places"][(rank + 1) % size]
            token = table["token"]
        except (KeyError, IndexError, TypeError, ValueError):
            raise TrainingError(f"who listens at {address}:{port} is not rank 0 of this training") from None
        next_rank = _connect(host, next_port, f"rank {(rank + 1) % size}", stop, deadline)
        _send_line(next_rank, {"token": token, "rank": rank})
        while True:
            previous, hello = _accept(listener, f"rank {(rank - 1) % size}", stop, deadline)
            if hello == {"token": token, "rank": (rank - 1) % size}:
                return Ring(rank, size, next_rank, previous)
            previous.close()


def _gather(
    size: int, address: str, port: int, stop: StopRequest, deadline: float
) -> tuple[dict[str, Any], socket.socket]:
    """Collect the listen addresses of all other ranks on rank 0, and send the complete table to each of them."""
    try:
        meeting = socket.create_server((address, port), backlog=size)
        listener = socket.create_server((address, 0))
    except OSError as error:
        raise TrainingError(f"cannot listen at {address}:{port}: {error.strerror}") from None
    places: dict[int, tuple[str, int]] = {0: listener.getsockname()[:2]}
    joined: list[socket.socket] = []
    with meeting:
        while len(places) < size:
            absent = ", ".join(str(other) for other in range(size) if other not in places)
            connection, hello = _accept(meeting, f"rank {absent}", stop, deadline)
            other, its_port = (hello.get("rank"), hello.get("port")) if isinstance(hello, dict) else (None, None)
            if isinstance(other, int) and isinstance(its_port, int) and 0 < other < size and other not in places:
                places[other] = (connection.getpeername()[0], its_port)
                joined.append(connection)
            else:
                connection.close()  # a stranger, or a rank that is here already
    table = {"token": secrets.token_hex(16), "places": [places[other] for other in range(size)]}
    for connection in joined:
        _send_line(connection, table)
        connection.close()
    return table, listener


def _join(
    rank: int, address: str, port: int, stop: StopRequest, deadline: float
) -> tuple[dict[str, Any], socket.socket]:
    """Send this rank's listen address to rank 0, and receive the addresses of all ranks."""
    with _connect(address, port, "rank 0", stop, deadline) as meeting:
        listener = socket.create_server((meeting.getsockname()[0], 0))
        _send_line(meeting, {"rank": rank, "port": listener.getsockname()[1]})
        table = _receive_line(meeting, "rank 0", stop, deadline)
    return table, listener


def _check(who: str, stop: StopRequest, deadline: float) -> None:
    if stop.made:
        raise StoppedError
    if time.monotonic() > deadline:
        raise TrainingError(f"{who} did not come within {CONNECT_SECONDS:g} s")


def _connect(host: str, port: int, who: str, stop: StopRequest, deadline: float) -> socket.socket:
    while True:
        _check(who, stop, deadline)
        try:
            return socket.create_connection((host, port), timeout=1.0)
        except OSError:
            time.sleep(0.02)


def _accept(listener: socket.socket, who: str, stop: StopRequest, deadline: float) -> tuple[socket.socket, Any]:
    """Accept connections until one sends a valid first line. Return this connection and the content of the line."""
    listener.settimeout(0.2)
    while True:
        _check(who, stop, deadline)
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        try:
            connection.settimeout(0.2)
            return connection, _receive_line(connection, who, stop, min(deadline, time.monotonic() + 5.0))
        except TrainingError:
            connection.close()


def _send_line(connection: socket.socket, said: object) -> None:
    try:
        connection.sendall(json.dumps(said).encode() + b"\n")
    except OSError as error:
        raise TrainingError(f"lost a rank at the start: {error.strerror}") from None


def _receive_line(connection: socket.socket, who: str, stop: StopRequest, deadline: float) -> Any:
    data = b""
    connection.settimeout(0.2)
    while not data.endswith(b"\n"):
        _check(who, stop, deadline)
        try:
            # Read no byte beyond the line: the first numbers of the training may already follow it.
            line, newline, _ = connection.recv(65536, socket.MSG_PEEK).partition(b"\n")
            more = connection.recv(len(line + newline)) if line or newline else b""
        except TimeoutError:
            continue
        except OSError as error:
            raise TrainingError(f"lost {who} at the start: {error.strerror}") from None
        if not more or len(data) > 2**24:
            raise TrainingError(f"lost {who} at the start: it closed the connection")
        data += more
    try:
        return json.loads(data)
    except ValueError:
        raise TrainingError(f"{who} says {data[:40]!r}") from None


# --- model -----------------------------------------------------------------------------------------------------------


class Model:
    """A network with two hidden layers and its synthetic training data. A fixed matrix computes the labels.

    weights, velocity: vectors of all parameters and of their momentum; each layer is a part of the vector.
    """

    def __init__(self, seed: int, hidden: int) -> None:
        random = np.random.default_rng(seed)
        shapes = [(INPUTS, hidden), (hidden, hidden), (hidden, CLASSES)]
        self.size = sum(rows * columns for rows, columns in shapes)
        self._shapes = shapes
        self._teacher = random.standard_normal((INPUTS, CLASSES), np.float32)
        self._seed = seed
        self.weights: Vector = np.empty(self.size, np.float32)
        self.velocity: Vector = np.zeros(self.size, np.float32)
        for layer in self._layers(self.weights):
            layer[:] = random.standard_normal(layer.shape, np.float32) * np.float32(np.sqrt(2.0 / layer.shape[0]))

    def _layers(self, vector: Vector) -> list[Vector]:
        layers: list[Vector] = []
        at = 0
        for rows, columns in self._shapes:
            layers.append(vector[at : at + rows * columns].reshape(rows, columns))
            at += rows * columns
        return layers

    def gradients(self, rank: int, step: int, batch: int, into: Vector) -> float:
        """Write the gradients of one batch's mean loss to `into` (float32) and return the loss.

        The batch depends only on seed, rank and step, so a resumed training gets the same data.
        """
        inputs = np.random.default_rng([self._seed, rank, step]).standard_normal((batch, INPUTS), np.float32)
        labels = np.argmax(inputs @ self._teacher, axis=1)
        first, second, third = self._layers(self.weights)
        into_first, into_second, into_third = self._layers(into)
        hidden = np.maximum(inputs @ first, 0)
        deeper = np.maximum(hidden @ second, 0)
        logits = deeper @ third
        logits -= logits.max(axis=1, keepdims=True)
        error = np.exp(logits)
        total = error.sum(axis=1, keepdims=True)
        rows = np.arange(batch)
        loss = float(np.mean(np.log(total[:, 0]) - logits[rows, labels]))
        error /= total
        error[rows, labels] -= 1
        error /= batch
        np.matmul(deeper.T, error, out=into_third)
        error = (error @ third.T) * (deeper > 0)
        np.matmul(hidden.T, error, out=into_second)
        error = (error @ second.T) * (hidden > 0)
        np.matmul(inputs.T, error, out=into_first)
        return loss

    def update(self, gradients: Vector) -> None:
        """Make one step of gradient descent with momentum."""
        self.velocity *= np.float32(MOMENTUM)
        self.velocity += gradients
        self.weights -= np.float32(LEARNING_RATE) * self.velocity


# --- checkpoint ------------------------------------------------------------------------------------------------------


def checkpoint_bytes(model: Model, seed: int, hidden: int, step: int) -> bytes:
    """Return the content of a checkpoint after `step` steps: a magic line, a line of JSON, the weights, the
    velocity."""
    content = model.weights.tobytes() + model.velocity.tobytes()
    header = {"hidden": hidden, "seed": seed, "sha256": hashlib.sha256(content).hexdigest(), "step": step}
    return MAGIC + json.dumps(header, sort_keys=True).encode() + b"\n" + content


def restore(model: Model, data: bytes, seed: int, hidden: int, where: Path) -> int:
    """Set the model's weights and velocity from a checkpoint, and return its number of steps.

    Raises TrainingError if the checkpoint is damaged or belongs to another training.
    """
    magic, _, rest = data.partition(b"\n")
    line, _, content = rest.partition(b"\n")
    try:
        if magic + b"\n" != MAGIC:
            raise ValueError("another file")
        header = json.loads(line)
        if hashlib.sha256(content).hexdigest() != header["sha256"]:
            raise ValueError("its content does not have the digest that it names")
        step, its_seed, its_hidden = int(header["step"]), int(header["seed"]), int(header["hidden"])
    except (ValueError, KeyError, TypeError) as error:
        raise TrainingError(f"{where}: no checkpoint of this program: {error}") from None
    if (its_seed, its_hidden) != (seed, hidden):
        raise TrainingError(f"{where}: of seed {its_seed}, hidden {its_hidden}; this is seed {seed}, hidden {hidden}")
    if len(content) != 2 * model.weights.nbytes:
        raise TrainingError(f"{where}: {len(content)} bytes of weights and velocity, not {2 * model.weights.nbytes}")
    model.weights[:] = np.frombuffer(content, np.float32, model.size)
    model.velocity[:] = np.frombuffer(content, np.float32, model.size, model.weights.nbytes)
    return step


def write_whole(path: Path, data: bytes) -> None:
    """Replace the file atomically. After a crash, the file has the old or the new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    with unfinished.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def resume(ring: Ring, model: Model, options: argparse.Namespace) -> int:
    """Restore the model from the checkpoint and return the number of steps done; 0 without a checkpoint.

    Rank 0 reads the checkpoint and sends it to the other ranks. Raises TrainingError.
    """
    data = b""
    if ring.rank == 0 and options.checkpoint is not None:
        try:
            data = options.checkpoint.read_bytes()
            restore(model, data, options.seed, options.hidden, options.checkpoint)
        except FileNotFoundError:
            data = b""
        except (OSError, TrainingError) as error:
            ring.broadcast(b"refused")
            raise TrainingError(str(error)) from None
    data = ring.broadcast(data)
    if data == b"refused":
        raise TrainingError("rank 0 cannot resume from its checkpoint")
    return restore(model, data, options.seed, options.hidden, Path("rank 0's checkpoint")) if data else 0


# --- training --------------------------------------------------------------------------------------------------------


def save(ring: Ring, model: Model, options: argparse.Namespace, step: int) -> None:
    """Write the checkpoint on rank 0, while all other ranks wait. If that fails, raise TrainingError on all ranks."""
    failure = ""
    if ring.rank == 0:
        try:
            write_whole(options.checkpoint, checkpoint_bytes(model, options.seed, options.hidden, step))
        except OSError as error:
            failure = f"{options.checkpoint}: {error.strerror}"
    said = ring.broadcast(failure.encode())
    if said:
        raise TrainingError(said.decode())


def train(ring: Ring, options: argparse.Namespace, stop: StopRequest) -> int:
    """Train to the last step or to a stop request; return the exit code."""
    model = Model(options.seed, options.hidden)
    first_step = step = resume(ring, model, options)
    reporter = steps.reporter()
    # The gradients are followed by two numbers: the loss, and the number of ranks with a stop request.
    summed = np.zeros(model.size + 2, np.float32)
    losses: list[float] = []
    seconds: list[float] = []
    stopping = False
    while step < options.steps and not stopping:
        begun = time.perf_counter()
        with reporter.step(number=step, tokens=options.batch):
            summed[-2] = model.gradients(ring.rank, step, options.batch, summed[:-2])
            summed[-1] = stop.made
            if options.pace_seconds > 0:
                time.sleep(options.pace_seconds)  # in place of an accelerator's compute time
            with reporter.wait():
                ring.all_reduce(summed)
            summed[:-1] /= np.float32(ring.size)
            model.update(summed[:-2])
        seconds.append(time.perf_counter() - begun)
        losses.append(float(summed[-2]))
        stopping = bool(summed[-1] > 0)
        step += 1
        if stopping or step == options.steps or step % options.checkpoint_every == 0:
            if options.checkpoint is not None:
                save(ring, model, options, step)
            if ring.rank == 0:
                print(f"step {step} of {options.steps}: loss {losses[-1]:.4f}, {seconds[-1] * 1e3:.1f} ms", flush=True)
    finished = step == options.steps
    if ring.rank == 0:
        digest = hashlib.sha256(model.weights.tobytes()).hexdigest()
        result = {
            "finished": finished,
            "steps": step,
            "steps_run": step - first_step,
            "resumed_from": first_step,
            "weights_sha256": digest,
            "loss": {"first": losses[0], "last": losses[-1]} if losses else None,
            "step_seconds": statistics.median(seconds) if seconds else None,
        }
        if options.result is not None:
            write_whole(options.result, json.dumps(result, indent=2).encode() + b"\n")
        print(f"{'finished' if finished else 'stopped'} at step {step}: weights {digest[:16]}", flush=True)
    return 0 if finished else STOPPED


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=500, help="steps of the whole training")
    parser.add_argument("--checkpoint", type=Path, help="resume from it if it exists; SIGTERM saves and stops")
    parser.add_argument("--checkpoint-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hidden", type=int, default=256, help="width of the two hidden layers")
    parser.add_argument("--batch", type=int, default=2048, help="samples per rank and step")
    parser.add_argument("--pace-seconds", type=float, default=0.0, help="pause in every step, as an accelerator's time")
    parser.add_argument("--result", type=Path, help="file for rank 0's result (JSON)")
    options = parser.parse_args(arguments)
    for name, least in (("steps", 1), ("checkpoint_every", 1), ("seed", 0), ("hidden", 1), ("batch", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name.replace('_', '-')} {getattr(options, name)}: at least {least}")
    if not 0 <= options.pace_seconds < 3600:
        parser.error(f"--pace-seconds {options.pace_seconds}: from 0 to an hour")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    stop = StopRequest()
    if options.checkpoint is not None:
        stop.listen()
    rank = 0
    try:
        try:
            rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
            address, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500"))
        except ValueError as error:
            raise TrainingError(f"RANK, WORLD_SIZE and MASTER_PORT are numbers: {error}") from None
        if not 0 <= rank < size:
            raise TrainingError(f"rank {rank} of {size}")
        ring = form_ring(rank, size, address, port, stop)
        try:
            return train(ring, options, stop)
        finally:
            ring.close()
    except StoppedError:
        return STOPPED
    except (TrainingError, OSError) as error:
        print(f"train_dp: rank {rank}: {error}", file=sys.stderr, flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
