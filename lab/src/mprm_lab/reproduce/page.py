"""The results page: Markdown, made of the results file and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from textwrap import fill
from typing import Any

from mprm_lab.reproduce import page_tables as tables
from mprm_lab.reproduce.aggregate import METRICS, Cells
from mprm_lab.reproduce.figures import charts_of
from mprm_lab.reproduce.findings import CLOSE, FINDINGS, MODERATE, counts
from mprm_lab.reproduce.paper_numbers import BACKBONES
from mprm_lab.reproduce.progress import spoken

WIDTH = 118
COMMANDS = """```console
$ mprm lab open LAB
$ mprm lab reproduce LAB --out docs/results --force
```

The first command opens the lab that mprm ships. `mprm lab reproduce LAB --make --out RESULTS` in an empty folder is
the whole from nothing instead, policies, corpus and benchmark included."""
MAIN_PAIRS = (("bis-10", "random-10"), ("bis-25", "random-25"), ("bis-10", "full"), ("bis-25", "full"))
OTHER_METRICS = {"macro_f1": "pooled F1", "auc": "AUC"}
"""Those that do not take the mean over sources."""
CAPTIONS = {
    "scaling": "Overall F1 against the share of the rollouts",
    "random": "Random choice, one pass and as many updates as all data",
    "curves": "Overall F1 during training",
    "best_of_n": "Accuracy of best-of-N",
}


def page(results: dict[str, Any]) -> str:
    """The whole of ``lab.md``."""
    cells = Cells(results["cells"])
    parts = ["# The paper's experiments in the lab", _introduction(results), _findings(cells), _truth(results)]
    for backbone in cells.backbones:
        parts.append(_backbone(results, cells, backbone))
    parts.append(_choice(results))
    return "\n\n".join(parts) + "\n"


def _filled(text: str, *, bullet: str = "") -> str:
    """The text as a paragraph, or as an item of a list."""
    return fill(" ".join(text.split()), WIDTH, initial_indent=bullet, subsequent_indent=" " * len(bullet))


def _introduction(results: dict[str, Any]) -> str:
    corpus, benchmark, cells = results["corpus"], results["benchmark"], results["cells"]
    n_missing = results["n_planned"] - len(cells)
    missing = f"{n_missing} planned cells are not measured yet." if n_missing else ""
    devices = ", ".join(sorted({cell["device"] for cell in cells}))
    first = f"""Every training of the paper, repeated on the [lab](../lab.md)'s small world: models of the
        architectures of InternVL2.5 and Qwen2.5-VL with a few million weights; {corpus["rollouts"]:,} rollouts with
        {corpus["steps"]:,} steps ({100 * corpus["error_share"]:.2f}% of them errors,
        {100 * corpus["mixed_share"]:.1f}% of the rollouts mixed, mean MC {corpus["mean_mc"]:.3f}); a benchmark of
        {benchmark["n_solutions"]:,} solutions ({benchmark["n_correct"]:,} correct and {benchmark["n_error"]:,}
        incorrect steps of {benchmark["n_sources"]} sources) by policies that had no part in the corpus. Absolute
        values cannot be compared with the paper's: model, world and benchmark differ. Which way each difference
        goes can."""
    notes = (
        f"""{len(cells)} cells, up to {results["plan"]["seeds"]} seeds each;
        {spoken(sum(cell["seconds"] for cell in cells))} of training and measuring on {devices}, several at a time.
        {missing}""",
        """*Overall* is the paper's: macro-F1 of each source, weighted by its steps, in percent. The threshold is
        chosen on other problems than those it is reported on (five folds). *Test threshold* is chosen on the reported
        problems themselves, as the paper's released code does: optimistic, and shown for comparison only.""",
        """In brackets: Student's 95% interval over seeds. A seed decides what is drawn and the order in training, and
        differences are taken seed by seed. All seeds share one corpus, one benchmark and each backbone's starting
        weights: the intervals do not tell how another corpus would have turned out. Each stands for itself; none is
        corrected for the number of comparisons.""",
        f"""One pass unless stated, batch {results["plan"]["training"]["batch_size"]}, the learning rate
        [chosen once](#hyperparameters) for each backbone, on all data, on problems of their own; every other
        hyperparameter is the paper's. Every number is of the model after its last update; none is of the best of
        several checkpoints.""",
    )
    made = "This page and its figures are made of [lab.json](lab.json), which holds every cell:"
    listed = "\n".join(_filled(note, bullet="- ") for note in notes)
    return f"{_filled(first)}\n\n{listed}\n\n{made}\n\n{COMMANDS}"


