"""Which hyperparameters mattered in a search."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from triform.analysis.compare.variants import shown

N_VALUES = 4
"""Different values of a number from which on it is searched, not compared."""
WIDE = 10
"""Largest over smallest value from which on a positive number is looked at by its logarithm."""


@dataclass(frozen=True)
class Importance:
    """Share of the figure's variance that each key explains, largest first; none where `missing` says why not."""

    shares: dict[str, float]
    missing: str = ""


def numeric(values: Sequence[Any]) -> bool:
    """Whether these are values of a searched number: `N_VALUES` or more, all of them numbers."""
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return len(numbers) == len(values) and len(set(numbers)) >= N_VALUES


def by_logarithm(values: Sequence[float]) -> bool:
    """Whether the logarithm of these numbers is what was searched: their range is wide, or their ratios are more alike
    than their differences."""
    if min(values) <= 0:
        return False
    if max(values) / min(values) >= WIDE:
        return True
    in_order = np.unique(values)
    if len(in_order) < 3:
        return False
    differences, ratios = np.diff(in_order), np.diff(np.log(in_order))
    return bool(ratios.std() / ratios.mean() < differences.std() / differences.mean())


def importance(varied: Mapping[str, Sequence[Any]], figures: Sequence[float | None]) -> Importance:
    """Functional ANOVA (Hutter, Hoos and Leyton-Brown 2014) over the variants that have a figure, by Optuna.

    The shares are of a random forest's predictions, main effects only, and sum to 1. A key of which all these variants
    have one value is left out.

    Args:
        varied: key to a value for each variant.
        figures: one for each variant, None where it has no result.
    """
    known = [i for i, value in enumerate(figures) if value is not None]
    keys = {key: [values[i] for i in known] for key, values in varied.items()}
    keys = {key: values for key, values in keys.items() if len({shown(value) for value in values}) > 1}
    if len(keys) < 2:
        return Importance({}, "needs two keys or more that vary")
    if len(known) < 2 * len(keys):
        return Importance({}, f"needs at least {2 * len(keys)} variants with a result; there are {len(known)}")
    if len({figures[i] for i in known}) == 1:
        return Importance({}, "every variant has the same figure")
    try:
        import optuna
        import sklearn  # noqa: F401  which Optuna imports where it is late to say so
    except ImportError:
        return Importance({}, "needs optuna and scikit-learn: pip install triform[search]")
    spaces = {key: _space(values) for key, values in keys.items()}
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study()
        for row, i in enumerate(known):
            values = {key: _plain(values[row], spaces[key]) for key, values in keys.items()}
            study.add_trial(optuna.create_trial(params=values, distributions=spaces, value=figures[i]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of both libraries about each other
            shares = optuna.importance.get_param_importances(
                study, evaluator=optuna.importance.FanovaImportanceEvaluator(seed=0)
            )
    finally:
        optuna.logging.set_verbosity(verbosity)
    if not all(math.isfinite(share) for share in shares.values()):
        return Importance({}, "the forest explains none of the variance")
    return Importance(dict(sorted(shares.items(), key=lambda item: -item[1])))


def _space(values: Sequence[Any]) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return FloatDistribution(min(values), max(values), log=by_logarithm(values))
    return CategoricalDistribution(sorted({shown(value) for value in values}))


def _plain(value: Any, space: Any) -> Any:
    return shown(value) if hasattr(space, "choices") else float(value)
