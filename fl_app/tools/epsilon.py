"""``murmur epsilon``: the ε at which a protected result stays close to the true one, and its price.

The rule of MindSpore Federated's document, Δ · ln(1/(1−p))/a, with the Δ that holds here.
"""

from __future__ import annotations

import argparse

from fl_app.config.errors import ConfigError
from murmur.papers.protected_results import ResultSettings, epsilon_for_error


def main(argv: list[str]) -> int:
    """Run the tool with the words after ``murmur epsilon``; the exit status."""
    parser = argparse.ArgumentParser(
        prog="murmur epsilon",
        description="The ε that keeps the noise on each entry of a protected vector small.",
    )
    parser.add_argument("--error", type=float, required=True, help="largest noise, such as 0.01")
    parser.add_argument("--probability", type=float, default=0.9, help="default: 0.9")
    parser.add_argument(
        "--records", type=int, help="evaluation.result.unit=record: fewest records of a client"
    )
    parser.add_argument("--results", type=int, default=1, help="how many each client sends")
    given = parser.parse_args(argv)
    if given.results < 1:
        raise ConfigError(f"--results={given.results}: must be at least 1")
    unit = "client" if given.records is None else "record"
    try:
        how = {"privacy": "laplace", "epsilon": 1.0, "unit": unit, "records": given.records}
        change = ResultSettings.of(how, None).change
        epsilon = epsilon_for_error(given.error, given.probability, change)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    print(f"evaluation.result.epsilon={epsilon:.6g}, for a {unit} (Δ = {change:.4g})")
    print(f"all {given.results} results of a client: ε = {epsilon * given.results:.6g}")
    if unit == "client":
        print(f"as MindSpore's document counts (Δ = 1): laplace_eval_eps={epsilon / 2:.6g}")
    print("This keeps the result usable. Whether such an ε protects anybody it does not ask.")
    return 0
