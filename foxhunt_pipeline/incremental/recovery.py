"""Rebuilds a lost index from the manifests in the artifact store."""

from __future__ import annotations

from collections.abc import Mapping

from foxhunt_pipeline.incremental.index import Index
from foxhunt_pipeline.incremental.memo import Memo
from foxhunt_pipeline.incremental.plan import (
    SessionState,
    input_versions,
    step_key,
    usable_sessions,
)
from foxhunt_pipeline.incremental.stages import Stage
from foxhunt_pipeline.incremental.versions import StageVersion


def rebuild_index(
    index: Index,
    memo: Memo,
    stages: Mapping[str, Stage],
    versions: Mapping[str, StageVersion],
    sessions: Mapping[str, SessionState],
) -> int:
    """Fill an index with what the store holds, and return the number of rows.

    In the order of the graph: what the code and data of now would make, where it was made
    before; else the newest that was made, which the plan will then find stale for its reason.
    """
    count = 0
    for stage in stages.values():
        rows = index.rows()
        needs = stage.needs_session
        used = usable_sessions(needs, rows, versions, sessions) if needs else []
        for partition in sorted(sessions) if stage.partitioned else [None]:
            inputs = input_versions(stage, partition, rows, sessions, used, stages)
            found = None
            if inputs is not None:
                key = step_key(stage, partition, versions[stage.name].digest, inputs)
                found = memo.manifest(stage.name, partition, key)
            if found is None:
                every = memo.manifests(stage.name, partition)
                found = max(every, key=lambda manifest: manifest.built_ns, default=None)
            if found is not None:
                index.succeeded(found)
                count += 1
    return count
