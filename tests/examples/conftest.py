"""Fixtures of the tests of the examples."""

from support.project import built_project, project

__all__ = ["built_project", "project"]
