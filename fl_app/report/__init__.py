"""The report of a run or a sweep: one HTML page that needs nothing but a browser."""
