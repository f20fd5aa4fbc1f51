"""One node from its files to its trained model: rounds, checkpoints, catching up, orders by hand."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch
from safetensors.torch import save as tensors_to_bytes
from torch import Tensor

from bymi.core.errors import require
from bymi.core.files import writing
from bymi.detection import REASONS, Verdict
from bymi.detection.verdict import SUSPENDED
from bymi.node import node_checkpoints as checkpoints
from bymi.node.event_log import LOG, Journal
from bymi.node.event_loop_thread import LoopThread
from bymi.node.grpc_transport import NetworkConfig
from bymi.node.identity import read_identity
from bymi.node.node_file import NodeFile, read_node_file
from bymi.node.own_data import OwnProblem, load_loss, load_model, load_samples, signature_of
from bymi.node.peer_network import PeerNetwork
from bymi.node.roster import Roster, read_roster
from bymi.node.round_session import BehindError, Session
from bymi.node.status_server import StatusServer
from bymi.problems import Shards
from bymi.runs.pack_state import StateShape
from bymi.training.algorithm import drsgd_bymi
from bymi.training.plan import Plan
from bymi.training.state import Snapshot, State

MODEL, CHECKPOINTS = "model.safetensors", "checkpoints"
DONE = "done"
_CLOSE = 2  # rounds behind which a node catches up by itself: neighbours still have the messages
_ASK = 2.0  # seconds for neighbours to say where they are


class StopError(Exception):
    """The owner wants the node to stop (SIGTERM, Ctrl-C)."""


@dataclass(eq=False)
class Progress:
    """What status, metrics and the live page show."""

    step: int = 0
    phase: str = "start"
    evaluation: dict[str, float] = field(default_factory=dict)  # losses and accuracy
    flagged: dict[str, dict[str, Any]] = field(default_factory=dict)  # by name: reason and statistic
    started: float = field(default_factory=time.monotonic)
    done: bool = False


class NodeRun:
    """The run of one node. `run()` returns when the run has ended or was stopped."""

    def __init__(self, path: Path, *, loop: LoopThread | None = None) -> None:
        self.file: NodeFile = read_node_file(path)
        folder = path.parent
        self.roster = roster = read_roster(folder / self.file.roster)
        identity = read_identity(folder / self.file.key)
        self.node = node = roster.find(identity.fingerprint)
        self.name = roster.members[node].name
        self.plan: Plan = roster.plan
        self.state_folder = folder / self.file.state
        self.problem, self.held_out = _own_problem(self.file, folder, roster, node)
        self.journal = Journal(self.state_folder, self.name)
        self.progress = Progress()
        dim, dtype = roster.model.dim, roster.model.torch_dtype
        config = NetworkConfig(node, identity, roster.members, roster.graph, roster.run_id, roster.limits, dim, dtype)
        self._loop, self._own_loop = loop or LoopThread(), loop is None
        self.session = Session(config, self._loop, self.journal.tell)
        self.orders: SimpleQueue[tuple[str, int]] = SimpleQueue()
        self._state: State | None = None
        self._stopping = False
        self._lock = threading.Lock()

    # What the owner can ask for while it runs.

    def model_bytes(self) -> bytes:
        """The current model as safetensors, by parameter name."""
        with self._lock:
            theta = self.problem.initial(torch.tensor([self.node])) if self._state is None else self._state.theta
        named = self.problem.state_dict(theta[0])
        words = {"run": self.roster.run_id, "node": self.name, "step": str(self.progress.step)}
        return bytes(tensors_to_bytes({name: value.contiguous().clone() for name, value in named.items()}, metadata=words))

    def order(self, what: str, name: str) -> None:
        """Ban or pardon a neighbour, by name, from the next round on."""
        names = {peer.name: number for number, peer in self.session.peers.items()}
        require(name in names, what, name, ", ".join(names))
        self.orders.put((what, names[name]))

    # The run.

    def run(self, say: Callable[[str], None] = lambda text: None) -> bool:
        """Run to the end; returns whether it was reached (False: stopped by the owner). `say` is told what to look at."""
        torch.set_num_threads(self.file.threads)
        tell, state = self.journal.tell, self._restored()
        server = StatusServer(self, self.file.status)
        port = self.session.start(self.file.listen)
        address = self.state_folder / "status-url"
        address.write_text(server.url + "\n", encoding="utf-8")
        tell("start", run=self.roster.run_id, step=0 if state is None else state.step, listens=port, status=server.url)
        names = ", ".join(peer.name for peer in self.session.peers.values())
        say(f"listens on port {port} for {names}; status page {server.url}; log {self.state_folder / LOG}")
        try:
            self.session.connect()
            with self._stopped_by_signals():
                self._rounds(self._joined(state))
            self._end()
            return True
        except StopError:
            self._checkpoint()
            tell("stopped", step=self.progress.step)
            self.session.linger(min(_ASK, self.roster.limits.deadline))
            return False
        finally:
            address.unlink(missing_ok=True)
            server.close()
            self.session.close()
            if self._own_loop:
                self._loop.close()

    @contextlib.contextmanager
    def _stopped_by_signals(self) -> Iterator[None]:
        """Within it SIGTERM and SIGINT raise a StopError: at once while the node waits for others, else after the round.

        In between, the update history may already have the round that the parameters do not have yet.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: object) -> None:
            self._stopping = True
            if self._loop.waiting:
                raise StopError

        before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _restored(self) -> State | None:
        start = self.problem.initial(torch.tensor([self.node]))
        columns = len(self.session.senders)
        frame = StateShape(self.plan, self.roster.size, self.roster.size, start.shape[1], start.dtype, columns)
        say = lambda text: self.journal.tell("restored", reason=text)  # noqa: E731
        state = checkpoints.newest(self.state_folder / CHECKPOINTS, self.roster.run_id, frame, say)
        if state is not None:
            self.journal.tell("restored", step=state.step, phase=state.phase)
            self._state = state
        return state

    def _joined(self, state: State | None) -> State | None:
        """The state to begin with: at the median round of the neighbours, if they are far ahead."""
        steps = self.session.neighbour_steps(min(_ASK, self.roster.limits.deadline))
        median = statistics.median_low(steps) if 2 * len(steps) > len(self.session.senders) else 0
        if median <= (0 if state is None else state.step) + _CLOSE:
            return state
        return self._caught_up(state, median)

    def _caught_up(self, state: State | None, step: int) -> State:
        step = min(step, self.plan.steps - 1)
        self.journal.tell("behind", step=0 if state is None else state.step, joins=step)
        return checkpoints.state_at(state, step, self.problem, self.node, self.plan, self.roster.size)

    def _rounds(self, state: State | None) -> None:
        network = PeerNetwork.of(self.session)
        while True:
            if state is not None:
                # A detection sends parameters under the number of the round that comes after it.
                detector, judged = self.plan.detector, state.phase == "detection"
                sent = judged and detector is not None and (self.plan.watch is not None or detector.point == "receiver")
                at = state.step if state.judged is None else state.judged
                self.session.move_to(at, {"parameters": int(sent)})
                self.session.started = True
            try:
                for snapshot in drsgd_bymi(self.problem, network, self.plan, state=state):
                    assert snapshot.state is not None
                    self._see(snapshot)
                    pardoned = self._obey(snapshot.state)
                    if pardoned is not None:
                        state = pardoned
                        break
                else:
                    return
            except BehindError as behind:
                with self._lock:
                    state = self._caught_up(self._state, behind.step)

    def _see(self, snapshot: Snapshot) -> None:
        """Record a round: progress, verdicts, a checkpoint now and then."""
        progress, every = self.progress, self.file.evaluate_every
        with self._lock:
            self._state = snapshot.state
        progress.step, progress.phase = snapshot.step, snapshot.phase
        if snapshot.verdict is not None:
            self._record(snapshot, snapshot.verdict)
        if snapshot.step % every == 0 or snapshot.step == self.plan.steps:
            progress.evaluation = self.problem.evaluate(snapshot.theta[0], self.held_out)
            self.journal.tell("round", step=snapshot.step, phase=snapshot.phase, **progress.evaluation)
        if snapshot.verdict is not None or snapshot.step % self.file.checkpoint_every == 0:
            self._checkpoint()
        if self._stopping:
            raise StopError

    def _record(self, snapshot: Snapshot, verdict: Verdict) -> None:
        """Audit what a detection says of each neighbour."""
        figures = verdict.statistic if verdict.statistic.numel() else verdict.scores
        earlier, self.progress.flagged = self.progress.flagged, {}
        for number, peer in self.session.peers.items():
            flagged, reason = bool(verdict.flagged[0, number]), REASONS[int(verdict.reason[0, number])]
            said = {"reason": reason, "statistic": _number(figures[0, number]), "step": snapshot.step}
            score = _number(verdict.scores[0, number])
            self.journal.tell("verdict", peer=number, name=peer.name, flagged=flagged, score=score, **said)
            if flagged:
                # While a flag lasts, the reason for which it was given is shown.
                self.progress.flagged[peer.name] = earlier.get(peer.name, said) if reason == SUSPENDED else said

    def _obey(self, state: State) -> State | None:
        """Carry out orders; returns a state without the flags of pardoned nodes, if there were any."""
        changed: State | None = None
        while not self.orders.empty():
            what, number = self.orders.get()
            peer = self.session.peers[number]
            self.journal.tell(what, peer=number, name=peer.name, step=state.step)
            peer.banned = what == "ban"
            if what == "pardon":
                self._loop.call(peer.readmit)
                self.progress.flagged.pop(peer.name, None)
                if state.flagged is not None and bool(state.flagged[0, number]):
                    state = changed = _without_flag(state.copy(), number)
        return changed

    def _checkpoint(self) -> None:
        with self._lock:
            state = self._state
        if state is None:
            return
        try:
            checkpoints.save(self.state_folder / CHECKPOINTS, self.roster.run_id, state)
        except OSError as problem:
            self.journal.tell("checkpoint failed", step=state.step, reason=problem.strerror or str(problem))

    def _end(self) -> None:
        """Write the model, and stay until neighbours that are a little behind have ended, too."""
        self._checkpoint()
        try:
            with writing(self.state_folder / MODEL) as file:
                file.write(self.model_bytes())
        except OSError as problem:
            self.journal.tell("checkpoint failed", step=self.plan.steps, reason=problem.strerror or str(problem))
        self.progress.done = True
        self.journal.tell("end", step=self.plan.steps, **self.progress.evaluation)
        with contextlib.suppress(BehindError):
            self.session.exchange(DONE, {}, self.session.senders, step=self.plan.steps)
        self.session.linger(min(_ASK, self.roster.limits.deadline))


