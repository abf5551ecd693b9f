"""The contrastive loss over the pairs of all processes, and over batches whose activations do not fit into memory.

Shapes: N pairs of this process, M pairs of all processes, E size of a sentence vector. Of the 2N texts, rows 2k and
2k + 1 are a pair.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.checkpoint import get_device_states, set_device_states

UNKNOWN_DOCUMENT = -1


def allowed_negatives(
    text_keys: torch.Tensor,
    document_keys: torch.Tensor | None = None,
    all_text_keys: torch.Tensor | None = None,
    all_document_keys: torch.Tensor | None = None,
    *,
    first: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which pairs are negatives of which, `[N, M]` bool, and for how many of those places it is false, shape `()`.

    Pair j is no negative of pair i when one of i's texts equals one of j's, or both are of the same known document: it
    may answer as well as i's own partner. The own pair is always true, for a softmax needs what it has to find.

    Args:
        text_keys: `[2N]`, equal for equal texts.
        document_keys: `[N]`, equal for pairs of one document, -1 where it is not known; by default nowhere.
        all_text_keys, all_document_keys: `[2M]` and `[M]`, of all processes; by default there is only this one.
        first: the place of this process's first pair among all.
    """
    if document_keys is None:
        document_keys = torch.full_like(text_keys[0::2], UNKNOWN_DOCUMENT)
    if all_text_keys is None or all_document_keys is None:
        all_text_keys, all_document_keys = text_keys, document_keys
    same_NM = (document_keys[:, None] == all_document_keys) & (document_keys[:, None] != UNKNOWN_DOCUMENT)
    for own_N in (text_keys[0::2], text_keys[1::2]):
        for other_M in (all_text_keys[0::2], all_text_keys[1::2]):
            same_NM |= own_N[:, None] == other_M
    same_NM.diagonal(first).fill_(False)
    return ~same_NM, same_NM.sum()


