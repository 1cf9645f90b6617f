"""Actions, costs, fills and the environment."""
