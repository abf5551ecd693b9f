"""Cross-entropy over a vocabulary without its logits: neither [tokens, V] logits nor their gradient are ever held.

This file travels to the Hub beside the models that use it: it imports torch only.

Shapes: N labelled positions, E embedding size, V vocabulary.
"""

import torch
import torch.nn.functional as F

# Logits that are held at a time: 16 MB fit a CPU's last-level cache, 256 MB keep a GPU busy. Each chunk also passes
# once over the gradient of the vocabulary matrix, so that a GPU, whose logits are cheap, takes at least 1,024 rows.
_LOGITS_AT_A_TIME_CPU = 2**22
_LOGITS_AT_A_TIME = 2**26


def rows_at_a_time(row_size: int, device: torch.device) -> int:
    """How many rows of `row_size` logits are computed at a time."""
    if device.type == "cpu":
        return max(64, _LOGITS_AT_A_TIME_CPU // row_size)
    return max(1024, _LOGITS_AT_A_TIME // row_size)


def compute_dtype(tensor: torch.Tensor) -> torch.dtype:
    """What matrix products of this tensor run in: autocast's dtype where it is on, else its own."""
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensor.dtype


class _LinearCrossEntropy(torch.autograd.Function):
    """Cross-entropy of `hidden @ weight.T + bias`, a few rows at a time, with the gradients taken on the way.

    The logits of a chunk are turned into the gradient in place as soon as its loss is known, so that nothing of size
    [N, V] is ever held and nothing is computed twice.
    """

    @staticmethod
    def forward(ctx, hidden_NE, weight_VE, bias_V, labels_N, wanted):
        dtype = compute_dtype(hidden_NE)
        loss = torch.zeros((), dtype=torch.float32, device=hidden_NE.device)
        correct = torch.zeros((), dtype=torch.float32, device=hidden_NE.device)
        hidden, weight = hidden_NE.to(dtype), weight_VE.to(dtype)
        bias = None if bias_V is None else bias_V.to(dtype)
        if wanted:
            grad_hidden = torch.empty_like(hidden_NE)
            grad_weight = torch.zeros_like(weight_VE)
            grad_bias = None if bias_V is None else torch.zeros_like(bias_V)
        step = rows_at_a_time(weight.shape[0], hidden.device)
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, hidden.shape[0], step):
                rows = slice(start, start + step)
                labels = labels_N[rows, None]
                log_probabilities = F.linear(hidden[rows], weight, bias).float().log_softmax(-1)
                of_label = log_probabilities.gather(1, labels)
                loss -= of_label.sum()
                correct += (log_probabilities.argmax(-1) == labels[:, 0]).sum()
                if wanted:
                    gradient = log_probabilities.exp_().scatter_add_(1, labels, -torch.ones_like(of_label))
                    if bias is not None:
                        grad_bias += gradient.sum(0)
                    gradient = gradient.to(dtype)
                    grad_hidden[rows] = gradient @ weight
                    if dtype == grad_weight.dtype:
                        grad_weight.addmm_(gradient.t(), hidden[rows])
                    else:
                        grad_weight += gradient.t() @ hidden[rows]
        if wanted:
            ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.mark_non_differentiable(correct)
        return loss, correct

    @staticmethod
    def backward(ctx, grad_loss, _):
        return *(None if grad is None else grad * grad_loss.to(grad.dtype) for grad in ctx.saved_tensors), None, None


def linear_cross_entropy(
    hidden_NE: torch.Tensor, weight_VE: torch.Tensor, bias_V: torch.Tensor | None, labels_N: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean cross-entropy (nats) and accuracy of `softmax(hidden @ weight.T + bias)`, both of shape `()`.

    Without any row both are 0, and so are the gradients. Differentiable once.
    """
    # Inside the function gradients are off: whether they are wanted is known here.
    wanted = torch.is_grad_enabled() and (hidden_NE.requires_grad or weight_VE.requires_grad)
    loss, correct = _LinearCrossEntropy.apply(hidden_NE, weight_VE, bias_V, labels_N, wanted)
    count = max(1, labels_N.shape[0])
    return loss / count, correct / count