def _findings(cells: Cells) -> str:
    rows = []
    for finding in FINDINGS:
        for number, claim in enumerate(finding.claims):
            row = [finding.words if number == 0 else "", claim.words]
            for backbone in cells.backbones:
                found, paper = claim.difference(cells, backbone), claim.paper(backbone)
                row += [
                    "" if paper is None else tables.signed(paper),
                    tables.difference_cell(found),
                    claim.verdict(found),
                ]
            rows.append(row)
    heads = ["finding", "claim, in points"]
    for backbone in cells.backbones:
        heads += [f"{BACKBONES.get(backbone, backbone)}, paper", f"lab ({backbone})", "verdict"]
    told = "; ".join(
        f"{backbone}: " + ", ".join(f"{n} {verdict}" for verdict, n in found.items())
        for backbone, found in counts(cells).items()
    )
    whole = f"""{told} (of {len(FINDINGS)}; one with several claims is reproduced when all of them are, and not
        reproduced when one is not)."""
    rule = f"""A claim is *reproduced* when the whole interval lies on the claimed side of its bound, *not reproduced*
        when the whole interval lies on the other side, else *open*. To reach all data is to be no more than
        {CLOSE:g} point behind, and a moderate gap is at most {MODERATE:g} points: the paper's own largest differences
        of the kind are 0.94 and 1.75."""
    table = tables.markdown(heads, rows)
    return f"## Findings\n\n{_filled(whole)}\n\n{_filled(rule)}\n\n{table}\n\n{_other_metrics(cells)}"


def _other_metrics(cells: Cells) -> str:
    """The main differences by metrics that do not take the mean over sources."""
    kinds = [(backbone, name) for backbone in cells.backbones for name in OTHER_METRICS]
    rows = [
        [
            f"{one} − {other}",
            *(tables.points_cell(cells.difference(name, one, other, METRICS[kind])) for name, kind in kinds),
        ]
        for one, other in MAIN_PAIRS
    ]
    told = """All findings on training are about the paper's overall value, a mean over sources. The same differences
        in F1 of all steps pooled, with one threshold for all, and in AUC, in points:"""
    heads = ["difference", *(f"{name}: {OTHER_METRICS[kind]}" for name, kind in kinds)]
    return f"{_filled(told)}\n\n{tables.markdown(heads, rows)}"


def _truth(results: dict[str, Any]) -> str:
    """Labels against the world's own judgement of the steps."""
    truth = results["truth"]
    rows = []
    for row in truth["rows"]:
        n_claiming = row["n_steps"] - row["n_neutral"]
        wrong = f"{100 * row['n_wrong'] / n_claiming:.1f}" if n_claiming else ""
        noise, below = ("" if row[name] is None else f"{100 * row[name]:.1f}" for name in ("eta_eff", "below"))
        again = f"{100 * row['n_below'] / row['n_again']:.1f}" if row["n_again"] else ""
        counts_of_row = [f"{row[name]:,}" for name in ("n_steps", "n_neutral")]
        rows.append([str(row["k"]), *counts_of_row, wrong, noise, f"{row['n_again']:,}", again, below])
    positive = [row for row in truth["rows"] if row["k"] > 0]
    n_positive = sum(row["n_steps"] - row["n_neutral"] for row in positive)
    n_wrong = sum(row["n_wrong"] for row in positive)
    told = f"""In the lab the truth of every step is known. Of the {n_positive:,} positive steps that claim something,
        {n_wrong:,} are wrong ({100 * n_wrong / max(1, n_positive):.2f}%): pseudo-positives. Beside them η_eff(k), the
        probability that a step with k of {truth["N"]} successes has a rate of success below {truth["reliable"]:g}, by
        the Beta prior fitted to the corpus (`mprm theory fit`). The two are not the same thing: a wrong step that the
        policy mends has a high rate, and a right one before a hard passage a low one. Both fall as k grows: the fewer
        successes, the less a positive label is worth."""
    tried = f"""The last columns try the model on pairs of counts. Where two rollouts of a problem begin word for word
        alike, the beginning was continued twice, {truth["N"]} times each: in how many pairs the second count is
        below {truth["reliable"]:g} of {truth["N"]} when the first was k, and in how many it should be by the prior,
        which is fitted to all counts."""
    heads = ["k", "steps", "neutral", "wrong, %", "η_eff, %", "pairs", "second is low, %", "by the prior, %"]
    paragraphs = "\n\n".join((_filled(told), _filled(tried)))
    return f"## Labels against the truth\n\n{paragraphs}\n\n{tables.markdown(heads, rows)}"


