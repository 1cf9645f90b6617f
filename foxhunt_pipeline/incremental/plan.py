"""What would be rebuilt, and why.

The plan compares what each stage would be made from now (code version, data versions of its
inputs) with what it was made from last, in the order of the graph. A stage below one that will
be rebuilt may change; whether it does is known once that one's data version is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from foxhunt_pipeline.artifacts import digest_of
from foxhunt_pipeline.incremental.index import Failure, Index, Row
from foxhunt_pipeline.incremental.stages import LANDING, Stage
from foxhunt_pipeline.incremental.versions import StageVersion, difference

HELD_CATEGORIES = frozenset({"data", "validation", "skipped"})
"""Failures that the same code and data give again: not tried again until either changes."""


@dataclass(frozen=True)
class SessionState:
    """A session as the landing has it now. ``digest`` names its bytes."""

    digest: str
    state: Literal["ready", "waiting", "refused"] = "ready"
    reason: str = ""


@dataclass(frozen=True)
class Entry:
    """One asset (and partition) that sync would run."""

    asset: str
    partition: str | None
    action: Literal["rebuild", "may_change"]
    reason: str
    wanted: str
    """Digest of the code and the inputs that it would be made from, as far as they are known."""


@dataclass(frozen=True)
class Held:
    """Something that cannot be built from what is there, and why."""

    asset: str
    partition: str | None
    reason: str


@dataclass(frozen=True)
class Plan:
    entries: tuple[Entry, ...]
    held: tuple[Held, ...] = ()

    @property
    def sessions(self) -> dict[str, tuple[str, ...]]:
        """Assets to run, by session, in date order."""
        found: dict[str, list[str]] = {}
        for entry in self.entries:
            if entry.partition is not None:
                found.setdefault(entry.partition, []).append(entry.asset)
        return {partition: tuple(found[partition]) for partition in sorted(found)}

    @property
    def unpartitioned(self) -> tuple[str, ...]:
        """Unpartitioned assets to run, in the order of the graph."""
        return tuple(entry.asset for entry in self.entries if entry.partition is None)

    @property
    def id(self) -> str:
        """Names what would be run, and from what. Reasons do not count: the same plan has
        another reason once it has failed."""
        return digest_of([(e.asset, e.partition, e.wanted) for e in self.entries])[:16]

    def to_json(self) -> list[dict[str, Any]]:
        """The entries as JSON data."""
        return [asdict(entry) for entry in self.entries]


def input_versions(
    stage: Stage,
    partition: str | None,
    rows: Mapping[tuple[str, str | None], Row],
    sessions: Mapping[str, SessionState],
    used: Collection[str],
    stages: Mapping[str, Stage],
) -> dict[str, str] | None:
    """Data version of each input now, or None where one has never been built.

    An unpartitioned stage below a partitioned one sees one version for all sessions used.
    """
    if not stage.inputs:
        return {LANDING: sessions[partition].digest} if partition and partition in sessions else {}
    versions = {}
    for name in stage.inputs:
        if stages[name].partitioned and not stage.partitioned:
            versions[name] = digest_of(
                [(session, rows[name, session].data_version) for session in sorted(used)]
            )
            continue
        row = rows.get((name, partition if stages[name].partitioned else None))
        if row is None:
            return None
        versions[name] = row.data_version
    if stage.needs_session:
        versions["left out"] = digest_of(left_out(sessions, used))
    return versions


def usable_sessions(
    needs: Sequence[str],
    rows: Mapping[tuple[str, str | None], Row],
    versions: Mapping[str, StageVersion],
    sessions: Mapping[str, SessionState],
) -> list[str]:
    """Sessions with a good version of every stage needed, made by the code of now.

    A session whose newest delivery fails keeps its last good version; one that was made by
    other code does not count, since its columns may mean something else.
    """

    def good(session: str, name: str) -> bool:
        row = rows.get((name, session))
        return row is not None and row.code_version == versions[name].digest

    return [s for s in sorted(sessions) if all(good(s, name) for name in needs)]


def left_out(sessions: Mapping[str, SessionState], used: Collection[str]) -> list[str]:
    """Sessions that are delivered and not used. One that is still arriving is not missing yet."""
    return [s for s in sorted(sessions) if s not in used and sessions[s].state != "waiting"]


def step_key(stage: Stage, partition: str | None, version: str, inputs: Mapping[str, str]) -> str:
    """Memo key of a stage's artifact."""
    return digest_of("artifact", stage.name, partition, version, dict(inputs))


def make_plan(
    stages: Mapping[str, Stage],
    versions: Mapping[str, StageVersion],
    sessions: Mapping[str, SessionState],
    index: Index,
    *,
    selected: Collection[str] | None = None,
    force: bool = False,
) -> Plan:
    """The plan for the stages selected (default: all).

    force: rebuild what is selected whether or not anything changed.
    """
    return _Planner(stages, versions, sessions, index, selected, force).plan()


