"""A small project to open assets of."""

from support.tiny_project import own_project, tiny_landing, tiny_project

__all__ = ["own_project", "tiny_landing", "tiny_project"]
