"""Out-of-sample judgement of every model, by the same rule and costs."""