def _backbone(results: dict[str, Any], cells: Cells, backbone: str) -> str:
    summary = results["summary"][backbone]["arms"]
    names = {chart.name for chart in charts_of(results)}

    def figure(kind: str) -> str:
        name = f"lab_{kind}_{backbone}"
        return f"\n\n![{CAPTIONS[kind]}]({name}.svg)" if name in names else ""

    title = f"{BACKBONES[backbone]}'s architecture" if backbone in BACKBONES else backbone
    over_problems = results["bis_less_random_over_problems"].get(backbone, {})
    sections: Sequence[tuple[str, str]] = (
        ("Labels and fractions", tables.main_table(summary, backbone) + figure("scaling")),
        ("BIS minus random choice", tables.paired_table(cells, backbone, over_problems)),
        ("One threshold for all sources, or one for each", _own_thresholds(results, cells, backbone)),
        ("Ablation at 25%", tables.ablation_table(cells, summary, backbone)),
        ("Sensitivity to α at 25%", tables.alpha_table(summary, backbone)),
        (
            "Random choice: one pass, and as many updates as all data",
            tables.matched_table(summary) + figure("random"),
        ),
        ("Best of N", tables.best_of_n_table(summary, backbone) + figure("best_of_n")),
        ("Whether, or where", _same_place(results, backbone, summary)),
        ("Training dynamics", tables.curve_table(summary) + figure("curves")),
        ("By source", tables.source_table(summary)),
    )
    shown = [f"### {head}\n\n{body}" for head, body in sections if body.strip()]
    return "\n\n".join([f"## {title}", *shown])


def _own_thresholds(results: dict[str, Any], cells: Cells, backbone: str) -> str:
    """What is left of a lead where scores of different sources are not compared."""
    found = results["own_thresholds"].get(backbone, {})
    rows = tables.own_threshold_rows(cells, backbone, found)
    told = """The paper cuts all sources at one threshold, for which their scores must lie on one scale. Beside it the
        same models with a threshold for each source, chosen on its other problems; and BIS less random choice in
        both, and in AUC within sources, in points."""
    if "full" in found:
        own = fmean(values["overall"] for values in found["full"].values())
        told += f" All rollouts come to {100 * own:.2f} with one each."
    heads = ["", "BIS", "BIS, one each", "random", "random, one each", "lead", "lead, one each", "lead, AUC"]
    return f"{_filled(told)}\n\n{tables.markdown(heads, rows)}" if rows else ""


def _same_place(results: dict[str, Any], backbone: str, summary: dict[str, Any]) -> str:
    """What is left of the AUC where neither the source nor the place of a step tells anything."""
    found, alone = results["auc_at_same_place"].get(backbone, {}), results["place_alone"]
    rows = [[tables.label(arm), tables.cell(summary[arm]["auc"]), tables.cell(one)] for arm, one in found.items()]
    told = """How well correct and incorrect steps are told apart among all steps of the benchmark, and among those
        of one source at the same place of their solutions. The second is what best-of-N asks for: candidates of one
        problem have their places in common. A model that has learnt where errors are likely, and little of what they
        look like, has the first without the second."""
    names = {"overall": "an overall value", "macro_f1": "a pooled F1", "auc": "an AUC"}
    worth = [f"{words} of {100 * alone[name]:.2f}" for name, words in names.items() if alone[name] is not None]
    if worth:
        told += f""" A score that reads nothing, the share of positive steps in the corpus at the same place of the
            same source, has {", ".join(worth)}."""
    table = tables.markdown(["data", "AUC, all steps", "AUC, at the same place"], rows)
    return f"{_filled(told)}\n\n{table}" if rows else ""


def _at_edge(results: dict[str, Any]) -> str:
    """Which backbones' chosen rates have nothing tried beyond them."""
    told = ""
    for words, edge in (("largest", max), ("smallest", min)):
        names = [
            name
            for name, choice in results["choice"].items()
            if len(choice["tried"]) > 1
            and choice["learning_rate"] == edge(one["learning_rate"] for one in choice["tried"])
        ]
        told += f" For {' and '.join(names)} it is the {words} of them." if names else ""
    return told


def _choice(results: dict[str, Any]) -> str:
    rows = [
        [
            backbone,
            f"{one['learning_rate']:g}",
            f"{100 * one['overall']:.2f}",
            "" if one["auc"] is None else f"{100 * one['auc']:.2f}",
            "chosen" if one["learning_rate"] == choice["learning_rate"] else "",
        ]
        for backbone, choice in results["choice"].items()
        for one in choice["tried"]
    ]
    heads = ["backbone", "learning rate", "overall", "AUC", ""]
    how = f"""One training for each rate on all data with hard labels and a seed that no other cell has, measured on
        the validation split, which serves for nothing else. The best overall value decides, however small its lead:
        of one training each, a difference of a point is no more than chance.{_at_edge(results)}"""
    return f"## Hyperparameters\n\n{_filled(how)}\n\n{tables.markdown(heads, rows)}"
