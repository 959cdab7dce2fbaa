"""Which tokens the next step computes: continuous batching, admission by blocks, prompts in chunks, preemption.

A step decodes one token of every running sequence that has one to decode, and computes prompt tokens within a budget of
their own, best rank first. Decoding therefore never waits for another request's long prompt, and prompts advance in
every step. When the cache runs out of blocks, the sequence that ranks last gives its own back and waits; its tokens are
computed again when it is admitted again.

The policy is that of both engines: tests/scheduling/README.md tells it, and a table of steps beside it is run against
this class.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping

from pocketllm.types import TokenLogprob
from pocketllm_torch.engine.block_pool import BlockPool
from pocketllm_torch.engine.plan import Chunk, StepPlan
from pocketllm_torch.engine.sequence import Phase, Sequence

# The fewest tokens that a second prompt of a step is given: a long one gains nothing from the end of a budget.
_SMALLEST_CHUNK = 64
# Rows of prompt log probabilities per step: [rows, vocab] floats are the largest tensors there are.
_MAX_PROMPT_LOGPROB_ROWS = 64
_UNLIMITED = 1 << 60


class Scheduler:
    """Owns the waiting and running sequences and their blocks. What changes in a sequence is changed here.

    Args:
        pool: the cache's blocks.
        max_num_sequences: sequences that may run together.
        prefill_token_budget: prompt tokens that one step may compute; 0: whole prompts.
        prefill_tokens_beside_decodes: the same for steps in which sequences decode; 0: as many as the budget.
        chunk_tokens: the longest chunk of one prompt in one step; 0: as long as the budget.
        fixed_chunks: cut prompts at multiples of ``chunk_tokens``, also beside other work, and replay generated tokens
            one by one, as they were first computed. For bit-identical results under any load.

    Threads: only the engine's thread calls it.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_num_sequences: int,
        prefill_token_budget: int,
        prefill_tokens_beside_decodes: int = 0,
        chunk_tokens: int = 0,
        fixed_chunks: bool = False,
    ) -> None:
        if fixed_chunks and not chunk_tokens:
            raise ValueError("fixed_chunks needs the length of a chunk")
        self.pool = pool
        self.max_num_sequences = max_num_sequences
        self.prefill_token_budget = prefill_token_budget
        self.prefill_tokens_beside_decodes = prefill_tokens_beside_decodes
        self.chunk_tokens = chunk_tokens
        self.fixed_chunks = fixed_chunks
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._free_slots = list(range(max_num_sequences - 1, -1, -1))
        self.num_preemptions = 0
        self._block_copies: list[tuple[int, int]] = []
        self._slot_copies: list[tuple[int, int]] = []

    def add(self, sequences: list[Sequence]) -> None:
        """Queue the choices of one request."""
        for sequence in sequences:
            self._enqueue(sequence)

    def decoding(self) -> list[Sequence]:
        """The running sequences that have one token to compute."""
        return [sequence for sequence in self.running if sequence.is_decoding]

    def schedule(self, drafts: Mapping[int, list[int]] | None = None) -> StepPlan:
        """Choose the next step's work and reserve the blocks it writes to; empty when nothing can run.

        Args:
            drafts: tokens proposed behind the newest one of decoding sequences, by handle. Where room is short, a
                proposal is cut: it never costs another sequence its blocks.
        """
        plan = StepPlan(block_copies=self._block_copies, slot_copies=self._slot_copies)
        self._block_copies, self._slot_copies = [], []
        preemptions_before = self.num_preemptions
        for sequence in self.decoding():
            if sequence.phase is Phase.RUNNING and self._grow(sequence):
                plan.decodes.append(sequence)
        if drafts:
            plan.drafts = self._fitting(drafts, plan.decodes)
        budget = self._budget(beside_decodes=bool(plan.decodes))
        for sequence in self.running:
            if not sequence.is_decoding:
                budget = self._add_chunk(plan, sequence, budget)
        # Blocks given up in this step are for those that run; a newcomer would take them straight back.
        if self.num_preemptions == preemptions_before:
            self._admit(plan, budget)
        return plan

    def advance(self, plan: StepPlan) -> None:
        """Note that the plan's positions are computed. Proposals count once they are committed."""
        for sequence in plan.decodes:
            sequence.num_computed += 1
        for chunk in plan.chunks:
            chunk.sequence.num_computed = chunk.start + chunk.length

    def keep_prompt_logprobs(self, sequence: Sequence, entries: list[TokenLogprob]) -> None:
        sequence.prompt_logprobs += entries

    def take_prompt_report(self, sequence: Sequence) -> list[TokenLogprob] | None:
        """What is known of the prompt, once: before the first token; then None."""
        if sequence.prompt_reported:
            return None
        sequence.prompt_reported = True
        entries, sequence.prompt_logprobs = sequence.prompt_logprobs, []
        return entries

    def commit(self, sequence: Sequence, tokens: list[int]) -> None:
        """Append the tokens that a step gave: sampled ones, all but the last of which the step has computed too.

        Blocks that only rejected proposals needed are given back.
        """
        sequence.tokens += tokens
        sequence.num_computed += len(tokens) - 1
        num_kept = self.pool.blocks_for(sequence.num_computed)
        self.pool.release(sequence.blocks[num_kept:])
        del sequence.blocks[num_kept:]

    def fork(self, leader: Sequence) -> list[Sequence]:
        """Give the leader's computed prompt to the choices that wait for it.

        Each follower that finds a slot and a block runs from now on, and is returned. Its copies of the leader's last,
        partly filled block and of the leader's slot are a part of the next step. Followers left over compute the prompt
        themselves.
        """
        followers, leader.group.followers = leader.group.followers, []
        forked: list[Sequence] = []
        num_prompt = leader.num_prompt_tokens
        num_full, num_partial = divmod(num_prompt, self.pool.block_size)
        for follower in followers:
            room = len(self.running) < self.max_num_sequences and self.pool.num_free > len(self.running)
            if follower.phase is not Phase.WAITING:
                continue
            if not room:
                self._enqueue(follower)
                continue
            shared = leader.blocks[:num_full]
            self.pool.share(shared)
            follower.blocks = list(shared)
            if num_partial:
                follower.blocks += self.pool.allocate(1)
                self._block_copies.append((leader.blocks[num_full], follower.blocks[num_full]))
            follower.num_computed = num_prompt
            follower.prompt_logprobs = list(leader.prompt_logprobs)
            self._run(follower)
            self._slot_copies.append((leader.slot, follower.slot))
            forked.append(follower)
        return forked

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and free its blocks."""
        group = sequence.group
        if sequence in group.followers:
            group.followers.remove(sequence)
        elif sequence.phase is Phase.RUNNING:
            self.running.remove(sequence)
        elif sequence.phase is Phase.WAITING:
            self.waiting.remove(sequence)
        self._release(sequence)
        sequence.phase = Phase.DONE
        if group.leader is sequence:
            group.leader = None
            orphans, group.followers = group.followers, []
            self.add(orphans)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + sum(len(s.group.followers) for s in self._leaders())

    def _leaders(self) -> list[Sequence]:
        return [sequence for sequence in self.running + self.waiting if sequence.group.leader is sequence]

    def _enqueue(self, sequence: Sequence) -> None:
        sequence.phase = Phase.WAITING
        insort(self.waiting, sequence, key=lambda item: item.rank)

    def _run(self, sequence: Sequence) -> None:
        sequence.phase = Phase.RUNNING
        sequence.slot = self._free_slots.pop()
        insort(self.running, sequence, key=lambda item: item.rank)

    def _grow(self, sequence: Sequence) -> bool:
        """Make room for the next position; False when the sequence itself had to give way."""
        while sequence.num_computed >= len(sequence.blocks) * self.pool.block_size:
            if self.pool.num_free:
                sequence.blocks += self.pool.allocate(1)
                continue
            victim = self.running[-1]
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _fitting(self, drafts: Mapping[int, list[int]], decodes: list[Sequence]) -> dict[int, list[int]]:
        """What of the proposals fits in the step, in the free blocks and in each sequence's number of tokens."""
        fitting: dict[int, list[int]] = {}
        for sequence in decodes:
            length = min(len(drafts.get(sequence.handle, ())), sequence.max_tokens - sequence.num_generated - 1)
            if length < 1:
                continue
            # One block per running sequence stays free: a proposal is not worth a preemption in the next step.
            spare = max(0, self.pool.num_free - len(self.running))
            positions = (len(sequence.blocks) + spare) * self.pool.block_size - sequence.num_computed - 1
            length = min(length, positions)
            if length < 1:
                continue
            missing = self.pool.blocks_for(sequence.num_computed + 1 + length) - len(sequence.blocks)
            sequence.blocks += self.pool.allocate(max(0, missing))
            fitting[sequence.handle] = drafts[sequence.handle][:length]
        return fitting

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._release(sequence)
        sequence.num_computed = 0
        sequence.prompt_logprobs.clear()
        self.num_preemptions += 1
        self._enqueue(sequence)

    def _release(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks = []
        if sequence.slot >= 0:
            self._free_slots.append(sequence.slot)
            sequence.slot = -1

    def _admit(self, plan: StepPlan, budget: int) -> None:
        position = 0
        while position < len(self.waiting) and budget > 0 and len(self.running) < self.max_num_sequences:
            sequence = self.waiting[position]
            group = sequence.group
            if sequence.num_generated == 0 and self._waits_for(group.leader, sequence):
                self.waiting.pop(position)
                group.followers.append(sequence)
                continue
            needed = self.pool.blocks_for(len(sequence.tokens))
            # One spare block per running sequence keeps the newcomer from being thrown out at once.
            if needed + len(self.running) > self.pool.num_free and self.running:
                return
            if self.fixed_chunks and plan.chunks and self._fixed_length(sequence) > budget:
                return
            self.waiting.pop(position)
            sequence.blocks = self.pool.allocate(needed)
            if group.leader is None and sequence.num_generated == 0:
                group.leader = sequence
            self._run(sequence)
            budget = self._add_chunk(plan, sequence, budget)

    @staticmethod
    def _waits_for(leader: Sequence | None, sequence: Sequence) -> bool:
        """True while another choice of the same request is computing the prompt that both have."""
        if leader is None or leader is sequence:
            return False
        return leader.phase is not Phase.DONE and leader.num_generated == 0

    def _budget(self, *, beside_decodes: bool) -> int:
        budget = self.prefill_token_budget or _UNLIMITED
        if beside_decodes and self.prefill_tokens_beside_decodes:
            return min(budget, self.prefill_tokens_beside_decodes)
        return budget

    def _fixed_length(self, sequence: Sequence) -> int:
        """The next chunk's length where chunks are fixed: to the next multiple, or one token that was generated."""
        start = sequence.num_computed
        if start >= sequence.num_prompt_tokens:
            return 1
        end = (start // self.chunk_tokens + 1) * self.chunk_tokens
        return min(end, sequence.num_prompt_tokens) - start

    def _length(self, plan: StepPlan, sequence: Sequence, budget: int) -> int:
        """How many of its tokens a sequence may compute in this step; 0: none."""
        if self.fixed_chunks:
            length = self._fixed_length(sequence)
            return 0 if plan.chunks and length > budget else length
        num_left = len(sequence.tokens) - sequence.num_computed
        length = min(num_left, self.chunk_tokens or num_left)
        if _reports_logprobs(sequence):
            if any(_reports_logprobs(chunk.sequence) for chunk in plan.chunks):
                return 0
            length = min(length, _MAX_PROMPT_LOGPROB_ROWS)
        if plan.chunks and length > budget and budget < min(_SMALLEST_CHUNK, num_left):
            return 0
        return min(length, budget)

    def _add_chunk(self, plan: StepPlan, sequence: Sequence, budget: int) -> int:
        """Append the sequence's next chunk if the budget allows; returns what is left of it."""
        length = self._length(plan, sequence, budget)
        if length < 1:
            return budget
        plan.chunks.append(Chunk(sequence, sequence.num_computed, length))
        return max(0, budget - length)


def _reports_logprobs(sequence: Sequence) -> bool:
    """Whether the next rows are those of a prompt whose log probabilities are wanted."""
    return sequence.wants_prompt_logprobs and sequence.num_computed < sequence.num_prompt_tokens
