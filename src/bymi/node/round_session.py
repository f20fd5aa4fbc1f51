"""Rounds of one node with its neighbours: pull with deadlines, suspicion, reuse, commitments, questions."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from torch import Tensor

from bymi.node import wire
from bymi.node.event_loop_thread import LoopThread
from bymi.node.grpc_transport import Answer, Miss, NetworkConfig, Tell, Transport
from bymi.node.peer_record import Peer
from bymi.node.recent_messages import KEPT, GoneError
from bymi.node.wire import ASK, GET, NONCE, Body, Expected, Refused, Request, Tag, encode

QUESTION, ANSWER, COMMIT, REACHED = "question", "answer", "commitment of ", "reached "
_DIGITS = 10  # of a round number
_POLL = 0.01  # seconds


class BehindError(Exception):
    """Most neighbours have passed the round that this node is in. `step`: median of the rounds in which they say they are."""

    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


@dataclass(eq=False)
class _Questions:
    """Questions of one detection. By asker: digest of its question with the commitment to the answer, and the answer."""

    answer: Callable[[int, Tensor], bytes]
    asked: dict[int, tuple[bytes, asyncio.Task[bytes]]] = field(default_factory=dict)
    answers: dict[int, bytes] = field(default_factory=dict)


class Session:
    """Communication of one node. Methods are called from one thread, which waits for the event loop in another."""

    def __init__(self, config: NetworkConfig, loop: LoopThread, tell: Tell) -> None:
        self.config, self.loop, self.tell = config, loop, tell
        graph, node, limits = config.graph, config.node, config.limits
        near = graph.hears[node] | graph.hears[:, node]
        self.senders: list[int] = graph.hears[node].nonzero().flatten().tolist()
        numbers: list[int] = near.nonzero().flatten().tolist()
        self.peers = {number: Peer(number, config.members[number], limits.strikes) for number in numbers}
        self.transport = Transport(config, self.peers, tell, self._on_question)
        self.step = 0
        self.started = False  # all neighbours were heard once, or waited for long enough
        self._last: Tag | None = None  # of the last exchange
        self._numbers: Counter[str] = Counter()
        self._exchanges: Counter[str] = Counter()
        self._questions: dict[Tag, _Questions] = {}
        self._probes: dict[int, asyncio.Task[None]] = {}  # of suspects, by number
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="bymi answers")

    def start(self, listen: str) -> int:
        """Listen at HOST:PORT; returns the port. Port 0: any that is free."""
        return self.loop.wait(self.transport.start(listen))

    def connect(self, endpoints: Mapping[int, str] | None = None) -> None:
        """Open a channel to every node that this one hears, at the endpoints of the roster or at others."""
        given = {number: self.peers[number].member.endpoint for number in self.senders} if endpoints is None else endpoints
        self.loop.wait(self.transport.connect({number: given[number] for number in self.senders}))

    def close(self) -> None:
        """Close server and channels."""
        self._worker.shutdown(wait=False, cancel_futures=True)
        self.loop.wait(self._close())

    async def _close(self) -> None:
        for probe in self._probes.values():
            probe.cancel()
        await self.transport.close()

    def linger(self, seconds: float) -> None:
        """Wait, for so long at most, until all neighbours that are waited for have pulled the last message."""
        tags = {self._last, self._last and self._last._replace(kind=REACHED + self._last.kind)}

        def is_served(peer: Peer) -> bool:
            return peer.suspected or peer.banned or peer.pulled in tags

        async def all_served() -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while not all(map(is_served, self.peers.values())):
                        await asyncio.sleep(_POLL)

        self.loop.wait(all_served())

    def move_to(self, step: int, numbers: Mapping[str, int] | None = None) -> None:
        """Continue at a round, after a restart; `numbers`: messages of each kind that were made in it before."""
        self.step, self._numbers = step, Counter(numbers)
        self.loop.call(self.transport.outbox.move_to, step)

    def tag(self, kind: str, step: int | None = None) -> Tag:
        """The name of the next message of a kind."""
        if step is not None and step != self.step:
            self.step, self._numbers = step, Counter()
        number = self._numbers[kind]
        self._numbers[kind] += 1
        return Tag(kind, self.step, number)

    # One exchange.

    def exchange(
        self,
        kind: str,
        rows: Mapping[str, Tensor],
        senders: Sequence[int],
        *,
        step: int | None = None,
        each: Mapping[int, Mapping[str, Tensor]] | None = None,
        sealed: bool = False,
        reuse: bool = False,
    ) -> dict[int, dict[str, Tensor] | None]:
        """Vectors by name of each sender, None for no message that can be used, while others pull `rows`, or `each` their own.

        Neighbours that are not among the senders are waited for as well: one that this node does not hear may hear this node,
        and must not be left behind. With `step`, the round, a BehindError is raised if most senders have passed it. Without,
        the exchange is one more of this round: a node that comes back may find it gone, while the round is not.
        """
        tag = self._last = self.tag(kind, step)
        self._exchanges[kind] += 1
        expected = {name: (row.dtype, len(row)) for name, row in rows.items()}
        body = encode(rows) if each is None else {number: encode(given) for number, given in each.items()}
        swap = self._swap_sealed if sealed else self._swap
        bodies = self.loop.wait(swap(tag, body, senders, wire.body_limit(expected)))
        ahead = [miss.step for miss in bodies.values() if isinstance(miss, Miss) and miss.reason == "gone"]
        steps = [one for one in ahead if one is not None]
        if step is not None and 2 * len(steps) > len(self.senders):
            raise BehindError(int(statistics.median_low(steps)))
        return {number: self._read(number, tag, answer, expected, reuse=reuse) for number, answer in bodies.items()}

    def _read(self, number: int, tag: Tag, answer: Answer, expected: Expected, *, reuse: bool) -> dict[str, Tensor] | None:
        """The vectors of one answer; those of an earlier one where none came in time; None for none that can be used."""
        peer, exchange = self.peers[number], self._exchanges[tag.kind]
        if isinstance(answer, Body):
            try:
                vectors = wire.decode(answer, expected)
                if not all(wire.is_finite(vector) for vector in vectors.values()):
                    raise Refused("not finite")
            except Refused as refused:
                answer = refused
            else:
                peer.counts["heard"] += 1
                peer.heard_at = max(peer.heard_at, tag.step)
                if reuse:
                    peer.keep(tag.kind, exchange, vectors)
                return vectors
        if isinstance(answer, Refused):
            peer.counts["refused messages"] += 1
            peer.counts[f"refused: {answer.reason}"] += 1
            self.tell("refused message", peer=number, reason=answer.reason, kind=tag.kind, step=tag.step)
            return None
        peer.counts["missing"] += 1
        earlier = peer.reusable(tag.kind, exchange, self.config.limits.reuse) if reuse and not peer.banned else None
        if earlier is not None:
            peer.counts["reused"] += 1
        event = "reused message" if earlier is not None else "missing message"
        self.tell(event, peer=number, reason=answer.reason, kind=tag.kind, step=tag.step)
        return earlier

    async def _swap(
        self, tag: Tag, body: bytes | dict[int, bytes], senders: Sequence[int], limit: int, keep: int = KEPT
    ) -> dict[int, Answer]:
        """Serve a message. Answers of senders, once other neighbours have reached this point, too, or their time is over."""
        self.transport.outbox.publish(tag, body, keep=keep)
        reached = tag._replace(kind=REACHED + tag.kind)
        self.transport.outbox.publish(reached, b"1")
        others = [number for number in self.senders if number not in senders]
        answers, _ = await asyncio.gather(self._pull(tag, senders, limit), self._pull(reached, others, 1))
        self.started = True
        return answers

    async def _swap_sealed(
        self, tag: Tag, body: bytes | dict[int, bytes], senders: Sequence[int], limit: int
    ) -> dict[int, Answer]:
        """Commitments of all, then openings. Nothing is opened before all commitments are here or their time is over."""
        opening = os.urandom(NONCE) + bytes(body)
        try:
            before, mine = tag._replace(kind=COMMIT + tag.kind), self._commitment(tag, opening)
            committed = await self._swap(before, mine, senders, wire.COMMITMENT, keep=2)
        finally:
            self.transport.outbox.publish(tag, opening, keep=2)
        return await self._open(tag, committed, limit)

    def _commitment(self, tag: Tag, opening: bytes) -> bytes:
        return wire.commitment(self.config.run_id, tag, self.config.identity.fingerprint, opening)

    async def _open(self, tag: Tag, committed: Mapping[int, Answer], limit: int) -> dict[int, Answer]:
        """Bodies of the senders that committed to one, checked; others stay as they are."""
        known = {number: answer for number, answer in committed.items() if isinstance(answer, Body)}
        opened = await self._pull(tag, list(known), limit + NONCE)
        for number, opening in opened.items():
            if isinstance(opening, Body):
                sender = self.peers[number].member.fingerprint
                try:
                    opened[number] = wire.open_commitment(opening, known[number], self.config.run_id, tag, sender)
                except Refused as refused:
                    opened[number] = refused
        return {**committed, **opened}

    async def _pull(
        self, tag: Tag, senders: Sequence[int], limit: int, method: str = GET, body: bytes = b""
    ) -> dict[int, Answer]:
        """Answers of senders, of `limit` bytes at most, all called at once."""
        answers = await asyncio.gather(*(self._fetch(self.peers[number], tag, limit, method, body) for number in senders))
        return dict(zip(senders, answers, strict=True))

    async def _fetch(self, peer: Peer, tag: Tag, limit: int, method: str, body: bytes) -> Answer:
        """One answer, waited for up to two deadlines if the neighbour says that it is alive, one if it is silent."""
        if peer.banned:
            return Miss("banned")
        if peer.suspected:
            if method == GET and peer.probe_due():
                self._probe(peer, tag, limit)
            return Miss("suspected")
        limits, loop = self.config.limits, asyncio.get_running_loop()
        if not self.started and tag.step == 0:
            end = loop.time() + limits.start_wait
            while (left := end - loop.time()) > 0:
                answer = await self.transport.fetch(peer.number, method, tag, left, limit, body)
                if not isinstance(answer, Miss) or not answer.late:
                    break
        else:
            for _ in range(2):
                answer = await self.transport.fetch(peer.number, method, tag, limits.deadline, limit, body)
                if not isinstance(answer, Miss) or not answer.late:
                    break
                if peer.strike():
                    self.tell("suspected", peer=peer.number, reason=answer.reason, step=tag.step)
                    break
                if answer.reason != "pending":
                    break
        if isinstance(answer, Body):
            peer.in_time()
        return answer

    def _probe(self, peer: Peer, tag: Tag, limit: int) -> None:
        """Look in the background whether a suspect answers within a full deadline."""

        async def probe() -> None:
            answer = await self.transport.fetch(peer.number, GET, tag, self.config.limits.deadline, limit)
            if isinstance(answer, Body) or answer.reason == "gone":
                peer.readmit()
                self.tell("readmitted", peer=peer.number, step=self.step)

        if peer.number not in self._probes:
            self._probes[peer.number] = task = asyncio.get_running_loop().create_task(probe())
            task.add_done_callback(lambda _: self._probes.pop(peer.number))

    # Questions.

    def open_questions(self, tag: Tag, answer: Callable[[int, Tensor], bytes]) -> _Questions:
        """Answer the questions of neighbours under a tag from now on, with `answer(asker, point)`."""

        questions = _Questions(answer)

        async def begin() -> None:
            self._questions = {tag: questions}  # late questions of the last detection are not answered any more
            self.transport.outbox.publish(tag._replace(kind=ANSWER), {}, keep=1)

        self.loop.wait(begin())
        return questions

    def ask(
        self, tag: Tag, questions: _Questions, point: Tensor | None, expected: Expected
    ) -> dict[int, dict[str, Tensor] | None]:
        """Answers of all neighbours at this node's point, opened once all have committed to theirs. None: ask nothing."""
        answers, outbox = tag._replace(kind=ANSWER), self.transport.outbox
        self._exchanges[ANSWER] += 1

        async def collect() -> dict[int, Answer]:
            try:
                if point is None:
                    return {}
                committed = await self._pull(tag, self.senders, wire.COMMITMENT, ASK, encode({"point": point}))
            finally:
                outbox.publish(answers, questions.answers, keep=1)
            return await self._open(answers, committed, wire.body_limit(expected))

        bodies = self.loop.wait(collect())
        return {number: self._read(number, answers, answer, expected, reuse=False) for number, answer in bodies.items()}

    async def _on_question(self, asker: int, request: Request) -> bytes:
        """The commitment to the answer to a question. Each neighbour may ask one question per detection."""
        tag = request.tag
        if tag.kind != QUESTION:
            raise Refused("wrong words")
        while (questions := self._questions.get(tag)) is None:
            if self.transport.outbox.has_passed(tag._replace(kind=ANSWER)):
                raise GoneError(tag)
            await self.transport.outbox.news()
        digest = hashlib.sha256(request.body).digest()
        if asker not in questions.asked:
            # Its own task: a caller that hangs up does not cancel it, and gets the same commitment when it calls again.
            questions.asked[asker] = digest, asyncio.get_running_loop().create_task(self._answer(asker, request, questions))
        first, answer = questions.asked[asker]
        if first != digest:
            raise Refused("asked twice")
        return await asyncio.shield(answer)

    async def _answer(self, asker: int, request: Request, questions: _Questions) -> bytes:
        """Compute the answer to a question in another thread, and put it among the sealed ones. Returns the commitment."""
        config, tag, peer = self.config, request.tag._replace(kind=ANSWER), self.peers[asker]
        point = wire.decode(request.body, {"point": (config.dtype, config.dim)})["point"]
        if not wire.is_finite(point):
            raise Refused("not finite")
        announced = peer.last.get("parameters") if peer.heard_at == tag.step else None
        if announced is not None and not torch.equal(announced[1]["parameters"], point):
            raise Refused("a point other than its parameters")
        body = await asyncio.get_running_loop().run_in_executor(self._worker, questions.answer, asker, point)
        opening = os.urandom(NONCE) + body
        questions.answers[asker] = opening
        self.transport.outbox.move_to(tag.step)
        return self._commitment(tag, opening)

    # Where others are.

    def neighbour_steps(self, seconds: float) -> list[int]:
        """Rounds in which neighbours say they are, of those that answer in time."""
        tag = Tag(wire.STATUS, 0, 0)

        async def collect() -> list[Answer]:
            peers = [number for number in self.senders if not self.peers[number].banned]
            return await asyncio.gather(*(self.transport.fetch(number, GET, tag, seconds, _DIGITS) for number in peers))

        found = [bytes(answer) for answer in self.loop.wait(collect()) if isinstance(answer, Body)]
        return [int(text) for text in found if text.isdigit()]
