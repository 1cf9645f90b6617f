"""A user's own asset below a model's training is handed its checkpoints by the IO manager."""

from __future__ import annotations

from support.project import Project

OWN_ASSET = """
import dagster as dg

from foxhunt_pipeline.definitions import defs, pipeline


@dg.asset(ins={"trained": dg.AssetIn(["tlob", "training"])})
def sizes(trained):
    return dg.MaterializeResult(
        metadata={name: trained[name].header.parameter_count for name in trained}
    )


(key,) = [key for key in defs.resolve_all_asset_keys() if key.path == ["tlob", "training"]]
result = dg.materialize(
    [sizes, *defs.assets],
    selection=[sizes],
    resources={"checkpoints": defs.resources["checkpoints"], **defs.resources},
    raise_on_error=False,
)
if not result.success:
    (failed,) = [event for event in result.all_events if event.is_step_failure]
    print(failed.step_failure_data.error)
    raise SystemExit(1)
(made,) = result.asset_materializations_for_node("sizes")
print({name: value.value for name, value in made.metadata.items()})
"""


def test_an_own_asset_loads_what_the_index_counts_as_current(project: Project) -> None:
    items = project.manifest("tlob/training").artifact.items
    expected = {name: item.figures["parameters"] for name, item in items.items()}
    assert project.python(project.write("own.py", OWN_ASSET)).splitlines()[-1] == str(expected)


def test_bytes_that_are_not_the_checkpoints_are_refused(project: Project) -> None:
    item = project.manifest("tlob/training").artifact.items["production"]
    blob = project.state / "artifacts/blobs" / item.files["model.safetensors"].sha256
    damaged = bytearray(blob.read_bytes())
    damaged[-1] ^= 1
    blob.unlink()
    blob.write_bytes(damaged)
    said = project.python(project.write("own.py", OWN_ASSET), code=1)
    assert "SHA-256" in said
