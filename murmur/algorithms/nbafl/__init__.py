"""NbAFL: its setting, its noise, the paper's closed forms, and its convergence bound."""
