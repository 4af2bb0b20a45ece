"""KD-DPFL: grouping, budget, plan, labelling, teachers and what all of it costs."""
