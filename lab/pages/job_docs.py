"""Rewrite what is made from the schema of a job: vramcast.schema.json and the fields in docs/jobs.md."""

from __future__ import annotations

from lab import ROOT
from vramcast.jobs.field_reference import with_reference
from vramcast.jobs.json_schema import schema_text

if __name__ == "__main__":
    (ROOT / "vramcast.schema.json").write_text(schema_text(), encoding="utf-8")
    page = ROOT / "docs" / "jobs.md"
    page.write_text(with_reference(page.read_text(encoding="utf-8")), encoding="utf-8")
