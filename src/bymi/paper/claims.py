"""The paper's claims one by one, beside what the committed JSON says. Each verdict follows from a stated criterion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bymi.paper import claim_verdicts as findings
from bymi.paper.claim_verdicts import CONFIRMED, NOT_CONFIRMED, PARTLY, Finding
from bymi.paper.committed_results import NOT_MEASURED, Results
from bymi.paper.summary_blocks import LEVEL
from bymi.report.tables import markdown_table


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper and its number, what we find, when that counts as confirmed, and how the sentence was read."""

    where: str
    says: str
    paper: str
    find: Callable[[Results], Finding]
    criterion: str
    reading: str = ""


def claims(results: Results) -> str:
    """A table of all claims, and below it how each was read."""
    rows, notes, verdicts = [], [], []
    for number, claim in enumerate(CLAIMS, start=1):
        ours, verdict = claim.find(results)
        verdicts.append(verdict)
        rows.append([str(number), f"{claim.says} ({claim.where})", claim.paper, ours, verdict])
        notes.append(f"{number}. {claim.criterion}" + (f" {claim.reading}" if claim.reading else ""))
    words = (CONFIRMED, PARTLY, NOT_CONFIRMED, NOT_MEASURED)
    counts = ", ".join(f"{verdicts.count(word)} {word.strip('*')}" for word in words if word in verdicts)
    table = markdown_table(["", "claim", "paper", "ours", "verdict"], rows)
    return "\n".join(
        [
            f"{len(CLAIMS)} claims: {counts}.",
            "",
            table,
            "A claim about several settings, cells, runs or attacks is confirmed if it holds in all of them, partly if in at",
            "least half, else not confirmed. When each holds, where the criterion is another, and how it was read:",
            "",
            *notes,
        ]
    )


_A, _B = "section 5.1, fig:sr-dim30-80", "section 5.1, fig:varrho-dim30-80"
_TABLES = "section 5.2, tab:attack-results1, tab:attack-results-fmnist"
_RATIOS = "section 5.2, tab:attack-results2, tab:attack-results3"
_CURVES = "section 5.2, fig:comparison1 to fig:comparison3"

