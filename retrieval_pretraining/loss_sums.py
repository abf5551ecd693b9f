"""Named losses and accuracies, added up over micro-batches, steps and processes."""

import torch


class LossSums:
    """Named losses and accuracies, summed on the device and brought to the host only when they are asked for."""

    def __init__(self, model, device, step_counts: tuple[str, ...] = ()):
        self.fields = [(field, name) for name in model.loss_weights for field in (name, _accuracy_name(name))]
        self.fields += [(field, None) for field in step_counts]
        self.zero = torch.zeros(len(self.fields), device=device)
        self.absent: set[str] = set()  # a loss need not have an accuracy
        self.run_steps, self.run_total = 0, [0.0] * len(self.fields)
        self.start(step=0)

    def start(self, step: int):
        self.last_step, self.total = step, self.zero

    def add(self, outputs, shares: dict[str, torch.Tensor]):
        """Adds a micro-batch; `shares` are the factors that turn its means into parts of the sum."""
        self.absent = {field for field, _ in self.fields if outputs.get(field) is None}
        self.total = self.total + torch.stack(
            [
                self.zero[0] if field in self.absent else outputs[field].detach().float() * shares.get(name, 1.0)
                for field, name in self.fields
            ]
        )

    def _named(self, values: list[float], divisors: list[float]) -> dict[str, float]:
        return {
            field: value / divisor
            for (field, _), value, divisor in zip(self.fields, values, divisors, strict=True)
            if field not in self.absent
        }

    def drain(self, step: int, accelerator) -> dict[str, float]:
        """The mean over the steps since the last call, weighted as the logged `loss` is."""
        steps = step - self.last_step
        total = accelerator.reduce(self.total, reduction="sum").tolist()
        self.start(step)
        self.run_steps += steps
        self.run_total = [before + value for before, value in zip(self.run_total, total, strict=True)]
        return self._named(total, [steps] * len(total)) if steps > 0 else {}

    def run_averages(self) -> dict[str, float]:
        return self._named(self.run_total, [max(1, self.run_steps)] * len(self.fields))

    def item_averages(self, counts: dict[str, float], accelerator) -> dict[str, float]:
        """The mean over items, for sums whose shares were counts of items."""
        total = accelerator.reduce(self.total, reduction="sum").tolist()
        return self._named(total, [max(1.0, counts[name]) for _, name in self.fields])


def _accuracy_name(loss_name: str) -> str:
    return loss_name.removesuffix("_loss") + "_accuracy"
