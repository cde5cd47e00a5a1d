"""Programs of scikit-learn on its digits, whose calls joblib runs."""

from __future__ import annotations

from typing import Any


def searched() -> Any:
    """The scores of a grid search on the digits."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import GridSearchCV
    from sklearn.svm import SVC

    data, target = load_digits(return_X_y=True)
    search = GridSearchCV(SVC(random_state=0), {"C": [0.1, 1, 10], "gamma": [0.001, 0.0005]}, cv=3)
    search.fit(data[:300], target[:300])
    return search.best_params_, search.cv_results_["mean_test_score"].tolist()


def grown() -> Any:
    """What a random forest makes of the digits."""
    from sklearn.datasets import load_digits
    from sklearn.ensemble import RandomForestClassifier

    data, target = load_digits(return_X_y=True)
    forest = RandomForestClassifier(n_estimators=40, random_state=0).fit(data[:1000], target[:1000])
    return forest.predict_proba(data[1000:]).tolist(), forest.feature_importances_.tolist()


def searched_forests() -> Any:
    """A grid search whose candidates are forests: calls inside calls."""
    from sklearn.datasets import load_digits
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import GridSearchCV

    data, target = load_digits(return_X_y=True)
    search = GridSearchCV(RandomForestClassifier(n_estimators=10, random_state=0), {"max_depth": [3, None]}, cv=3)
    return search.fit(data[:200], target[:200]).cv_results_["mean_test_score"].tolist()


PROGRAMS = (searched, grown, searched_forests)
