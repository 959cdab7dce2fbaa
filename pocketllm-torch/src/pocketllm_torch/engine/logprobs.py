"""Log probabilities from raw logits: before penalties, bias, temperature and truncation, over the whole vocabulary."""

from __future__ import annotations

import torch

from pocketllm.types import TokenLogprob


def token_logprobs(
    logits: torch.Tensor, token_ids: list[int], num_top: list[int], first_row: int = 0
) -> list[TokenLogprob]:
    """One entry per row.

    Args:
        logits: raw logits, float32 [R, vocab].
        token_ids: the token whose log probability each row reports.
        num_top: alternatives to list per row, best first, equal ones by lower id.
        first_row: ``row`` of the first entry; the others follow.
    """
    if not token_ids:
        return []
    log_normalizers = torch.logsumexp(logits, dim=-1, keepdim=True)
    chosen_ids = torch.tensor(token_ids, device=logits.device).unsqueeze(1)
    chosen = (logits.gather(1, chosen_ids) - log_normalizers).squeeze(1).tolist()
    most = max(num_top)
    if most == 0:
        return [TokenLogprob(first_row + row, value) for row, value in enumerate(chosen)]
    values, ids = torch.topk(logits, min(most, logits.shape[1]), dim=-1)
    tops = (values - log_normalizers).tolist()
    entries = []
    for row, (value, row_ids, row_tops) in enumerate(zip(chosen, ids.tolist(), tops, strict=True)):
        pairs = sorted(zip(row_ids, row_tops, strict=True), key=lambda pair: (-pair[1], pair[0]))
        entries.append(TokenLogprob(first_row + row, value, pairs[: num_top[row]]))
    return entries
