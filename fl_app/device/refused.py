"""What a server hears of a refusal: always the same.

Why, which row, which value and whose entry stand in the device's own log. A text that is chosen by
what went wrong would tell of the data, of the owner's files and of other federations' runs.
"""

REFUSED = "refused; its own log says why"
