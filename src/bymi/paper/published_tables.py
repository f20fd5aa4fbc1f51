"""The paper's numbers on images, in per cent, as data. None: the paper has no such cell."""

from __future__ import annotations

from typing import NamedTuple


class RuleAlone(NamedTuple):
    """Test accuracy of the average over all nodes, and over the normal ones."""

    acc_all: float
    acc_normal: float


class WithDetection(NamedTuple):
    """DRSGD-ByMI after a warm-up by the rule."""

    fdp: float
    pa: float
    acc_scc: float


RULES_ALONE: dict[tuple[str, str, str], RuleAlone] = {
    # Paper: tab:attack-results1, ratio 0.2
    ("mnist", "ood", "none"): RuleAlone(57.8, 65.0),
    ("mnist", "ood", "ubar"): RuleAlone(92.4, 93.3),
    ("mnist", "ood", "ios"): RuleAlone(90.2, 95.2),
    ("mnist", "ood", "balance"): RuleAlone(86.0, 86.5),
    ("mnist", "gradient", "none"): RuleAlone(37.2, 37.3),
    ("mnist", "gradient", "ubar"): RuleAlone(40.0, 93.3),
    ("mnist", "gradient", "ios"): RuleAlone(34.2, 76.3),
    ("mnist", "gradient", "balance"): RuleAlone(57.8, 97.3),
    ("mnist", "ipm", "none"): RuleAlone(10.4, 10.4),
    ("mnist", "ipm", "ubar"): RuleAlone(25.1, 93.0),
    ("mnist", "ipm", "ios"): RuleAlone(9.8, 10.9),
    ("mnist", "ipm", "balance"): RuleAlone(8.5, 97.2),
    # Paper: tab:attack-results-fmnist, ratio 0.2
    ("fashion-mnist", "ood", "none"): RuleAlone(54.5, 57.6),
    ("fashion-mnist", "ood", "ubar"): RuleAlone(78.0, 80.2),
    ("fashion-mnist", "ood", "ios"): RuleAlone(74.7, 79.5),
    ("fashion-mnist", "ood", "balance"): RuleAlone(79.1, 83.5),
    ("fashion-mnist", "gradient", "none"): RuleAlone(37.8, 38.2),
    ("fashion-mnist", "gradient", "ubar"): RuleAlone(13.3, 80.4),
    ("fashion-mnist", "gradient", "ios"): RuleAlone(29.4, 64.5),
    ("fashion-mnist", "gradient", "balance"): RuleAlone(30.8, 83.8),
    ("fashion-mnist", "ipm", "none"): RuleAlone(10.0, 10.0),
    ("fashion-mnist", "ipm", "ubar"): RuleAlone(18.6, 80.0),
    ("fashion-mnist", "ipm", "ios"): RuleAlone(8.9, 13.2),
    ("fashion-mnist", "ipm", "balance"): RuleAlone(14.3, 84.4),
}


def _ratios(*numbers: float) -> dict[float, WithDetection]:
    """FDP, P_a and accuracy at ratios 0.1, 0.2 and 0.3, in the order of the paper's rows."""
    return {ratio: WithDetection(*numbers[3 * at : 3 * at + 3]) for at, ratio in enumerate((0.1, 0.2, 0.3))}


WITH_DETECTION: dict[tuple[str, str, str], dict[float, WithDetection]] = {
    # Paper: tab:attack-results2
    ("mnist", "ood", "ubar"): _ratios(12.7, 100.0, 97.2, 3.6, 100.0, 97.2, 6.5, 100.0, 97.3),
    ("mnist", "ood", "ios"): _ratios(28.0, 100.0, 97.0, 39.9, 100.0, 97.4, 42.8, 100.0, 97.0),
    ("mnist", "ood", "balance"): _ratios(17.4, 100.0, 97.3, 5.4, 100.0, 97.1, 6.8, 100.0, 97.2),
    ("mnist", "gradient", "ubar"): _ratios(23.6, 100.0, 97.4, 16.8, 100.0, 97.4, 16.5, 100.0, 97.3),
    ("mnist", "gradient", "ios"): _ratios(27.5, 100.0, 96.7, 18.7, 100.0, 96.9, 17.1, 100.0, 96.9),
    ("mnist", "gradient", "balance"): _ratios(25.2, 100.0, 97.2, 16.6, 100.0, 97.3, 16.6, 100.0, 97.3),
    ("mnist", "ipm", "ubar"): _ratios(24.0, 99.7, 78.9, 21.7, 100.0, 97.6, 15.2, 100.0, 97.6),
    ("mnist", "ipm", "ios"): _ratios(19.6, 99.9, 78.8, 11.3, 100.0, 97.4, 11.8, 100.0, 97.7),
    ("mnist", "ipm", "balance"): _ratios(16.0, 100.0, 97.4, 16.8, 100.0, 97.3, 11.4, 100.0, 97.3),
    # Paper: tab:attack-results3
    ("fashion-mnist", "ood", "ubar"): _ratios(38.4, 99.1, 83.7, 27.0, 99.3, 82.1, 17.4, 94.3, 69.0),
    ("fashion-mnist", "ood", "ios"): _ratios(24.3, 99.6, 82.4, 15.8, 100.0, 82.7, 12.2, 99.6, 79.8),
    ("fashion-mnist", "ood", "balance"): _ratios(18.9, 99.8, 83.2, 12.5, 100.0, 84.0, 17.8, 89.6, 73.6),
    ("fashion-mnist", "gradient", "ubar"): _ratios(35.5, 99.0, 79.4, 23.7, 100.0, 85.1, 14.5, 100.0, 85.1),
    ("fashion-mnist", "gradient", "ios"): _ratios(19.9, 100.0, 82.8, 14.0, 100.0, 83.3, 9.8, 100.0, 83.5),
    ("fashion-mnist", "gradient", "balance"): _ratios(18.8, 100.0, 84.1, 14.6, 100.0, 84.1, 11.5, 100.0, 84.4),
    ("fashion-mnist", "ipm", "ubar"): _ratios(15.9, 100.0, 85.5, 15.1, 100.0, 85.6, 12.7, 100.0, 85.6),
    ("fashion-mnist", "ipm", "ios"): _ratios(20.4, 100.0, 84.3, 24.3, 100.0, 84.8, 16.5, 100.0, 85.1),
    ("fashion-mnist", "ipm", "balance"): _ratios(27.9, 100.0, 85.2, 15.8, 100.0, 85.5, 13.4, 100.0, 85.3),
}
