"""Fixtures of the tests of the whole pipeline."""

from support.project import built_project, new_project, project

__all__ = ["built_project", "new_project", "project"]
