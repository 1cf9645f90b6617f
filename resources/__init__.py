"""Dagster resources: device, checkpoint IO manager, market data and stores."""
