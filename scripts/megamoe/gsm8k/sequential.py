"""Sequential early FAIL: stops a broken model within tens of questions, with a proven bound on false alarms.

The statistic is a mixture likelihood ratio (an e-process). For each alternative accuracy q below the floor p0 the
likelihood ratio of the answers so far, q against p0, has expectation at most 1 whenever the true accuracy is p0 or
better; so has their average, and by Ville's inequality it ever reaches 1/alpha with probability at most alpha, however
often one looks. Answers must come in an order that does not depend on their outcome: the harness
asks the questions in a
seeded shuffled order and feeds this class in that order, not in the order of arrival.
Checked by scripts/simulate_gate.py. Standard library only: harness.py imports it in lm-eval's own environment.
"""

from __future__ import annotations

import math

# Twelve alternatives between a dead model and one just below the floor; a mixture pays log(12) for not choosing one.
_FRACTIONS = (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)


class EarlyFail:
    """Feeds on right and wrong answers; `stopped_at` is the number of answers after which the floor was ruled out."""

    def __init__(self, floor: float, alpha: float) -> None:
        """floor: accuracy that a good model reaches, in (0, 1); alpha: probability of ever stopping such a model."""
        if not 0 < floor < 1 or not 0 < alpha < 1:
            raise ValueError(f"floor={floor} and alpha={alpha} must both lie strictly between 0 and 1")
        self.floor, self.alpha = floor, alpha
        self.right = self.wrong = 0
        self.stopped_at: int | None = None
        alternatives = [floor * fraction for fraction in _FRACTIONS]
        self._if_right = [math.log(q / floor) for q in alternatives]
        self._if_wrong = [math.log((1 - q) / (1 - floor)) for q in alternatives]

    @property
    def seen(self) -> int:
        return self.right + self.wrong

    @property
    def log_evidence(self) -> float:
        """Log of the averaged likelihood ratio against the floor; the stop is at log(1/alpha)."""
        logs = [self.right * r + self.wrong * w for r, w in zip(self._if_right, self._if_wrong, strict=True)]
        top = max(logs)
        return top + math.log(sum(math.exp(x - top) for x in logs) / len(logs))

    def add(self, correct: bool) -> bool:
        """One answer more, in asking order. Returns True from the answer on that rules the floor out."""
        if correct:
            self.right += 1
        else:
            self.wrong += 1
        if self.stopped_at is None and self.log_evidence >= -math.log(self.alpha):
            self.stopped_at = self.seen
        return self.stopped_at is not None