class _Planner:
    def __init__(
        self,
        stages: Mapping[str, Stage],
        versions: Mapping[str, StageVersion],
        sessions: Mapping[str, SessionState],
        index: Index,
        selected: Collection[str] | None,
        force: bool,
    ) -> None:
        self.stages = stages
        self.versions = versions
        self.sessions = sessions
        self.index = index
        self.selected = set(stages if selected is None else selected)
        self.force = force
        self.rows = index.rows()
        self.failures = index.failures()
        self.entries: dict[tuple[str, str | None], Entry] = {}
        self.held: list[Held] = []
        self.code_reasons: dict[tuple[str, str], str] = {}

    def plan(self) -> Plan:
        for session, state in sorted(self.sessions.items()):
            if state.state == "waiting":
                self.held.append(Held("raw/dbn", session, state.reason))
        for stage in self.stages.values():
            if stage.name not in self.selected:
                continue
            if stage.partitioned:
                for session in sorted(self.sessions):
                    if self.sessions[session].state != "waiting":
                        self._consider(stage, session)
            else:
                self._consider(stage, None)
        return Plan(tuple(self.entries.values()), tuple(self.held))

    def _consider(self, stage: Stage, partition: str | None) -> None:
        row = self.rows.get((stage.name, partition))
        version = self.versions[stage.name]
        planned = self._planned_inputs(stage, partition)
        used: list[str] = []
        if stage.needs_session:
            used = usable_sessions(stage.needs_session, self.rows, self.versions, self.sessions)
            if not used and not planned:
                self.held.append(Held(stage.name, partition, "no session is complete"))
                return
        inputs = input_versions(stage, partition, self.rows, self.sessions, used, self.stages)
        if inputs is None and not planned:
            return
        reason = self._reason(stage, partition, row, version, inputs, planned)
        if reason is None and planned:
            self._add("may_change", stage, partition, planned[0].reason, inputs)
        elif reason is not None:
            key = inputs and step_key(stage, partition, version.digest, inputs)
            failure = self.failures.get((stage.name, partition))
            if (
                failure is not None
                and failure.key == key
                and failure.category in HELD_CATEGORIES
                and not planned
                and not self.force
            ):
                self.held.append(Held(stage.name, partition, failure.message))
            else:
                self._add("rebuild", stage, partition, reason, inputs)

    def _planned_inputs(self, stage: Stage, partition: str | None) -> list[Entry]:
        found = []
        for name in stage.inputs:
            if self.stages[name].partitioned and not stage.partitioned:
                found += [e for (asset, _), e in self.entries.items() if asset == name]
            else:
                place = (name, partition if self.stages[name].partitioned else None)
                if place in self.entries and not self._will_fail(*place):
                    found.append(self.entries[place])
        return found

    def _will_fail(self, name: str, partition: str | None) -> bool:
        """A refused session's bytes are tried once, to say so; nothing is built on them."""
        state = self.sessions.get(partition or "")
        return state is not None and state.state == "refused" and not self.stages[name].inputs

    def _reason(
        self,
        stage: Stage,
        partition: str | None,
        row: Row | None,
        version: StageVersion,
        inputs: Mapping[str, str] | None,
        planned: Sequence[Entry],
    ) -> str | None:
        """Why this must be rebuilt whatever its inputs turn out to be, or None."""
        failure = self.failures.get((stage.name, partition))
        if row is None:
            if failure is not None:
                return f"the last attempt failed: {failure.message}"
            if not stage.inputs:
                return "the session is new"
            return planned[0].reason if planned else "it was never built"
        if row.code_version != version.digest:
            return self._code_reason(row.code_version, stage.name)
        if inputs is not None and inputs != row.inputs and not planned:
            return self._input_reason(row.inputs, inputs)
        if failure is not None and not planned:
            return f"the last attempt failed: {failure.message}"
        return "forced" if self.force else None

    def _code_reason(self, old: str, stage: str) -> str:
        if (old, stage) not in self.code_reasons:
            before = self.index.components(old)
            version = self.versions[stage]
            lines = difference(before, version.components, version.files) if before else []
            self.code_reasons[old, stage] = "; ".join(lines[:5]) or "its code changed"
        return self.code_reasons[old, stage]

    def _input_reason(self, old: Mapping[str, str], new: Mapping[str, str]) -> str:
        changed = [name for name in new if old.get(name) != new[name]]
        if changed == [LANDING]:
            return "the landed files of the session changed"
        if changed == ["left out"]:
            return "other sessions are left out"
        names = [name for name in changed if name != "left out"]
        return f"{', '.join(names)} changed"

    def _add(
        self,
        action: Literal["rebuild", "may_change"],
        stage: Stage,
        partition: str | None,
        reason: str,
        inputs: Mapping[str, str] | None,
    ) -> None:
        wanted = digest_of(self.versions[stage.name].digest, inputs and dict(inputs))[:16]
        self.entries[stage.name, partition] = Entry(stage.name, partition, action, reason, wanted)


def describe_failure(failure: Failure) -> str:
    """A failure as one line."""
    where = f" of {failure.partition}" if failure.partition else ""
    return f"{failure.asset}{where} ({failure.category}): {failure.message}"
