"""An estimate of the CO2 of a run, by codecarbon (extra `co2`). Whatever fails in it, the run goes on."""

from __future__ import annotations

import math
from collections.abc import Callable


class CO2Tracker:
    """Counts from its making until `stop`. `say` takes the one line that says why there is no estimate."""

    def __init__(self, country: str | None, say: Callable[[str], None]):
        self.say, self.tracker = say, None
        try:
            import codecarbon

            options = {"save_to_file": False, "log_level": "critical", "allow_multiple_runs": True}
            if country is None:
                self.tracker = codecarbon.EmissionsTracker(**options)
            else:
                self.tracker = codecarbon.OfflineEmissionsTracker(country_iso_code=country, **options)
            self.tracker.start()
        except Exception as error:
            self._give_up(error)

    def stop(self) -> float | None:
        """Grams of CO2 equivalent; None if that is not known."""
        if self.tracker is None:
            return None
        try:
            grams = 1000 * self.tracker.stop()
        except Exception as error:
            self._give_up(error)
            return None
        self.tracker = None
        return grams if math.isfinite(grams) else None

    def _give_up(self, error: Exception):
        self.tracker = None
        self.say(f"without CO2: {error or type(error).__name__}")
