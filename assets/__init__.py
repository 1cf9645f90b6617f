"""Dagster assets: thin wrappers round the stages, one module a stage."""
