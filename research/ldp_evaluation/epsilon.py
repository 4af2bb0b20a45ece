"""The ε that keeps a protected result usable: ``python -m research.ldp_evaluation.epsilon``.

The rule of MindSpore Federated's document, Δ · ln(1/(1−p))/a, with the Δ that holds here (README.md
here). It is a rule of utility.
"""

import argparse
import sys
from collections.abc import Sequence

from murmur.algorithms.protected_evaluation import ResultSettings, epsilon_for_error
from murmur.format import format_number


def main(argv: Sequence[str] | None = None) -> None:
    """Print the ε for one result and for all of a client's, or why there is none."""
    parser = argparse.ArgumentParser(
        prog="python -m research.ldp_evaluation.epsilon", description=__doc__
    )
    parser.add_argument("--error", type=float, required=True, help="largest noise, such as 0.01")
    parser.add_argument("--probability", type=float, default=0.9, help="default: 0.9")
    parser.add_argument(
        "--records", type=int, help="evaluation.result.unit=record: fewest records of a client"
    )
    parser.add_argument("--results", type=int, default=1, help="how many each client sends")
    given = parser.parse_args(argv)
    if given.results < 1:
        sys.exit(f"--results={given.results}: must be at least 1")
    unit = "record"
    if given.records is None:
        unit = "client"
    how = {"privacy": "laplace", "epsilon": 1.0, "unit": unit, "records": given.records}
    try:
        change = ResultSettings.of(how, None).change
        least = epsilon_for_error(given.error, given.probability, change)
    except ValueError as error:
        sys.exit(str(error))
    print(f"evaluation.result.epsilon={least:.6g}, for a {unit} (Δ = {change:.4g})")
    whole = f"ε = {format_number(least * given.results)} against a server that reads them"
    print(f"all {given.results} of a client's results: {whole}")
    if unit == "client":
        print(f"as MindSpore's document counts (Δ = 1): laplace_eval_eps={least / 2:.6g}")
    print("This keeps the result usable. Whether such an ε protects anybody it does not ask.")


if __name__ == "__main__":
    main()