def contrastive_loss_over_processes(
    vectors: torch.Tensor,
    temperature: float | torch.Tensor,
    text_keys: torch.Tensor | None = None,
    document_keys: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Symmetric InfoNCE (arXiv 2306.10056, as CLIP) against the pairs of all processes, in nats and fp32.

    Each own text must pick its partner among the partners' side of all M pairs, in both directions. The vectors are
    gathered with their gradient, so a process's vectors also learn from being the negatives of another's: with the
    mean L_p over the pairs of process p, the sum over processes of N_p / M * L_p is the loss that one process has of
    all pairs, and so are its gradients. Processes may hold different numbers of pairs, none included; all of them must
    call this, and then `backward`.

    Args:
        vectors: `[2N, E]`, of any length.
        temperature: what cosines are divided by; a tensor of shape `()` if it is learned.
        text_keys, document_keys: see `allowed_negatives`; without them every other pair is a negative.

    Returns the mean loss over this process's pairs (0 if it has none), the share of its texts whose partner is ranked
    first, and how many negatives were excluded here, each of shape `()`.
    """
    pairs = len(vectors) // 2
    counts = _pairs_of_processes(pairs, vectors.device)
    first = sum(counts[: dist.get_rank()]) if len(counts) > 1 else 0
    with torch.autocast(vectors.device.type, enabled=False):
        own_N2E = F.normalize(vectors.float(), dim=-1).reshape(pairs, 2, vectors.shape[-1])
        all_M2E = _gather(own_N2E, counts)
        logits_2NM = torch.stack([own_N2E[:, side] @ all_M2E[:, 1 - side].t() for side in (0, 1)]) / temperature
        excluded = torch.zeros((), dtype=torch.long, device=vectors.device)
        if text_keys is not None:
            if document_keys is None:
                document_keys = torch.full_like(text_keys[0::2], UNKNOWN_DOCUMENT)
            keys_M3 = _gather(torch.cat([text_keys.reshape(pairs, 2), document_keys[:, None]], dim=1), counts)
            allowed_NM, excluded = allowed_negatives(
                text_keys, document_keys, keys_M3[:, :2].flatten(), keys_M3[:, 2], first=first
            )
            logits_2NM = logits_2NM.masked_fill(~allowed_NM, float("-inf"))
        partner_2N = first + torch.arange(pairs, device=vectors.device).repeat(2)
        logits_BM = logits_2NM.flatten(0, 1)
        loss = F.cross_entropy(logits_BM, partner_2N, reduction="sum") / max(1, 2 * pairs)
    right = (logits_BM.detach().argmax(1) == partner_2N).sum() if pairs else excluded.new_zeros(())
    return loss, right / max(1, 2 * pairs), excluded


def _pairs_of_processes(pairs: int, device) -> list[int]:
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return [pairs]
    counts = [torch.zeros(1, dtype=torch.long, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, torch.full_like(counts[0], pairs))
    return torch.cat(counts).tolist()


def _gather(rows: torch.Tensor, counts: list[int]) -> torch.Tensor:
    return rows if len(counts) == 1 else _GatherRows.apply(rows, counts)


class _GatherRows(torch.autograd.Function):
    """The rows of all processes one after the other; backward sums what all of them have to say about one's rows."""

    @staticmethod
    def forward(ctx, rows, counts):
        ctx.counts = counts
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        gathered = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(gathered, padded)
        return torch.cat([part[:count] for part, count in zip(gathered, counts, strict=True)])

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient.split(ctx.counts)[dist.get_rank()], None


class CachedContrast:
    """The contrastive loss of a batch that goes through the model in mini-batches (GradCache: Gao et al., 2021, arXiv
    2101.06983, section 3): the negatives of the whole batch, the activations of one mini-batch.

    Creating it encodes every mini-batch without a graph, and computes the loss of all vectors and the gradient at each
    of them. Then each mini-batch goes through the model once more, with a graph:

        cache = CachedContrast(encode, mini_batches, temperature, text_keys, document_keys)
        for number, mini_batch in enumerate(mini_batches):
            cache.repeat_dropout(number)
            vectors = encode(mini_batch)
            (cache.loss_of(number, vectors, temperature) * len(vectors) / number_of_texts).backward()

    Gradients are then those of the batch in one piece. All processes must create theirs together.

    Args:
        encode: the vectors `[2n, E]` of a mini-batch. Nothing may draw random numbers before its dropout in the second
            pass.
        mini_batches: each a dict of tensors, of whole pairs.
        temperature, text_keys, document_keys: of the whole batch; see `contrastive_loss_over_processes`.
    """

    def __init__(
        self,
        encode: Callable,
        mini_batches: list,
        temperature: float | torch.Tensor,
        text_keys: torch.Tensor | None = None,
        document_keys: torch.Tensor | None = None,
    ):
        self._random_states, vectors = [], []
        with torch.no_grad():
            for mini_batch in mini_batches:
                self._random_states.append(_random_state(mini_batch))
                vectors.append(encode(mini_batch))
        whole = torch.cat(vectors).requires_grad_()
        self._pairs = len(whole) // 2
        learned = isinstance(temperature, torch.Tensor) and temperature.requires_grad
        leaves = [whole] + ([temperature.detach().requires_grad_()] if learned else [])
        with torch.enable_grad():
            temperature = leaves[1] if learned else temperature
            loss, self.accuracy, self.excluded = contrastive_loss_over_processes(
                whole, temperature, text_keys, document_keys
            )
            gradient, *more = torch.autograd.grad(loss * self._pairs, leaves)
        self.loss = loss.detach()
        self._gradients = gradient.split([len(part) for part in vectors])
        self._temperature_gradient = more[0] if learned else None

    def repeat_dropout(self, number: int):
        """The next random numbers are those that mini-batch `number` was encoded with."""
        cpu, device_type, devices, states = self._random_states[number]
        torch.set_rng_state(cpu)
        if devices:
            set_device_states(devices, states, device_type=device_type)

    def loss_of(self, number: int, vectors: torch.Tensor, temperature: float | torch.Tensor) -> torch.Tensor:
        """The loss of the whole batch, but with the gradient that comes through this mini-batch: the mean over them,
        weighted by their pairs, has the gradient of the loss."""
        moved = (vectors * self._gradients[number]).sum() / (len(vectors) // 2)
        if self._temperature_gradient is not None:
            moved = moved + temperature * self._temperature_gradient / self._pairs
        return self.loss + (moved - moved.detach())


def _random_state(mini_batch) -> tuple:
    device_type = next((tensor.device.type for tensor in mini_batch.values() if tensor.device.type != "cpu"), "cpu")
    return torch.get_rng_state(), device_type, *get_device_states(*mini_batch.values())
