"""A table whose log is one commit, for published versions: the bytes depend on the table's content alone."""

from __future__ import annotations

import json
import uuid

from ..files import Place, guard_access
from .log import commit_information, commit_name, commit_place, commit_text
from .state import PUBLISHED, metadata_of, open_log


def fold_log(table: Place, moment: int) -> None:
    """Replace the log of a table that no other process uses by one commit, and refuse later commits.

    Args:
        table: the table's folder.
        moment: milliseconds since 1970, the time of the commit.

    Raises:
        CorruptStoreError: the log is damaged.
        StoreAccessError: it cannot be read or written.
    """
    state, _ = open_log(table)
    files = sorted(state.files.values(), key=lambda file: (file.moment, file.name))
    properties = {**state.metadata.properties, PUBLISHED: "1"}
    described = metadata_of(state.metadata.schema, properties)
    # The table library writes the metadata of columns in any order.
    described["schemaString"] = json.dumps(json.loads(described["schemaString"]), sort_keys=True)
    name = f"{table.name} {described} {[file.name for file in files]}"
    metadata = {"id": str(uuid.uuid5(uuid.NAMESPACE_OID, name)), **described, "createdTime": moment}
    listed = [file.as_new(file.name).action(table, moment + index) for index, file in enumerate(files)]
    actions = [{"protocol": dict(state.protocol)}, {"metaData": metadata}, *listed]
    log = table / "_delta_log"
    with guard_access("write the log", log):
        for former in log.names():
            if former != commit_name(0):
                (log / former).remove()
        details = {"episodelake.operation": "publish"}
        information = commit_information("WRITE", moment, details)
        commit_place(table, 0).write(commit_text(table.name, 0, actions, information))