CLAIMS = (
    Claim(
        _A,
        "FDP below 40 % at all contamination intensities",
        "< 40 %",
        findings.fdp_in_a,
        "Confirmed if every run is below 40 %, partly if every median is.",
    ),
    Claim(
        _A,
        "P_a about 100 % away from s_r = 0.1",
        "about 100 %",
        findings.pa_in_a,
        "Of settings with s_r of 0.2 or more: the lowest run has at least 99 %.",
    ),
    Claim(
        _A,
        "Optimality gap below 1e-4 away from s_r = 0.1",
        "< 1e-4",
        findings.gap_in_a,
        "Of medians of settings with s_r of 0.2 or more.",
        "The gap is taken against the exact minimiser over the honest samples. Honest nodes that pruning took out of the core "
        "do not contribute their samples, which leaves a gap even when the optimisation has converged.",
    ),
    Claim(
        _A,
        "Near s_r = 0.1 P_a is lower and the gap is higher",
        "a dip",
        findings.dip_in_a,
        "A study shows the dip if P_a at 0.1 is lower by a point than at 0.4 and more, or the median gap more than twice as "
        "large.",
        "With mu_c = 5, the paper's default, the corrupted parameter is far from the true one at s_r = 0.1, too; with mu_c = 1 "
        "the two are equal there.",
    ),
    Claim(
        _B,
        "Below a ratio of 0.3 FDP, P_a and gap are satisfactory for nearly all methods",
        "no number",
        findings.b_below,
        "A setting is satisfactory if its median FDP is at most 40 % and its median P_a at least 99 %.",
        "The responses of Byzantine nodes are made from the replaced covariates. The share of false flags is largest where "
        "few neighbours are Byzantine; and the warm-up by BALANCE accepts these attackers and ends at a biased point.",
    ),
    Claim(
        _B,
        "Slightly higher FDP for d = 80 than for d = 30 at ratios below 0.3",
        "slightly higher",
        findings.b_dimension,
        "Confirmed if the mean of the median FDPs is higher by at most 10 points.",
    ),
    Claim(
        _B,
        "From a ratio of 0.3 on P_a is below 100 % in some seeds and gaps vary",
        "< 100 % in some seeds",
        findings.b_above,
        "Confirmed if any run has P_a below 100 %.",
    ),
    Claim(
        "thm:fdp_control",
        "FDP is controlled at the level alpha (1 + o(1))",
        f"{100 * LEVEL:g} %",
        findings.level,
        "Confirmed if the mean is at most the level, partly if at most twice that.",
        "Threshold as printed (offset 0), s_r above 0.02. The theorem is asymptotic in the number of Byzantine neighbours, and "
        "promises a number of false flags, not a share, where there are few.",
    ),
    Claim(
        "thm:fdp_control, cond:signals",
        "Sure detection needs attackers whose mean gradients differ enough from honest ones",
        "a condition",
        findings.signals,
        "Of these attacks, which do not meet the condition: P_a is below 99 %.",
        "A node that trained alone has a gradient of zero at its own optimum; noise without a shift, a small common shift and "
        "copies of an honest node have no mean gradient that stands out.",
    ),
    Claim(
        "thm:connectivity",
        "After pruning honest nodes form a strongly connected component that hears nobody else",
        "with high probability",
        findings.component,
        "Of runs of Scenario A: the core is the set of honest nodes, and closed.",
    ),
    Claim(
        "section 1, tab:1",
        "Robust rules alone keep an error that does not vanish; detection removes it",
        "exact convergence",
        findings.exact,
        "Of the paper's four attacks in the red team: the mean gap of BALANCE alone is at least ten times that of the "
        "published method, on the seeds that all defences have.",
        "Linear model; all methods have the same number of rounds and steps. Other attacks and rules are counted beside it.",
    ),
    Claim(
        "thm:main0, eq:local_dsgdrs",
        "The step of the theorem, divided by the tracker, converges",
        "rate 1 / sqrt(m_g K)",
        findings.step,
        "Of settings with the theorem's step and without a cap: no run diverges.",
        "Default experiment, published profile. The cap on local steps and the floor under the tracker are ours.",
    ),
    Claim(
        _TABLES,
        "FDP below 20 % and P_a almost 100 %",
        "< 20 %, almost 100 %",
        findings.at_one_ratio,
        "A cell holds with FDP below 20 % and P_a of at least 99 %.",
    ),
    Claim(
        _TABLES,
        "The cells of the tables: FDP, P_a and accuracy",
        findings.papers_accuracy(),
        findings.tables,
        "A cell holds with P_a of at least 99 %, FDP of at most 40 % (the largest in those tables) and an accuracy at most "
        "half a point below the paper's, all as means over seeds.",
        "A run ended badly if it did not finish, diverged (one honest node did, also if the core did not) or has Byzantine "
        "nodes in its core.",
    ),
    Claim(
        "section 5.2, tab:attack-results1",
        "On MNIST more accurate than the rule alone",
        findings.papers_gain(),
        findings.against_alone("alone"),
        "Of cells: higher by any amount.",
        "Acc (scc) against Acc (normal); the rule alone is told a bound of 0.35 of each neighbourhood.",
    ),
    Claim(
        "section 5.2, tab:attack-results1",
        "The same against UBAR and IOS told the global share of Byzantine nodes",
        findings.papers_gain(),
        findings.against_alone("alone-global"),
        "Of cells: higher by any amount.",
        "Many neighbourhoods hold more than the global share; the paper's row of IOS under IPM can be had only so.",
    ),
    Claim(
        "section 5.2",
        "IOS and UBAR suffer where they are told too few Byzantine neighbours",
        "explains their rows",
        findings.prior,
        "Of cells: the global share in place of a bound of 0.35 costs 10 points of Acc (normal) or more.",
        "Rules alone, both data sets.",
    ),
    Claim(
        _CURVES,
        "The norm of the global gradient falls to between 1e-2 and 1e-1",
        "1e-2 to 1e-1",
        findings.norm_after,
        "Of MNIST cells: the mean is at most 0.1.",
    ),
    Claim(
        _CURVES,
        "Rules alone stay at gradient norms of 1e0 to 1e1, or diverge",
        "1e0 to 1e1",
        findings.norm_alone,
        "Of MNIST cells.",
        "The norm at the mean of the honest models; the step falls to zero at the end.",
    ),
    Claim(
        _RATIOS,
        "P_a approaches 100 % in most cases, and accuracy depends little on the ratio",
        findings.papers_pa(),
        findings.over_ratios,
        "Confirmed if nine cells in ten have P_a of at least 99 %, partly if half have.",
    ),
    Claim(
        _RATIOS,
        "FDP below 30 % in almost all cases",
        "< 30 %",
        findings.fdp_over_ratios,
        "Confirmed if it holds in nine cells of ten, partly if in half.",
    ),
    Claim(
        _RATIOS,
        "Where P_a is below 100 % accuracy falls substantially",
        findings.papers_missed(),
        findings.missed_costs,
        "Of the two data sets: the median accuracy of runs that missed somebody is lower by more than 5 points.",
    ),
    Claim(
        _TABLES,
        "Without a robust rule the attacks ruin the model",
        findings.papers_undefended(),
        findings.undefended,
        "A cell holds if accuracy is at most the paper's; in the tables, an attack that leaves more is too weak to count.",
        "DSGD, Acc (all). The scale of the OOD noise is ours: with pixels of unit variance the paper's overflows.",
    ),
)
"""All claims: synthetic data and theorems, then images."""
