"""What a model answers, and what that costs, when it is shown fewer visual tokens."""
