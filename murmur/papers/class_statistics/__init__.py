"""Class statistics: one release of what each client's classes look like, under secure sums."""