def _number(value: Tensor) -> float | None:
    """A finite number for JSON, None for NaN and infinities."""
    return float(value) if bool(torch.isfinite(value)) else None


def _without_flag(state: State, number: int) -> State:
    """The state without the flag of one neighbour, and without its suspension."""
    assert state.flagged is not None
    flagged = state.flagged.clone()
    flagged[0, number] = False
    record = state.record
    if record is not None:
        left, strikes, recent = record.left.clone(), record.strikes.clone(), record.recent.clone()
        left[0, number] = strikes[0, number] = recent[0, number] = 0
        record = replace(record, left=left, strikes=strikes, recent=recent)
    return replace(state, flagged=flagged, record=record)


def _own_problem(file: NodeFile, folder: Path, roster: Roster, node: int) -> tuple[OwnProblem, Shards | None]:
    """The problem of the node's own data, and its held-out samples."""
    sys.path.append(os.getcwd())  # for module:object; last, so that nothing installed is shadowed
    model, dtype = load_model(file.model), roster.model.torch_dtype
    mine = signature_of(model)
    require(mine == roster.model, "model", mine, f"{roster.model}, as the roster has it")
    samples = load_samples(file.data, folder, "data", dtype)
    held_out = None if file.held_out is None else load_samples(file.held_out, folder, "held_out", dtype)
    seed = int(roster.settings["seed"])
    problem = OwnProblem(model, load_loss(file.loss), samples, node, seed, clip=file.clip, noise=file.noise)
    return problem, held_out
